// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// System calls of this program and its libraries that do what they may, though they seldom do it.
#pragma once

#include <cstdint>

/// While one lives, every socket call may be interrupted, every send may take a few bytes only or
/// find the kernel without memory, and epoll tells what it has in any order.
class StutteringSockets {
 public:
  /// The same course for the same seed and the same calls.
  explicit StutteringSockets(uint32_t seed);
  ~StutteringSockets();
  StutteringSockets(const StutteringSockets&) = delete;
  StutteringSockets& operator=(const StutteringSockets&) = delete;

  /// How often each of it happened so far.
  struct Counts {
    uint32_t interrupted, shortened, without_memory, shuffled;
  };
  Counts counts() const;
};
