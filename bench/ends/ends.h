// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Where the two ends of a measurement meet. Both are started with the same options; the one that
// gets an address is the client, measures, and prints.
#pragma once

#include <cstdint>
#include <string>

namespace uwarp::bench {

struct Ends {
  std::string address;  // of the server; empty: this is the server
  uint16_t port = 18600;
  std::string congestion;  // control of TCP sockets; empty: the system's

  bool client() const { return !address.empty(); }
};

}  // namespace uwarp::bench
