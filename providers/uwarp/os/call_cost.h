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

/// By rough_ns(), of one that does nothing.
inline const uint64_t call_cost_ns = cost_ns([] { (void)syscall(SYS_getppid); });
/// Fewer of them are worth more than what they are for: caches kept warm, turns kept short.
inline const bool calls_are_dear = settings().calls == CallCost::kMeasured
                                       ? call_cost_ns > tuning::kDearCallNs
                                       : settings().calls == CallCost::kDear;

}  // namespace uwarp
