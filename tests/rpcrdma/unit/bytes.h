// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Bytes written as hexadecimal digits, with blanks where they help.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace rpcrdma {

using Bytes = std::vector<std::byte>;

inline Bytes hex(std::string_view digits) {
  Bytes bytes;
  int high = -1;
  for (const char c : digits) {
    if (c == ' ' || c == '\n') continue;
    const int value = c <= '9' ? c - '0' : c - 'a' + 10;
    if (high < 0) {
      high = value;
    } else {
      bytes.push_back(static_cast<std::byte>(high << 4 | value));
      high = -1;
    }
  }
  return bytes;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace rpcrdma
