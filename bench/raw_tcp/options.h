// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What a run of raw_tcp is told. Both ends are started with the same options; the one that gets an
// address is the client, measures, and prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "wait.h"

namespace uwarp::bench {

struct Options {
  std::string mode;
  std::string address;  // empty: the server
  uint16_t port = 18600;
  size_t size = 8;          // bytes per message or per send
  size_t request = 0;       // bytes that a ping-pong answers by size bytes. 0: as many
  size_t read = 256 << 10;  // bytes that a stream's receiver asks for at once
  size_t batch = 1;         // small messages per send, or requests outstanding
  int count = 1;            // sockets, or connections to make
  int window = 1;           // connections under way at a time
  bool all = false;         // all sockets are active, not one
  double seconds = 0.5;
  Wait wait = Wait::kSpin;
  std::string congestion;  // empty: the system's

  bool client() const { return !address.empty(); }
};

/// Exits with a usage message if they make no sense.
Options parse_options(int argc, char** argv);

}  // namespace uwarp::bench
