// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A lock that a forked child finds free, also when a thread of its parent held it at that moment.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/atomics.h"
#include "base/fork.h"
#include "base/thread_safety.h"

namespace uwarp {

/// To be held by a Lock. Static variables only, for what a child goes on with: it guards data that
/// can be used in whatever state the parent left them. Rarely taken; its sections may make system
/// calls.
class CAPABILITY("mutex") ProcessLock {
 public:
  constexpr ProcessLock() = default;
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

  void lock() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS {
    for (int round = 0; !try_lock(); ++round) {
      if (round < Atomics::kYields)
        Atomics::yield();
      else
        Atomics::nap();
    }
  }
  bool try_lock() TRY_ACQUIRE(true) {
    const uint64_t own = uint64_t{fork_generation()} + 1;
    uint64_t holder = holder_.load(std::memory_order_relaxed);
    return holder != own && holder_.compare_exchange_strong(holder, own, std::memory_order_acquire,
                                                            std::memory_order_relaxed);
  }
  void unlock() RELEASE() { holder_.store(kFree, std::memory_order_release); }

 private:
  static constexpr uint64_t kFree = 0;
  /// A process by its generation, counted from 1.
  std::atomic<uint64_t> holder_{kFree};
};

}  // namespace uwarp
