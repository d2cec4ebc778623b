// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completes send requests, in posting order: what has gone and has its answer with success, and all
// the rest when the queue pair fails. Transmit side, but for what says otherwise.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/atomics.h"
#include "counters/trace_sink.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/transmit_batch.h"

namespace uwarp {

// Completions that wait until the peer has placed what was sent (QpConfig::acknowledged): when a
// Read has to follow the requests, whose answer says so. A Read or atomic of the application serves
// as well as one that is made for it. Transmit side.
class Acknowledging {
 public:
  /// Begins a stream at send queue position `position`. `read_depth`: Reads that may be open at a
  /// time; without any there are no acknowledgements.
  void restart(bool wanted, uint16_t read_depth, uint64_t position) {
    read_depth_ = wanted ? read_depth : 0;
    by_carrier_ = false;
    cover(position);
  }
  bool on() const { return read_depth_ != 0; }
  /// Nothing more is to be waited for.
  void stop() { read_depth_ = 0; }
  /// The carrier tells what has been placed: no more Reads are needed.
  void leave_to_carrier() { by_carrier_ = true; }

  void begin_batch() { batch_due_ = owed_; }
  /// What is before `position` is acknowledged by what has just been built, or needs no more.
  void cover(uint64_t position) {
    covered_ = position;
    owed_ = batch_due_ = false;
  }
  /// A request has been begun whose completion the application wants.
  void owe() { owed_ = true; }

  /// Whether a Read goes now that covers what is before `started`; `reads` are open. Once per batch
  /// that goes out full (`request`: another request would be next), and when nothing more can
  /// follow. A request that wants no completion is in no hurry, unless something waits for it
  /// (`pressed`).
  bool due(uint64_t started, uint32_t reads, bool request, bool pressed) const {
    const uint64_t open = started - covered_;
    if (open == 0 || reads >= read_depth_ || by_carrier_) return false;
    if (request) return batch_due_;
    return owed_ || pressed;
  }

 private:
  bool owed_ = false;       // a request behind covered_ wants its completion
  bool batch_due_ = false;  // ... and was in an earlier batch
  bool by_carrier_ = false;
  uint16_t read_depth_ = 0;  // 0: nothing is acknowledged
  uint64_t covered_ = 0;     // a Read has followed the requests before this position
};

// What a traced send queue has reported, and the FPDUs that are on their way to the kernel. There
// is one only if UWARP_TRACE asks for it. Belongs to the transmit side.
class TransmitTrace {
 public:
  TransmitTrace(TraceSink& sink, uint32_t queue_pair) : sink_(sink), queue_pair_(queue_pair) {}

  /// A batch was built, of which nothing has gone: its bytes, and where its FPDUs end in them.
  [[gnu::noinline, gnu::cold]] void built(const SendQueue& queue, std::span<const iovec> bytes,
                                          std::span<const uint32_t> ends);
  /// How much of the batch has been sent, and of the stream.
  [[gnu::noinline, gnu::cold]] void sent(SendQueue& queue, size_t batch_bytes,
                                         uint64_t stream_position);
  [[gnu::noinline, gnu::cold]] void completed(uint64_t position, const WorkCompletion& completion,
                                              bool reported);

 private:
  struct Fpdu {
    uint32_t end;
    uint8_t opcode;
    uint16_t bytes;
  };
  void record(TraceStep::Kind kind, uint64_t position);

  TraceSink& sink_;
  const uint32_t queue_pair_;
  uint64_t begun_ = 0;        // requests before this position were reported as begun ...
  uint64_t with_kernel_ = 0;  // ... and as with the kernel
  std::vector<Fpdu> fpdus_;   // of the batch
  size_t gone_ = 0;           // of these
};

// Which send request a failure is about. The header that a peer's Terminate shows is peer input.

/// Position of the request that completes with the failure's own status, among those that have been
/// started and not retired; StreamFailure::kNoRequest if it is none of them. `acknowledged`:
/// requests wait for acknowledgements, so that one has failed even if a Terminate names none.
/// With the transmit side held.
uint64_t failed_request(const StreamFailure& failure, const OutboundRequests& outbound,
                        SendQueue& queue, bool acknowledged);

// The receive side asks the transmit side to complete what has gone.
class RetireRequest {
 public:
  uint32_t ask() { return asked_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  bool granted(uint32_t request) const {
    return static_cast<int32_t>(granted_.load(std::memory_order_acquire) - request) >= 0;
  }
  /// Transmit side: what has been asked, before it looks at what has gone, ...
  uint32_t asked() const { return asked_.load(std::memory_order_acquire); }
  /// ... and once it has completed that.
  void grant(uint32_t asked) {
    if (!granted(asked)) granted_.store(asked, std::memory_order_release);
  }

 private:
  Atomic<uint32_t> asked_{0};
  Atomic<uint32_t> granted_{0};
};

/// A member of its Transmitter. Between restart() and reset() it completes the requests of a stream
/// in the order of the send queue: by retire() with success, then all that is left by flush(), once
/// the queue pair has failed. From then on flush_late() takes what is posted to the failed queue
/// pair. After flush(), lose() and reset() no request is open.
class SendCompleter {
  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  TransmitBatch& batch_;
  TransmitCounters& counters_;
  TransmitTrace* const trace_;  // or null

  // Under the transmit side.
  Acknowledging acknowledging_;
  uint64_t peer_delivered_ = 0;        // of our Sends, as far as it has been looked at
  uint64_t delivered_position_ = 0;    // send requests before this one have been delivered
  bool reason_reported_ = true;        // by a completion of this stream, or there is no stream
  std::optional<uint64_t> lent_from_;  // stream position behind which lent memory carries

  // Any thread.
  RetireRequest retire_request_;

 public:
  SendCompleter(const QpConfig& config, SendQueue& queue, StreamState& stream, TransmitBatch& batch,
                TransmitCounters& counters, TransmitTrace* trace)
      : config_(config),
        queue_(queue),
        stream_(stream),
        batch_(batch),
        counters_(counters),
        trace_(trace) {}

  /// Begins a stream.
  void restart();
  /// There is no stream any more, and no reason of its end to tell.
  void reset() { reason_reported_ = true; }
  Acknowledging& acknowledging() { return acknowledging_; }
  const Acknowledging& acknowledging() const { return acknowledging_; }

  /// Completes all requests whose bytes have gone and whose answers (also those that only
  /// acknowledge) have come. `built`: as if all bytes that are built had gone.
  void retire(bool built = false);
  /// The first `bytes` of what is built have gone; retire() follows.
  void note_sent(size_t bytes);
  /// Any thread: asks the one with the transmit side to do that.
  RetireRequest& retire_request() { return retire_request_; }
  /// Requests have gone that are not complete. Any thread.
  bool in_flight() const { return queue_.in_flight(); }
  /// Raises kSqDrained if it is asked for and nothing is on its way.
  void check_drain() {
    if (stream_.drain.notifies()) raise_if_drained();
  }

  /// No acknowledgement comes any more. What ends before this position of the stream counts as
  /// acknowledged; without one, all that has gone.
  void acknowledge_before(std::optional<uint64_t> stream_position);
  /// Lent memory: what the peer has read by now has gone.
  [[gnu::noinline]] void take_given_back();
  /// Lent memory carries what is sent from now on.
  void carrier_changed() { lent_from_ = batch_.sent_position(); }
  /// Lent memory: how much of the stream the peer has read; nothing where another carrier is used.
  std::optional<uint64_t> read_position();
  /// Nothing of this queue pair is under way, so that what is copied now comes behind it all.
  bool all_placed();
  /// The oldest requests that wait have been done without the carrier: completes them.
  void complete_direct(size_t requests);
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
  void note_placed();
  [[gnu::noinline, gnu::cold]] void raise_if_drained();
  [[gnu::noinline]] void note_peer_delivered();
  uint64_t placed_position();
  void complete(uint64_t position, WcStatus status, uint32_t vendor_err);
  static constexpr uint64_t kNone = StreamFailure::kNoRequest;
  /// Completes all that is posted: these two with the failure's status, the rest as flushed. True
  /// if there was a `first`.
  bool flush_requests(uint64_t own, uint64_t first);
};

}  // namespace uwarp
