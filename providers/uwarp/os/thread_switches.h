// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How often the scheduler has taken the core away from a thread that could have gone on.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>

namespace uwarp {

/// Involuntary switches of the calling thread so far; a yield to another thread counts. Nullopt if
/// the kernel does not tell.
inline std::optional<uint64_t> thread_switches() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return std::nullopt;
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

}  // namespace uwarp
