// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the kernel says of the calling thread.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "os/raw_call.h"

namespace uwarp {

/// How often the scheduler has taken the core away from a thread that could have gone on: its
/// involuntary switches so far; a yield to another thread counts. Nullopt if the kernel does not
/// tell.
inline std::optional<uint64_t> thread_switches() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return std::nullopt;
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

/// The kernel's name for the thread.
inline pid_t thread_id() { return static_cast<pid_t>(raw_call(SYS_gettid)); }

}  // namespace uwarp
