// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/helper_affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/tuning.h"
#include "os/clock.h"

namespace uwarp {
namespace {

/// sched_setattr(2). Not in glibc before 2.41, and Linux's own header clashes with it.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns;
  uint64_t deadline_ns;
  uint64_t period_ns;
};

// For a moment the thread may run on `core` only, which moves it there. Afterwards it stays.
void move_to(int core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0)
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace

HelperAffinity::HelperAffinity() {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = tuning::kHelperTurnNs;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

bool HelperAffinity::woken(uint64_t now_ns, int own, int waker) {
  const uint64_t turn_ns = now_ns - last_ns_;
  const bool soon = turn_ns <= tuning::kSoonNs && now_ns - asleep_ns_ >= turn_ns / 4 * 3;
  last_ns_ = now_ns;
  if (waker < 0 || own < 0 || waker == own) {
    misses_ = 0;
    return false;
  }
  misses_ = soon ? misses_ + 1 : 1;
  if (misses_ < tuning::kMisses || now_ns < not_before_ns_) return false;
  misses_ = 0;
  not_before_ns_ = now_ns + tuning::kBelievedNs;
  return true;
}

bool HelperAffinity::looks() { return misses_ != 0 || ++wake_ups_ % tuning::kWakeUpsPerLook == 0; }

void HelperAffinity::woken_from(int waker) {
  if (woken(now_ns(), sched_getcpu(), waker)) move_to(waker);
}

}  // namespace uwarp
