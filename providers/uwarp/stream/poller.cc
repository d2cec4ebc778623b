// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Polling on the only processor.
#include "stream/poller.h"

#include "base/tuning.h"
#include "os/call_cost.h"

namespace uwarp {

// On the only processor nothing can come as long as the caller keeps it. Where system calls are
// dear one of them looks and sleeps.
void Poller::poll_and_give_way(CompletionQueue& cq) {
  if (calls_are_dear()) {
    (void)progress_.note_polls(1);
    return progress_.nap();
  }
  const uint32_t polls = look(cq, 1) ? 0 : idle_polls_.load(std::memory_order_relaxed) + 1;
  idle_polls_.store(polls, std::memory_order_relaxed);
  if (polls % tuning::kYieldsPerNap != 0)
    sched_yield();
  else if (polls != 0)
    progress_.nap();
}

}  // namespace uwarp
