// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What another thread of the process does.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace uwarp {

// How often the scheduler has taken the core away from a thread that could have gone on.

/// Involuntary switches of the calling thread so far; a yield to another thread counts. Nullopt if
/// the kernel does not tell.
inline std::optional<uint64_t> thread_switches() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return std::nullopt;
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

/// The kernel's name for the calling thread.
pid_t thread_id();

struct ThreadActivity {
  /// It runs, or would if it had a core. False also if there is no such thread any more, or the
  /// kernel does not tell (no /proc).
  bool runnable = false;
  uint64_t ran_ns = 0;  ///< how long it has run in its life
};

/// Some microseconds. By raw system calls: any thread may call it, under any locks.
ThreadActivity thread_activity(pid_t thread);

}  // namespace uwarp
