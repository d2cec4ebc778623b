// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The one clock of the engine: monotonic nanoseconds. And the time of day, for people.
#pragma once

#include <time.h>

#include <cstdint>

namespace uwarp {

inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerSecond = 1'000'000'000;

/// Nanoseconds since some point in the past; never goes back. Never 0.
inline uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

/// Nanoseconds for which the calling thread has run.
inline uint64_t thread_run_ns() {
  timespec run{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &run);
  return static_cast<uint64_t>(run.tv_sec) * kNsPerSecond + static_cast<uint64_t>(run.tv_nsec);
}

/// Nanoseconds since 1970. May jump.
inline uint64_t wall_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace uwarp
