// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/cpu_contention.h"

#include <utility>

#include "base/tuning.h"
#include "os/clock.h"
#include "os/thread_switches.h"

namespace uwarp {

CpuContention::Reading CpuContention::read() {
  return {now_ns(), thread_run_ns(), thread_switches().value_or(0)};
}

bool CpuContention::look(const Reading& reading) {
  const Reading before = std::exchange(last_, reading);
  if (before.now_ns == 0) return false;
  const uint64_t elapsed_ns = reading.now_ns - before.now_ns;
  const uint64_t lost_ns = elapsed_ns - (reading.run_ns - before.run_ns);
  const uint64_t switches = reading.switches - before.switches;
  const bool taken =
      wanted_ ? switches * tuning::kSwitchNs >= elapsed_ns : lost_ns >= tuning::kLossNs;
  if (taken && switches != 0) until_ns_ = reading.now_ns + tuning::kBelievedNs;
  return wanted_ = reading.now_ns < until_ns_;
}

}  // namespace uwarp
