// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether what has been posted goes out at once or waits for more. A system call costs as much as
// posting twenty small messages. A thread that posts one right after the other pays it once for
// several, and so does a thread that polls for outstanding answers. A thread that posts now and
// then is never made to wait. Time in, decision out.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/tuning.h"

namespace uwarp {

/// What one call has posted.
struct Posted {
  uint32_t messages = 0;
  uint64_t bytes = 0;      // of payload, with which it goes out, in all
  uint64_t second_ns = 0;  // when the second of several was posted; 0: not known

  /// One more; the caller adds its bytes. `clock()` is the time in ns.
  template <typename Clock>
  void add(Clock clock) {
    if (++messages == 2) second_ns = clock();
  }
};

/// One per queue pair. Any thread; threads that post at once may blur the figures, not the outcome.
class PostCoalescer {
 public:
  /// A system call takes `call_ns`.
  explicit PostCoalescer(uint64_t call_ns = 0)
      : dense_gap_ns_(tuning::kDenseGapNs + tuning::kDenseCalls * call_ns) {}

  /// `posted` has just been posted; `clock()` is the time in ns; `answers_due`: the peer owes
  /// answers, for which the application must poll. True if it may wait; otherwise the caller
  /// transmits and calls sent().
  template <typename Clock>
  bool may_wait(Clock clock, const Posted& posted, bool answers_due) {
    const uint32_t run = run_.load(std::memory_order_relaxed);
    const bool poll_near = answers_due && expects_poll();
    const uint64_t now_ns = clock();
    // The gap is before the call. To post a long list takes longer than a gap.
    const uint64_t begun_ns = posted.second_ns != 0 ? posted.second_ns : now_ns;
    const uint64_t gap_ns = begun_ns - last_ns_.load(std::memory_order_relaxed);
    last_ns_.store(now_ns, std::memory_order_relaxed);
    const bool dense = note_gap(gap_ns, run);
    if (!(dense || poll_near) || posted.bytes > tuning::kLargePostBytes) return false;
    const uint32_t waiting = messages_.load(std::memory_order_relaxed) + posted.messages;
    const uint64_t waiting_bytes = bytes_.load(std::memory_order_relaxed) + posted.bytes;
    if (waiting >= tuning::kWaitingMessages || waiting_bytes >= tuning::kTurnBytes) return false;
    messages_.store(waiting, std::memory_order_relaxed);
    bytes_.store(waiting_bytes, std::memory_order_relaxed);
    if (!dense) for_poll_.store(true, std::memory_order_relaxed);
    return true;
  }

  /// Bytes of payload that go out with the next post that may not wait.
  uint64_t waiting_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// What waited is about to go: a thread polls, or its time is over.
  template <typename Clock>
  void waited(Clock clock) {
    if (!for_poll_.load(std::memory_order_relaxed)) return;
    for_poll_.store(false, std::memory_order_relaxed);
    if (clock() - last_ns_.load(std::memory_order_relaxed) <= tuning::kPromptNs) {
      next_at_once_.store(tuning::kFewestAtOnce, std::memory_order_relaxed);
      return;
    }
    const uint32_t count = next_at_once_.load(std::memory_order_relaxed);
    at_once_.store(count, std::memory_order_relaxed);
    next_at_once_.store(std::min(2 * count, tuning::kMostAtOnce), std::memory_order_relaxed);
  }
  /// All that had been posted has been handed over.
  void sent(uint64_t now_ns) {
    last_ns_.store(now_ns, std::memory_order_relaxed);
    messages_.store(0, std::memory_order_relaxed);
    bytes_.store(0, std::memory_order_relaxed);
  }

 private:
  bool expects_poll() {
    const uint32_t left = at_once_.load(std::memory_order_relaxed);
    if (left == 0) [[likely]]
      return true;
    at_once_.store(left - 1, std::memory_order_relaxed);
    return false;
  }
  /// True within a run that is long enough.
  bool note_gap(uint64_t gap_ns, uint32_t run) {
    if (gap_ns > dense_gap_ns_) {
      // A thread that sent in bulk a moment ago will do so again, but this post may be the last
      // now.
      run_.store(run / 2, std::memory_order_relaxed);
      return false;
    }
    if (run < tuning::kLongestRun) run_.store(run + 1, std::memory_order_relaxed);
    return run >= tuning::kDenseRun;
  }

  const uint64_t dense_gap_ns_;
  std::atomic<uint64_t> last_ns_{0};  // end of the last post
  std::atomic<uint32_t> run_{0};      // posts in a row, each right after the one before
  std::atomic<uint32_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> for_poll_{false};  // something waits only because a poll is expected
  std::atomic<uint32_t> at_once_{tuning::kFewestAtOnce};  // posts that no poll is expected for
  std::atomic<uint32_t> next_at_once_{2 * tuning::kFewestAtOnce};
};

}  // namespace uwarp
