// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a system call takes by itself: some tenths of a microsecond, or many microseconds where
// something other than the kernel stands between, as in User Mode Linux and in some sandboxes.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/fact.h"
#include "base/settings.h"
#include "base/tuning.h"
#include "os/clock.h"

namespace uwarp {

/// By rough_ns(), of one that does nothing. Measured at the first call.
inline uint32_t call_cost_ns() {
  static constinit Fact<uint32_t> cost;
  return cost.get([] {
    const uint64_t measured = cost_ns([] { (void)syscall(SYS_getppid); });
    return static_cast<uint32_t>(std::min<uint64_t>(measured, UINT32_MAX));
  });
}
/// Fewer of them are worth more than what they are for: caches kept warm, turns kept short. Reads
/// the settings, which takes memory: a function, so that loading the library does not.
inline bool calls_are_dear() {
  static constinit Fact<bool> dear;
  return dear.get([] {
    return settings().calls == CallCost::kMeasured ? call_cost_ns() > tuning::kDearCallNs
                                                   : settings().calls == CallCost::kDear;
  });
}

}  // namespace uwarp
