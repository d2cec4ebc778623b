// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The one clock of the engine: monotonic nanoseconds. Beside it the processor's counter, for the
// hot path, and the time of day, for people.
#pragma once

#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <cstdint>

#include "base/tuning.h"

namespace uwarp {

inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerSecond = 1'000'000'000;

/// A span as system calls take it.
inline timespec timespec_of(uint64_t ns) {
  return {.tv_sec = static_cast<time_t>(ns / kNsPerSecond),
          .tv_nsec = static_cast<long>(ns % kNsPerSecond)};
}

inline uint64_t ns_of(const timespec& span) {
  return static_cast<uint64_t>(span.tv_sec) * kNsPerSecond + static_cast<uint64_t>(span.tv_nsec);
}

/// Nanoseconds since some point in the past; never goes back. Never 0.
inline uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return ns_of(now);
}

/// The processor's counter in units of about a nanosecond, for short spans whose length matters by
/// order only: x86 does not say how fast it counts (1.5 to 4 GHz, taken for 2), and two cores may
/// differ. Never a system call, as now_ns() is where the kernel does not trust the counter: in many
/// virtual machines, for some microseconds.
inline uint64_t rough_ns() {
#if defined(__x86_64__)
  return __rdtsc() / 2;
#elif defined(__aarch64__)
  uint64_t count;
  uint64_t per_second;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  asm volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
  if (per_second == 0 || per_second > kNsPerSecond) return count;
  return count * (kNsPerSecond / per_second);
#else
  return now_ns();
#endif
}

/// The least that `call()` takes of a few times: the first one may have to load a page.
template <typename Call>
uint64_t cost_ns(Call call) {
  uint64_t least = kNsPerSecond;
  for (int i = 0; i < 8; ++i) {
    const uint64_t before = rough_ns();
    call();
    const uint64_t cost = rough_ns() - before;
    if (cost < least) least = cost;
  }
  return least;
}
/// A look at the clock is a system call, or worse: not for every post.
inline bool find_whether_clock_is_dear() noexcept {
  return cost_ns([] { (void)now_ns(); }) > tuning::kDearClockNs;
}
inline const bool clock_is_dear = find_whether_clock_is_dear();

/// The clock for spans of microseconds on the hot path: now_ns(), or rough_ns() where that is dear.
inline uint64_t span_ns() { return clock_is_dear ? rough_ns() : now_ns(); }

/// Nanoseconds for which the calling thread has run.
inline uint64_t thread_run_ns() {
  timespec run{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &run);
  return ns_of(run);
}

/// Nanoseconds since 1970. May jump.
inline uint64_t wall_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return ns_of(now);
}

}  // namespace uwarp
