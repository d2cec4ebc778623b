// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What fork() means to this library. A child has the memory of its parent and of its threads only
// the one that forked, so locks are as other threads have left them, and what is open or mapped is
// the parent's as well. Nothing is locked for a fork, because a signal handler may fork inside any
// function here. Instead all state of a process or a thread lies in types that know which process
// made it, and begin anew in another one:
//
//   ProcessOwn<T>    objects, each with its locks: the child makes another one
//   thread_own<T>()  the same for a thread
//   ProcessLock      a lock for what a child goes on with
//   Inherited<T>     a value that a child goes on with
//   Fact<T>          what is true for the child too
//   SerialNumbers    numbers that need only differ
//   Unforked<T>      memory that a child does not have, nor a system call that it makes (os)
//   InForkedChild    what has to be done in the child before fork() returns there
//
// tests/process_state.py finds every other variable of that life.
#pragma once

#include <atomic>
#include <cstdint>

namespace uwarp {

namespace fork_detail {
inline constinit std::atomic<uint32_t> generation{0};
}

/// How many forks lie between the first process and this one. Changes in a child before fork()
/// returns there. Any thread, signal handlers too.
inline uint32_t fork_generation() {
  return fork_detail::generation.load(std::memory_order_relaxed);
}

/// Remembers the process in which it was made.
class BirthProcess {
 public:
  /// False in a forked child: what has this mark is the parent's. Its fds are closed, and its locks
  /// may be held by threads that do not exist.
  bool is_this() const { return generation_ == fork_generation(); }

 private:
  uint32_t generation_ = fork_generation();
};

/// A function that runs in each forked child before fork() returns there. Static objects only, made
/// as the library is loaded. The function may use no lock, no memory of the heap and no fd that it
/// has not from this library: a signal handler may have forked.
class InForkedChild {
 public:
  using Run = void (*)();
  explicit InForkedChild(Run run) noexcept;
  InForkedChild(const InForkedChild&) = delete;
  InForkedChild& operator=(const InForkedChild&) = delete;

  /// All of them. By the fork handler.
  static void run_all();

 private:
  const Run run_;
  const InForkedChild* const next_;
};

}  // namespace uwarp
