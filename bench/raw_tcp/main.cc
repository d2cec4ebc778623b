// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_tcp: what plain TCP does here, the limit to measure uwarp against. One program, a mode for
// each shape of work; knows nothing of RDMA.
#include <cstdio>
#include <map>

#include "raw_tcp/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  static const std::map<std::string, void (*)(const Options&)> kModes = {
      {"ping-pong", ping_pong}, {"memory-ping-pong", memory_ping_pong},
      {"stream", stream},       {"duplex", duplex},
      {"both-ways", both_ways}, {"messages", messages},
      {"pipeline", pipeline},   {"sockets", sockets},
      {"connects", connects}};
  const Options options = parse_options(argc, argv);
  const auto mode = kModes.find(options.mode);
  if (mode == kModes.end()) {
    std::fprintf(stderr, "raw_tcp: no mode %s\n", options.mode.c_str());
    return 2;
  }
  mode->second(options);
  return 0;
}
