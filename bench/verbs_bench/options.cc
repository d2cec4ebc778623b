// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of verbs_bench.
#include "verbs_bench/options.h"

#include <algorithm>

#include "ends/command_line.h"

namespace uwarp::bench {
namespace {

constexpr const char* kModes =
    "Modes:\n"
    "  rate      requests per second on one queue pair: lists of --list requests, the last one\n"
    "            signalled, --depth outstanding\n"
    "  wake-up   half round trip of Sends; both ends wait for completions by --wait\n"
    "  qps       --count queue pairs on one completion queue; batches of --depth Writes that end\n"
    "            with a Read, on one of them, or with --all on each; also memory per queue pair\n"
    "  scale     the same on --count queue pairs, all active, of so many --processes with "
    "--threads,\n"
    "            each with completion queues of its own; as many threads of the servers poll\n"
    "  connects  connections per second, --count in all, --window at a time\n"
    "  datagrams UD Sends from one queue pair to --receivers others in turn, of so many\n"
    "            --processes: how many are received";

const std::map<std::string, ibv_wr_opcode> kOpcodeNames = {{"write", IBV_WR_RDMA_WRITE},
                                                           {"send", IBV_WR_SEND},
                                                           {"read", IBV_WR_RDMA_READ},
                                                           {"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD}};

void check_list(Options& options) {
  if (options.list == 0) options.list = std::max(options.depth / 4, 1u);
  if (options.list > options.depth)
    throw CLI::ValidationError("--list", "is more than may be outstanding");
}

void describe(CLI::App& app, Options& options) {
  app.footer(kModes);
  add_run(app, options.mode, options, options.seconds);
  app.add_option("--op", options.opcode)->transform(CLI::CheckedTransformer(kOpcodeNames));
  add_positive(app, "--size", options.size, "bytes per message");
  add_positive(app, "--buffers", options.buffers, "that each end of rate uses in turn");
  add_positive(app, "--depth", options.depth, "requests outstanding");
  app.add_option("--list", options.list, "requests per ibv_post_send; a quarter of --depth")
      ->check(CLI::PositiveNumber);
  add_positive(app, "--count", options.count, "queue pairs, or connections to make");
  add_positive(app, "--threads", options.threads, "of each process, at both ends");
  add_positive(app, "--window", options.window, "connections under way at a time");
  app.add_flag("--all", options.all, "all queue pairs are active, not one");
  app.add_flag("--peer-polls", options.peer_polls,
               "a target of one-sided operations polls instead of sleeping");
  app.add_option("--wait", options.wait)->transform(CLI::CheckedTransformer(kWaitNames));
  app.add_option("--device", options.device, "of datagrams; the first one by default");
  add_crowd(app, options.crowd);
  app.final_callback([&options] { check_list(options); });
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Plain verbs, where perftest has no such case.", "verbs_bench");
  describe(app, options);
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace uwarp::bench
