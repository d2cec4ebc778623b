// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the hand-offs between threads are written over: types that pass work, a lock or an object's
// life from one thread to another are templates over such a policy. The product uses this one; the
// models in tests/model put one in its place whose every operation may be followed by another
// thread.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace uwarp {

/// Tells the core that this is a wait loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

struct StdAtomics {
  template <class T>
  using atomic = std::atomic<T>;
  using mutex = std::mutex;

  /// Rounds of a loop that spins with cpu_relax(), and of one that gives its core away by yield(),
  /// before the thread sleeps. A pause lasts about 40 to 140 cycles: so many cover any section that
  /// a spin lock is meant for when its holder runs, and are cheaper than a system call when it does
  /// not. Where yielding does not help (the holder has a lower real-time priority) only sleep does.
  static constexpr int kSpins = 100;
  static constexpr int kYields = 100;

  /// In loops that end by themselves.
  static void cpu_relax() { uwarp::cpu_relax(); }
  /// Also in loops that end only if another thread changes something.
  static void yield() { sched_yield(); }

  /// Threads that sleep in sleep_while(), or are about to.
  static inline std::atomic<uint32_t> sleepers{0};
  /// Sleeps while `word` has `value`. A thread that changes it by a plain store calls wake_one().
  /// May return early.
  template <class T>
  static void sleep_while(const std::atomic<T>& word, T value) {
    sleepers.fetch_add(1);
    fence_all_threads() ? word.wait(value) : nap();
    sleepers.fetch_sub(1);
  }
  /// After a store to `word`, which may be gone meanwhile: only its address is used.
  template <class T>
  static void wake_one(std::atomic<T>& word) {
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
