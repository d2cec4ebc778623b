// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Options of a run of raw_memory.
#pragma once

#include <cstddef>
#include <string>

#include "ends/ends.h"

namespace uwarp::bench {

struct Options : Ends {
  std::string mode;
  size_t size = 8;          // bytes per message
  size_t batch = 1;         // small messages that the reader is shown at once
  size_t buffers = 1;       // of a stream's ends, used in turn
  size_t piece = 32 << 10;  // bytes of a large message that the reader is shown at once
  bool pull = false;        // the receiver takes messages from the sender's own memory
  double seconds = 0.5;
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
