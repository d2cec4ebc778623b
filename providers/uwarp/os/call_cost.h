// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a system call takes by itself: some tenths of a microsecond, or many microseconds where
// something other than the kernel stands between, as in User Mode Linux and in some sandboxes.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/settings.h"
#include "base/tuning.h"
#include "os/clock.h"

namespace uwarp {

/// By rough_ns(), of one that does nothing. Measured at the first call.
inline uint64_t call_cost_ns() {
  static const uint64_t cost = cost_ns([] { (void)syscall(SYS_getppid); });
  return cost;
}
/// Fewer of them are worth more than what they are for: caches kept warm, turns kept short. Reads
/// the settings, which takes memory: a function, so that loading the library does not.
inline bool calls_are_dear() {
  static const bool dear = settings().calls == CallCost::kMeasured
                               ? call_cost_ns() > tuning::kDearCallNs
                               : settings().calls == CallCost::kDear;
  return dear;
}

}  // namespace uwarp
