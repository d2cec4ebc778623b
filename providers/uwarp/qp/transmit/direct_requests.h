// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads and Writes that need no thread of the peer, because its memory is within reach: the thread
// that sends copies between the two processes. RFC 5040 knows of no such way; the peer sees what it
// would have seen. Transmit side.
#pragma once

#include <cstdint>

#include "base/remote_memory.h"
#include "base/tuning.h"
#include "counters/page_layout.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/send_completer.h"

namespace uwarp {

class DirectRequests {
 public:
  /// What has become of the oldest waiting request. kSend: it goes over the carrier. kLater: it, or
  /// what is left of it, follows in the next turn. kWait: once all before has been placed.
  enum class Outcome : uint8_t { kDone, kLater, kWait, kSend };

 private:
  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  SendCompleter& completer_;
  StreamCounters& counters_;

  uint32_t large_run_ = 0;     // large Reads and Writes in a row
  uint32_t sent_untried_ = 0;  // so many go over the carrier, behind one that could not be copied
  uint64_t copied_bytes_ = 0;  // of the oldest waiting request
  struct {
    Outcome outcome = Outcome::kDone;  // of the last request that might have been copied
    uint64_t bytes = 0;                // copied
  } turn_;

 public:
  DirectRequests(const QpConfig& config, SendQueue& queue, StreamState& stream,
                 SendCompleter& completer, StreamCounters& counters)
      : config_(config),
        queue_(queue),
        stream_(stream),
        completer_(completer),
        counters_(counters) {}

  /// Begins a stream.
  void restart() { large_run_ = sent_untried_ = copied_bytes_ = 0; }
  void begin_turn() { turn_ = {}; }
  /// Of the last request of this turn that might have been copied.
  Outcome outcome() const { return turn_.outcome; }

  /// False: that would only find that the oldest waiting request goes over the carrier. `idle`:
  /// nothing has been built before it that has not been sent, so that it may be alone.
  bool worth_trying(bool idle) const {
    return idle || queue_.at(queue_.started()).length_bytes >= tuning::kPullBytes;
  }
  /// Copies the oldest waiting request, and those behind it that go with it, if it is a Write or
  /// Read that had better not go over the carrier. They are complete on return.
  [[gnu::noinline]] Outcome copy() { return turn_.outcome = try_copy(); }
  /// All of the oldest one goes over the carrier.
  void forget_part() { copied_bytes_ = 0; }

 private:
  Outcome try_copy();
  bool add_to(RemoteCopy& copy, uint64_t position);
};

}  // namespace uwarp
