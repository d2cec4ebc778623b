// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Options of a run of raw_tcp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ends/ends.h"
#include "ends/wait.h"

namespace uwarp::bench {

struct Options : Ends {
  std::string mode;
  size_t size = 8;          // bytes per message or per send
  size_t request = 0;       // bytes that a ping-pong answers by size bytes. 0: as many
  size_t read = 256 << 10;  // bytes that a stream's receiver asks for at once
  size_t batch = 1;         // small messages per send, or requests outstanding
  size_t buffers = 1;       // of a stream's ends, used in turn
  int count = 1;            // sockets, or connections to make
  uint32_t processes = 1;   // of scale, at each end ...
  uint32_t threads = 1;     // ... and threads of each
  int window = 1;           // connections under way at a time
  bool all = false;         // all sockets are active, not one
  double seconds = 0.5;
  Wait wait = Wait::kSpin;
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
