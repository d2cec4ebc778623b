// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Options of a run of verbs_bench.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "ends/crowd.h"
#include "ends/ends.h"
#include "ends/wait.h"

namespace uwarp::bench {

struct Options : Ends {
  std::string mode;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  uint32_t size = 8;        // bytes per message
  uint32_t buffers = 1;     // of this size, that each end of rate uses in turn
  uint32_t depth = 128;     // requests outstanding
  uint32_t list = 0;        // requests per ibv_post_send; the last one is signalled. 0: depth / 4
  uint32_t count = 1;       // queue pairs, or connections to make
  uint32_t threads = 1;     // of each process of scale
  uint32_t window = 32;     // connections under way at a time
  bool all = false;         // all queue pairs are active, not one
  bool peer_polls = false;  // a target of one-sided operations polls instead of sleeping
  double seconds = 0.5;
  Wait wait = Wait::kBlock;  // kSpin polls the completion queue
  std::string device;        // of datagrams, which no connection tells
  Crowd crowd;
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
