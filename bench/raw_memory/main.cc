// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_memory: what two processes of one host can do by shared memory alone, the limit to measure
// uwarp against there. Knows nothing of RDMA, and trusts its peer in everything.
#include "ends/run_mode.h"
#include "raw_memory/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  const Modes<Options> modes = {{"ping-pong", ping_pong},
                                {"write-ping-pong", write_ping_pong},
                                {"read", read_alone},
                                {"stream", stream},
                                {"messages", messages}};
  return run_mode("raw_memory", modes, parse_options(argc, argv));
}
