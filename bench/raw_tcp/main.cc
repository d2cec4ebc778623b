// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_tcp: what plain TCP does here, the limit to measure uwarp against. One program, a mode for
// each shape of work; knows nothing of RDMA.
#include "ends/run_mode.h"
#include "raw_tcp/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  const Modes<Options> modes = {{"ping-pong", ping_pong}, {"memory-ping-pong", memory_ping_pong},
                                {"stream", stream},       {"duplex", duplex},
                                {"both-ways", both_ways}, {"messages", messages},
                                {"pipeline", pipeline},   {"sockets", sockets},
                                {"scale", scale},         {"connects", connects}};
  return run_mode("raw_tcp", modes, parse_options(argc, argv));
}
