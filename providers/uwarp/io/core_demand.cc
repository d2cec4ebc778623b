// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "io/core_demand.h"

#include <utility>

#include "io/clock.h"
#include "io/thread_switches.h"

namespace uwarp {

CoreDemand::Reading CoreDemand::read() {
  return {now_ns(), thread_run_ns(), thread_switches().value_or(0)};
}

bool CoreDemand::look(const Reading& reading) {
  const Reading before = std::exchange(last_, reading);
  const uint64_t lost_ns = (reading.now_ns - before.now_ns) - (reading.run_ns - before.run_ns);
  const bool switched = reading.switches != before.switches && before.now_ns != 0;
  if (switched && (wanted_ || lost_ns >= kLossNs)) until_ns_ = reading.now_ns + kMemoryNs;
  return wanted_ = reading.now_ns < until_ns_;
}

}  // namespace uwarp
