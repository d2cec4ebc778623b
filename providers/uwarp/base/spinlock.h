// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A lock for sections of a few dozen instructions. It spins only briefly: with few cores the
// holder may be waiting for this very core, so a waiter gives the core away soon, and sleeps in the
// end: a holder of lower real-time priority gets the core by nothing else.
#pragma once

#include <cstdint>

#include "base/atomics.h"
#include "base/thread_safety.h"

namespace uwarp {

/// To be held by a Lock. Not recursive, not fair. A thread that takes it may destroy it as soon as
/// it has let go.
class CAPABILITY("mutex") SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS {
    if (!try_lock()) lock_slow();
  }

  bool try_lock() TRY_ACQUIRE(true) { return locked_.exchange(1, std::memory_order_acquire) == 0; }

  void unlock() RELEASE() {
    locked_.store(0, std::memory_order_release);
    Atomics::wake_one(locked_);
  }

  /// True while any thread holds it. For assertions and for "is it worth trying" only.
  bool is_locked() const { return locked_.load(std::memory_order_relaxed) != 0; }

 private:
  [[gnu::noinline, gnu::cold]] void lock_slow() NO_THREAD_SAFETY_ANALYSIS {
    for (int round = 0;; ++round) {
      if (!is_locked() && try_lock()) return;
      if (round < Atomics::kSpins)
        Atomics::cpu_relax();
      else if (round < Atomics::kSpins + Atomics::kYields)
        Atomics::yield();
      else
        Atomics::sleep_while(locked_, uint32_t{1});
    }
  }

  Atomic<uint32_t> locked_{0};
};

}  // namespace uwarp
