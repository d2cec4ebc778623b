// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The command line of raw_udp.
#include "raw_udp/options.h"

#include "ends/command_line.h"

namespace uwarp::bench {
namespace {

constexpr const char* kModes =
    "Modes:\n"
    "  ping-pong  half round trip of datagrams of --size bytes; both ends poll\n"
    "  datagrams  datagrams of --size bytes to --receivers sockets in turn, of so many\n"
    "             --processes: how many are received";

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("What plain UDP does, the limit for datagrams of uwarp.", "raw_udp");
  app.footer(kModes);
  add_run(app, options.mode, options, options.seconds);
  add_positive(app, "--size", options.size, "bytes per datagram");
  add_positive(app, "--batch", options.batch, "datagrams per sendmmsg() and recvmmsg()");
  add_crowd(app, options.crowd);
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace uwarp::bench
