// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "io/core_demand.h"

#include <utility>

#include "io/clock.h"
#include "io/thread_schedule.h"

namespace uwarp {

// The kernel may not tell how long a thread has waited; then each switch counts.
CoreDemand::Reading CoreDemand::read(bool wait_too) {
  Reading reading{now_ns(), thread_run_ns(), thread_switches().value_or(0)};
  if (wait_too) reading.waited_ns = thread_wait_ns().value_or(reading.now_ns);
  return reading;
}

bool CoreDemand::look(const Reading& reading) {
  const Reading before = std::exchange(last_, reading);
  const uint64_t lost_ns = (reading.now_ns - before.now_ns) - (reading.run_ns - before.run_ns);
  const bool long_enough =
      wanted_ ? reading.waited_ns - before.waited_ns >= kWaitNs : lost_ns >= kLossNs;
  const bool switched = reading.switches != before.switches && before.now_ns != 0;
  if (switched && long_enough) until_ns_ = reading.now_ns + kMemoryNs;
  return wanted_ = reading.now_ns < until_ns_;
}

}  // namespace uwarp
