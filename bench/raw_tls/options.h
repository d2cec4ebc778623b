// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Options of a run of raw_tls.
#pragma once

#include <cstddef>
#include <string>

#include "ends/ends.h"

namespace uwarp::bench {

struct Options : Ends {
  std::string mode;
  size_t size = 8;  // bytes per message or per write
  int count = 500;  // connections to make
  double seconds = 0.5;
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
