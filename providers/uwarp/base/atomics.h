// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the hand-offs between threads are written over: types that pass work, a lock or an object's
// life from one thread to another are templates over such a policy. The product uses this one; the
// models in tests/model put one in its place whose every operation may be followed by another
// thread.
#pragma once

#include <sched.h>

#include <atomic>
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
  /// not.
  static constexpr int kSpins = 100;
  static constexpr int kYields = 100;

  /// In loops that end by themselves.
  static void cpu_relax() { uwarp::cpu_relax(); }
  /// Also in loops that end only if another thread changes something.
  static void yield() { sched_yield(); }
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

}  // namespace uwarp
