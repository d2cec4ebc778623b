// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A lock for sections of a few dozen instructions. It spins only briefly: with few cores the
// holder may be waiting for this very core, so a waiter gives the core away soon.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/atomics.h"

namespace uwarp {

/// Lockable (lock, try_lock, unlock), so std::lock_guard and std::unique_lock take it.
/// Not recursive, not fair.
template <class Atomics = StdAtomics>
class BasicSpinLock {
 public:
  BasicSpinLock() = default;
  BasicSpinLock(const BasicSpinLock&) = delete;
  BasicSpinLock& operator=(const BasicSpinLock&) = delete;

  void lock() {
    if (try_lock()) [[likely]]
      return;
    lock_slow();
  }

  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }

  void unlock() { locked_.store(false, std::memory_order_release); }

  /// True while anybody holds it. For assertions and for "is it worth trying" only.
  bool is_locked() const { return locked_.load(std::memory_order_relaxed); }

 private:
  // A pause lasts about 40 to 140 cycles: some 100 of them cover any section this lock is meant
  // for when the holder runs, and are cheaper than a system call when it does not.
  static constexpr int kSpinsBeforeYield = Atomics::kSpins;

  [[gnu::noinline]] void lock_slow() {
    for (int spins = 0;; ++spins) {
      if (!locked_.load(std::memory_order_relaxed) && try_lock()) return;
      if (spins < kSpinsBeforeYield) {
        Atomics::cpu_relax();
      } else {
        Atomics::yield();
      }
    }
  }

  typename Atomics::template atomic<bool> locked_{false};
};

using SpinLock = BasicSpinLock<>;

}  // namespace uwarp
