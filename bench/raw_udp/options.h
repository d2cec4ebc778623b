// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Options of a run of raw_udp.
#pragma once

#include <cstddef>
#include <string>

#include "ends/crowd.h"
#include "ends/ends.h"

namespace uwarp::bench {

struct Options : Ends {
  std::string mode;
  size_t size = 8;    // bytes per datagram
  size_t batch = 64;  // datagrams per sendmmsg() and recvmmsg()
  Crowd crowd;
  double seconds = 0.5;
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
