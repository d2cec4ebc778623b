// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// SQD: new requests wait, and the application may want to know when those that run are done. Both
// are one word, so that no thread sees the one without the other.
#pragma once

#include <cstdint>

#include "base/atomics.h"

namespace uwarp {

template <class Atomics = StdAtomics>
class BasicSendDrain {
 public:
  /// New requests wait from now on. The caller has the transmit side, so that the last request
  /// retires before this or after it, and calls due() before it lets go.
  void begin(bool notify) {
    word_.store(notify ? kPaused | kNotify : kPaused, std::memory_order_release);
  }
  /// Requests start again, and no thread is told. Any thread.
  void end() { word_.store(0, std::memory_order_release); }
  /// As it is but for the notification.
  void forget() { word_.fetch_and(kPaused, std::memory_order_relaxed); }
  bool paused() const { return word_.load(std::memory_order_acquire) != 0; }
  /// For the thread with the transmit side, whenever requests may have retired. True once, if a
  /// notification is wanted and `drained()`: the caller raises it.
  template <class Drained>
  bool due(Drained&& drained) {
    return (word_.load(std::memory_order_relaxed) & kNotify) != 0 && drained() &&
           (word_.fetch_and(kPaused, std::memory_order_acq_rel) & kNotify) != 0;
  }

 private:
  enum : uint32_t { kPaused = 1, kNotify = 2 };  // the latter only with the former
  typename Atomics::template atomic<uint32_t> word_{0};
};

using SendDrain = BasicSendDrain<>;

}  // namespace uwarp
