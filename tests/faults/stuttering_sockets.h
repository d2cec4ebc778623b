// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// System calls of this program and its libraries that behave in ways that are allowed but rare.
#pragma once

#include <cstdint>

/// While one exists, every socket call may be interrupted, every send may take only a few bytes or
/// find the kernel without memory, and epoll reports its events in any order.
class StutteringSockets {
 public:
  /// The same seed and the same calls give the same behaviour.
  explicit StutteringSockets(uint32_t seed);
  ~StutteringSockets();
  StutteringSockets(const StutteringSockets&) = delete;
  StutteringSockets& operator=(const StutteringSockets&) = delete;

  /// How often each of these has happened so far.
  struct Counts {
    uint32_t interrupted, shortened, without_memory, shuffled;
  };
  Counts counts() const;
};
