// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Names that a server chose, for a terminal: without control characters.
#pragma once

#include <string>

namespace uwarp::nfs {

inline std::string printable(std::string name) {
  for (char& each : name) {
    if (static_cast<unsigned char>(each) < 0x20 || each == 0x7f) {
      each = '?';
    }
  }
  return name;
}

}  // namespace uwarp::nfs
