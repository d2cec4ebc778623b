// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Until when something waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "os/clock.h"

namespace uwarp {

/// A moment of the monotonic clock in nanoseconds; 0: nothing is waited for.
struct Deadline {
  uint64_t at_ns = 0;

  static Deadline after_ms(uint32_t wait_ms) { return {now_ns() + wait_ms * kNsPerMs}; }

  explicit operator bool() const { return at_ns != 0; }
  /// True once when it has passed.
  bool take_passed(uint64_t now_ns) {
    if (at_ns == 0 || at_ns > now_ns) return false;
    at_ns = 0;
    return true;
  }
};

/// The first of them that is waited for.
inline Deadline earliest(std::initializer_list<Deadline> deadlines) {
  // What is not waited for becomes the last of all.
  return std::min(deadlines, [](Deadline a, Deadline b) { return a.at_ns - 1 < b.at_ns - 1; });
}

}  // namespace uwarp
