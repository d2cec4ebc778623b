// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of raw_tls.
#include "raw_tls/options.h"

#include "ends/command_line.h"

namespace uwarp::bench {
namespace {

constexpr const char* kModes =
    "Modes:\n"
    "  ping-pong  half round trip of --size bytes; both ends poll\n"
    "  stream     one stream, writes of --size bytes\n"
    "  connects   connections per second, --count in all, one after the other";

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("What plain TLS over TCP does, the limit for UWARP_TLS.", "raw_tls");
  app.footer(kModes);
  add_run(app, options.mode, options, options.seconds);
  add_positive(app, "--size", options.size, "bytes per message or write");
  add_positive(app, "--count", options.count, "connections to make");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace uwarp::bench
