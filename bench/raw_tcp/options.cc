// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of raw_tcp.
#include "raw_tcp/options.h"

#include "ends/command_line.h"

namespace uwarp::bench {
namespace {

constexpr const char* kModes =
    "Modes:\n"
    "  ping-pong         half round trip; --wait says how both ends learn of bytes, --request how\n"
    "                    many are sent, of --size in the answer\n"
    "  memory-ping-pong  the same, received by an epoll thread while the application's thread\n"
    "                    spins on memory\n"
    "  stream            one stream of sends of --size bytes, received --read at a time\n"
    "  duplex            two such streams, one in each direction\n"
    "  both-ways         the same on one connection\n"
    "  messages          messages of --size bytes per second, --batch of them per send\n"
    "  pipeline          requests and answers of --size bytes, --batch of them outstanding\n"
    "  sockets           --count connections; batches on one of them, or with --all on each,\n"
    "                    answered by one message per batch\n"
    "  scale             the same on --count connections, all active, of so many --processes with\n"
    "                    --threads, at both ends, each thread with an epoll of its own\n"
    "  connects          connections per second with an exchange of frames as large as MPA's,\n"
    "                    --count in all, --window at a time";

void describe(CLI::App& app, Options& options) {
  app.footer(kModes);
  add_run(app, options.mode, options, options.seconds);
  add_positive(app, "--size", options.size, "bytes per message or per send");
  app.add_option("--request", options.request, "bytes of a ping-pong's way there; as the way back")
      ->check(CLI::PositiveNumber);
  add_positive(app, "--read", options.read, "bytes that a stream's receiver asks for at once");
  add_positive(app, "--batch", options.batch, "small messages per send, or requests outstanding");
  add_positive(app, "--buffers", options.buffers, "that each end of a stream uses in turn");
  add_positive(app, "--count", options.count, "sockets, or connections to make");
  add_positive(app, "--processes", options.processes, "of scale, at each end");
  add_positive(app, "--threads", options.threads, "of each process, at both ends");
  add_positive(app, "--window", options.window, "connections under way at a time");
  app.add_flag("--all", options.all, "all sockets are active, not one");
  app.add_option("--wait", options.wait)->transform(CLI::CheckedTransformer(kWaitNames));
  app.add_option("--congestion", options.congestion, "control; the system's by default");
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("What plain TCP does, the limit for uwarp.", "raw_tcp");
  describe(app, options);
  parse_or_exit(app, argc, argv);
  if (options.request == 0) options.request = options.size;
  return options;
}

}  // namespace uwarp::bench
