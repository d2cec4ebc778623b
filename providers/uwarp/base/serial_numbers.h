// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Numbers that need only differ from each other within a process. A forked child goes on counting.
#pragma once

#include <atomic>

namespace uwarp {

/// A static variable; constant-initialised. Any thread.
template <typename T>
class SerialNumbers {
 public:
  constexpr explicit SerialNumbers(T first = 1) noexcept : next_(first) {}
  T next() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<T> next_;
};

}  // namespace uwarp
