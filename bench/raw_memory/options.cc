// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of raw_memory.
#include "raw_memory/options.h"

#include "ends/command_line.h"

namespace uwarp::bench {
namespace {

constexpr const char* kModes =
    "Modes:\n"
    "  ping-pong        half round trip of messages of --size bytes; both ends spin\n"
    "  write-ping-pong  the same, each copied into the other process by its sender "
    "(process_vm_writev())\n"
    "  read             --size bytes copied out of the other process (process_vm_readv()), halved\n"
    "  stream           one stream of messages of --size bytes\n"
    "  messages         messages of --size bytes per second, --batch of them shown at once";

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("What shared memory does between two processes, the limit for uwarp on one host.",
               "raw_memory");
  app.footer(kModes);
  add_run(app, options.mode, options, options.seconds);
  add_positive(app, "--size", options.size, "bytes per message");
  add_positive(app, "--batch", options.batch, "small messages that the reader is shown at once");
  add_positive(app, "--buffers", options.buffers, "that each end of a stream uses in turn");
  add_positive(app, "--piece", options.piece,
               "bytes of a message that the reader is shown at once");
  app.add_flag(
      "--pull", options.pull,
      "the receiver takes messages from the sender's memory by process_vm_readv(): one copy "
      "instead of two");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace uwarp::bench
