// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The running streams behind one completion queue: what ibv_poll_cq drives in place. Few streams
// are read directly, without asking epoll; of many only those that were busy lately.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/tuning.h"
#include "qp/completion_queue.h"
#include "stream/stream.h"
#include "stream/waiting_streams.h"

namespace uwarp {

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
    const PollGroup* const others = shared();
    return streams_.any() || (others != nullptr && others->streams_.any());
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
  /// There are streams that poll() does not look at: epoll must be asked now and then.
  bool needs_epoll() const {
    const PollGroup* const others = shared();
    return extra_.load(std::memory_order_relaxed) != 0 ||
           (others != nullptr && others->needs_epoll());
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
  BasicWaitingStreams<Stream, PollGroup> streams_{*this};
  std::vector<Direct> direct_;  // used in a Stay, as next_ is
  size_t next_ = 0;             // of them, where the next poll() begins
  std::atomic<size_t> extra_{0};
  std::atomic<size_t> direct_count_{0};
  std::atomic<bool> awaits_bulk_{false};
};

}  // namespace uwarp
