// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a poll of an empty completion queue does in the caller: looks at the sockets behind the
// queue, now and then at everything else, and gives its core up where other threads need it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/thread_own.h"
#include "base/tuning.h"
#include "progress/cpu_contention.h"
#include "progress/progress.h"
#include "stream/poll_group.h"

namespace uwarp {

/// All calls from any thread. None blocks, but the caller may give its core up.
class Poller {
 public:
  /// `one_processor`: all that the process may use.
  Poller(Progress& progress, bool one_processor)
      : progress_(progress), one_processor_(one_processor) {}

  /// Drives the sockets in the caller: called by ibv_poll_cq when `cq` is empty.
  void poll(CompletionQueue& cq) {
    if (one_processor_) [[unlikely]]
      poll_and_give_way(cq);
    else if (!look(cq, 1))
      give_way_if_wanted(cq);
  }
  /// The same after the caller has sent `bytes` of payload.
  void poll_after_sending(CompletionQueue& cq, uint64_t bytes) {
    const uint32_t polls = 1 + polls_during(bytes);
    if (one_processor_) [[unlikely]]
      (void)progress_.note_polls(polls);
    else
      (void)look(cq, polls);
  }
  /// Sends what was posted to queue pairs of `cq` and waits for more: called by ibv_poll_cq and
  /// ibv_req_notify_cq.
  static void transmit_waiting(CompletionQueue& cq) {
    PollGroup* group = PollGroup::find(cq);
    if (group != nullptr && group->has_waiting()) group->transmit_waiting();
  }

 private:
  /// As many as take the time in which so many bytes are sent or received.
  static uint32_t polls_during(uint64_t bytes) {
    return static_cast<uint32_t>(bytes / tuning::kBytesPerPoll);
  }
  /// After something that has taken as long as `polls` polls. True if a queue pair of `cq` had
  /// received something.
  bool look(CompletionQueue& cq, uint32_t polls) {
    const uint32_t count = progress_.note_polls(polls);
    PollGroup* group = PollGroup::find(cq);
    const size_t received = group != nullptr ? group->poll() : 0;
    if (const uint32_t more = polls_during(received); more != 0) [[unlikely]]
      progress_.note_polls(more);
    // What is not read directly: other queues, handshakes, deadlines, writability.
    const bool only_direct = group != nullptr && !group->needs_epoll();
    const uint32_t polls_per_pass =
        only_direct ? tuning::kPollsPerPass : tuning::kPollsPerMixedPass;
    const bool silent =
        received == 0 && !only_direct && (group == nullptr || group->prefers_epoll());
    if (silent || count % polls_per_pass < polls) (void)progress_.pass();
    return received != 0;
  }
  void poll_and_give_way(CompletionQueue& cq);
  // If the peer wants the core, a yield is all it needs. If other threads want it, a poller of
  // small messages does better to keep it: asleep it would have to get the core back for each
  // message.
  void give_way_if_wanted(CompletionQueue& cq) {
    PollGroup* group = PollGroup::find(cq);
    if (group == nullptr || !thread_own<CpuContention>().wanted()) return;
    if (group->shares_core())
      sched_yield();
    else if (group->awaits_bulk())
      progress_.nap();
  }

  Progress& progress_;
  const bool one_processor_;
  std::atomic<uint32_t> idle_polls_{0};
};

}  // namespace uwarp
