// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the hand-offs between threads are made of: types that pass work, a lock or an object's life
// from one thread to another use no other atomics, and no other ways to wait. tests/model compiles
// these types with its own, behind whose every operation another thread may go on.
#pragma once

#ifdef UWARP_MODEL
#include "model/explorer.h"
#else

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace uwarp {

template <class T>
using Atomic = std::atomic<T>;

struct Atomics {
  /// Rounds of a loop that spins with cpu_relax(), and of one that gives its core away by yield(),
  /// before the thread sleeps. A pause lasts about 40 to 140 cycles: so many cover any section that
  /// a spin lock is meant for when its holder runs, and are cheaper than a system call when it does
  /// not. Where yielding does not help (the holder has a lower real-time priority) only sleep does.
  static constexpr int kSpins = 100;
  static constexpr int kYields = 100;

  /// Cache lines that a count which many threads make has, so that few of them write the same one.
  static constexpr size_t kStripes = 16;

  /// Tells the core that this is a wait loop, which ends by itself.
  static void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }
  /// Also in loops that end only if another thread changes something.
  static void yield() { sched_yield(); }

  /// Threads that sleep in sleep_while(), or are about to.
  static inline Atomic<uint32_t> sleepers{0};
  /// Sleeps while `word` has `value`. A thread that changes it by a plain store calls wake_one().
  /// May return early.
  template <class T>
  static void sleep_while(const Atomic<T>& word, T value) {
    sleepers.fetch_add(1);
    fence_all_threads() ? word.wait(value) : nap();
    sleepers.fetch_sub(1);
  }
  /// After a store to `word`, which may be gone meanwhile: only its address is used.
  template <class T>
  static void wake_one(Atomic<T>& word) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]]
      word.notify_one();
  }
  /// For loops that have yielded in vain, where no word says when to go on.
  static void nap();

 private:
  /// A full barrier in each thread of the process, in place of one between store and load in
  /// wake_one(), where it would cost every unlock some 20 cycles. False: the kernel has none.
  static bool fence_all_threads();
};

}  // namespace uwarp

#endif
