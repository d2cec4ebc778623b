// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a poll of an empty completion queue does in the caller: looks at the sockets behind the
// queue, now and then at everything else, and gives its core up where other threads need it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/thread_own.h"
#include "base/tuning.h"
#include "progress/progress.h"
#include "qp/completion_queue.h"
#include "stream/stream.h"
#include "stream/waiting_streams.h"

namespace uwarp {

// Whether other threads want the core of a thread that polls. While it keeps the core they wait for
// whole time slices. One of them may be the peer, or a thread for which the peer waits.

/// Belongs to one thread.
class CpuContention {
 public:
  /// Of the calling thread.
  struct Reading {
    uint64_t now_ns;
    uint64_t run_ns;    // on a core, so far
    uint64_t switches;  // to other threads, while this one could have gone on
  };

  /// To be asked at each poll that finds nothing.
  bool wanted() {
    if (++polls_ % tuning::kPollsPerCheck == 0) [[unlikely]]
      check(read());
    return wanted_;
  }
  bool check(const Reading& reading);

 private:
  static Reading read();

  uint32_t polls_ = 0;
  bool wanted_ = false;
  uint64_t until_ns_ = 0;
  Reading last_{};
};

// The running streams behind one completion queue: what ibv_poll_cq drives in place. Few streams
// are read directly, without asking epoll; of many only those that were busy lately.

/// The completion queue points to it, so that it is found by one load, and frees it.
class PollGroup final : public CompletionQueueDriver {
 public:
  /// The group of `cq`, made at first use.
  static PollGroup& of(CompletionQueue& cq);
  static PollGroup* find(CompletionQueue& cq) {
    return static_cast<PollGroup*>(cq.driver.load(std::memory_order_acquire));
  }

  /// Polls of this group look at `others` too, which serve several queues. Once, before use;
  /// `others` outlives this group.
  void share(PollGroup& others) { others_.store(&others, std::memory_order_release); }

  void add(Stream& stream);
  /// Takes `stream` off both lists; on return no poller uses it. Not from inside a turn.
  void remove(Stream& stream);
  /// `stream` has had traffic that epoll reported.
  void note_busy(Stream& stream);

  /// Notes that something has been posted to `stream` that waits for more. Under its transmit side.
  void add_waiting(Stream& stream) { streams_.post(stream); }
  bool has_waiting() const {
    return streams_.any() || (shared() != nullptr && shared()->streams_.any());
  }
  /// Sends what waits.
  void transmit_waiting();

  /// Drives the streams in the caller. Returns how many bytes came.
  size_t poll();
  /// On return its streams have completed what the peers have acknowledged, also where another
  /// thread has received the acknowledgement. Call without locks.
  void take_acknowledgements();
  /// One of the streams that the last poll() looked at awaits a large message, or room for one.
  bool awaits_bulk() const {
    const PollGroup* const others = shared();
    return awaits_bulk_.load(std::memory_order_relaxed) ||
           (others != nullptr && others->awaits_bulk());
  }
  /// The peer of the stream that the next poll() begins with cannot go on as long as the caller
  /// keeps its core; see Stream.
  bool shares_core();
  /// All peers were on other cores than the caller's when they sent last. False if it is not known.
  bool peers_elsewhere();
  /// There are streams that poll() does not look at: epoll must be asked now and then.
  bool needs_epoll() const {
    return extra_.load() != 0 || (shared() != nullptr && shared()->needs_epoll());
  }
  /// All that poll() looks at are silent: epoll must be asked whenever it finds nothing.
  bool prefers_epoll() const {
    const PollGroup* const others = shared();
    return direct_count_.load(std::memory_order_relaxed) == 0 &&
           (others == nullptr || others->prefers_epoll());
  }

 private:
  struct Direct {
    Stream* stream;
    uint32_t idle_turns;
  };
  PollGroup* shared() const { return others_.load(std::memory_order_acquire); }
  void transmit_own();
  size_t poll_own();
  void publish_extra_locked();

  std::atomic<PollGroup*> others_{nullptr};
  WaitingStreams<Stream, PollGroup> streams_{*this};
  std::vector<Direct> direct_;  // used in a Stay, as next_ is
  size_t next_ = 0;             // of them, where the next poll() begins
  std::atomic<size_t> extra_{0};
  std::atomic<size_t> direct_count_{0};
  std::atomic<bool> awaits_bulk_{false};
};

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
    else if (!check(cq, 1))
      give_way_if_wanted(cq);
  }
  /// The same after the caller has sent `bytes` of payload.
  void poll_after_sending(CompletionQueue& cq, uint64_t bytes) {
    const uint32_t polls = 1 + polls_during(bytes);
    if (one_processor_) [[unlikely]]
      (void)progress_.note_polls(polls);
    else
      (void)check(cq, polls);
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
  bool check(CompletionQueue& cq, uint32_t polls) {
    const uint32_t count = progress_.note_polls(polls);
    PollGroup* group = PollGroup::find(cq);
    const size_t received = group != nullptr ? group->poll() : 0;
    if (const uint32_t more = polls_during(received); more != 0) [[unlikely]]
      progress_.note_polls(more);
    // What is not read directly: other queues, handshakes, deadlines, writability.
    const bool only_direct = group != nullptr && !group->needs_epoll();
    if (only_direct) {
      // Room in a full socket is told by epoll alone.
      if (count % tuning::kPollsPerPass < polls)
        group->awaits_bulk() ? progress_.pass_or_give_way() : progress_.pass_unless_served();
      return received != 0;
    }
    const bool silent = received == 0 && (group == nullptr || group->prefers_epoll());
    if (silent || count % tuning::kPollsPerMixedPass < polls) progress_.pass_or_give_way();
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
