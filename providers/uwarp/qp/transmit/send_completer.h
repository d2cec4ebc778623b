// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completes send requests, in posting order: what has gone and has its answer with success, and all
// the rest when the queue pair fails. Transmit side, but for what says otherwise.
#pragma once

#include <cstdint>
#include <optional>

#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/acknowledging.h"
#include "qp/transmit/fpdu_writer.h"
#include "qp/transmit/retire_wish.h"
#include "qp/transmit/transmit_trace.h"

namespace uwarp {

class SendCompleter {
 public:
  /// `trace` may be null.
  SendCompleter(const QpConfig& config, SendQueue& queue, StreamState& stream, FpduWriter& writer,
                TransmitCounters& counters, TransmitTrace* trace)
      : config_(config),
        queue_(queue),
        stream_(stream),
        writer_(writer),
        counters_(counters),
        trace_(trace) {}

  /// Begins a stream.
  void restart();
  /// There is no stream any more, and no reason of its end to tell.
  void reset() { reason_told_ = true; }
  Acknowledging& acknowledging() { return acknowledging_; }
  const Acknowledging& acknowledging() const { return acknowledging_; }

  /// Completes all requests whose bytes have gone and whose answers (also those that only
  /// acknowledge) have come.
  void retire();
  /// The first `bytes` of what is built have gone: retire().
  void sent(size_t bytes);
  /// Any thread: asks the one with the transmit side to do that.
  RetireWish& retire_wish() { return retire_wish_; }
  /// Requests have gone that are not complete. Any thread.
  bool in_flight() const { return queue_.in_flight(); }
  /// Raises kSqDrained if it is asked for and nothing is on its way.
  void look_for_drain();

  /// No acknowledgement comes any more. What ends before this position of the stream counts as
  /// acknowledged; without one, all that has gone.
  void acknowledge_before(std::optional<uint64_t> stream_position);
  /// Lent memory: what the peer has read by now has gone.
  [[gnu::noinline]] void take_given_back();
  /// There is no peer, which the application is not told (is_unreliable()): completes what has been
  /// posted, up to the first change of a window, as if it had been sent.
  void lose();
  /// The queue pair has failed: completes what came before the failure, and has been placed or
  /// still goes out ahead of our Terminate. Of the rest the failure's own request, and the oldest
  /// one, get its status, unless that is WR_FLUSH_ERR; the others are flushed. True if a completion
  /// has the status.
  bool flush();
  /// Flushes what has been posted to a failed queue pair. With acknowledgements the first request
  /// after a failure that found none gets the status: an adapter learns of a failed peer no sooner.
  void flush_late();

 private:
  void note_sent(size_t bytes);
  /// As if all bytes before this position had gone.
  void retire_before(uint64_t sent_position);
  [[gnu::noinline]] void note_peer_delivered();
  void complete(uint64_t position, WcStatus status, uint32_t vendor_err);
  void complete_before(uint64_t failed);
  static constexpr uint64_t kNone = StreamFailure::kNoRequest;
  /// Completes all that is posted: these two with the failure's status, the rest as flushed. True
  /// if there was a `first`.
  bool flush_requests(uint64_t own, uint64_t first);

  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  FpduWriter& writer_;
  TransmitCounters& counters_;
  TransmitTrace* const trace_;
  Acknowledging acknowledging_;
  uint64_t peer_delivered_ = 0;      // of our Sends, as far as it has been looked at
  uint64_t delivered_position_ = 0;  // send requests before this one have been delivered
  RetireWish retire_wish_;
  bool reason_told_ = true;  // by a completion of this stream, or there is no stream
};

}  // namespace uwarp
