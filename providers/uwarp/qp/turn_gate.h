// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Who may use one direction of a queue pair. A thread that finds it busy leaves a mark instead of
// waiting, and the holder goes round again: nobody waits for another thread's system call.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/spinlock.h"

namespace uwarp {

class TurnGate {
 public:
  /// Takes the side, or marks that its holder must look again and returns false.
  bool try_begin() {
    State seen = kFree;
    for (;;) {
      if (seen == kFree) {
        if (state_.compare_exchange_weak(seen, kBusy, std::memory_order_acq_rel)) return true;
      } else if (seen == kExclusive) {
        sched_yield();  // a flush or the like, soon over and without a pump behind it
        seen = state_.load(std::memory_order_acquire);
      } else if (state_.compare_exchange_weak(seen, kBusyAgain, std::memory_order_acq_rel)) {
        return false;
      }
    }
  }
  /// Takes the side if it is free, without a mark: for who comes again anyway.
  bool try_lock() {
    State seen = kFree;
    return state_.compare_exchange_strong(seen, kBusy, std::memory_order_acq_rel);
  }
  /// Some thread has the side. It may change at once.
  bool taken() const { return state_.load(std::memory_order_acquire) != kFree; }
  /// Gives it back. True: somebody left a mark since try_begin().
  bool end() { return state_.exchange(kFree, std::memory_order_acq_rel) == kBusyAgain; }

  /// Waits for the side. For control operations only.
  void lock() {
    int spins = 0;
    for (State seen = kFree;
         !state_.compare_exchange_weak(seen, kExclusive, std::memory_order_acq_rel); seen = kFree)
      ++spins < 100 ? cpu_relax() : void(sched_yield());
  }
  void unlock() { state_.store(kFree, std::memory_order_release); }

 private:
  enum State : uint32_t { kFree, kBusy, kBusyAgain, kExclusive };
  std::atomic<State> state_{kFree};
};

}  // namespace uwarp
