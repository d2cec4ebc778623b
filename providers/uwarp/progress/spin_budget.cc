// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/spin_budget.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/tuning.h"
#include "os/clock.h"
#include "os/thread_switches.h"

namespace uwarp {

bool SpinBudget::start() {
  if (spin_ns_ == 0) return false;
  const uint64_t now = now_ns();
  end_ns_ = now + spin_ns_;
  return now >= not_before_ns_;
}

bool SpinBudget::go_on() {
  const uint64_t before = now_ns();
  sched_yield();
  const uint64_t now = now_ns();
  if (now - before < tuning::kYieldNs || !others_ran()) return now < end_ns_;
  pause_ns_ = std::clamp(2 * pause_ns_, tuning::kBelievedNs, tuning::kLongestSpinPauseNs);
  not_before_ns_ = now + pause_ns_;
  return false;
}

void SpinBudget::found() {
  pause_ns_ /= 2;
  end_ns_ = now_ns() + spin_ns_;
}

bool SpinBudget::others_ran() {
  const auto switches = thread_switches();
  return !switches || std::exchange(switches_, *switches) != *switches;
}

}  // namespace uwarp
