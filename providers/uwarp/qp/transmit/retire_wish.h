// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The receive side asks the transmit side to complete what has gone.
#pragma once

#include <cstdint>

#include "base/atomics.h"

namespace uwarp {

template <class Atomics = StdAtomics>
class BasicRetireWish {
 public:
  uint32_t ask() { return asked_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  bool granted(uint32_t wish) const {
    return static_cast<int32_t>(granted_.load(std::memory_order_acquire) - wish) >= 0;
  }
  /// Transmit side: what has been asked, before it looks at what has gone, ...
  uint32_t asked() const { return asked_.load(std::memory_order_acquire); }
  /// ... and once it has completed that.
  void grant(uint32_t asked) {
    if (asked != granted_.load(std::memory_order_relaxed)) [[unlikely]]
      granted_.store(asked, std::memory_order_release);
  }

 private:
  typename Atomics::template atomic<uint32_t> asked_{0};
  typename Atomics::template atomic<uint32_t> granted_{0};
};

using RetireWish = BasicRetireWish<>;

}  // namespace uwarp
