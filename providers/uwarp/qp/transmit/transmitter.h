// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The transmit side of a stream: chooses what goes next, and fills batches with it. One thread at a
// time (QueuePair holds the side). RFC 5040 5, 5041 5.2, 5044 4.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "protocol/ddp/segment.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/send_completer.h"
#include "qp/transmit/transmit_batch.h"

namespace uwarp {

// Turns posted requests into messages, one after the other: Sends and Writes segment by segment,
// Reads and atomics as one FPDU, changes of windows without any. Transmit side. RFC 5040 5, RFC
// 7306 5, 6.
class Requester {
 public:
  Requester(const QpConfig& config, SendQueue& queue, StreamState& stream, FpduWriter& writer,
            SendCompleter& completer, TransmitCounters& counters);

  void restart();
  /// Forgets the message under way.
  void drop_message() {
    open_ = immediate_due_ = false;
    copied_bytes_ = 0;
  }

  /// A message has been begun and not ended.
  bool open() const { return open_; }
  uint64_t left() const { return message_bytes_ - offset_; }
  /// The oldest waiting request may be begun now.
  bool ready();
  /// The peer is gone, or was never there, which the application is not told (is_unreliable()):
  /// what waits is lost. True: a change of a window is next, which needs no peer, and may be begun.
  bool lose();
  /// The oldest waiting request waits for the peer's first message, and the peer may wait for this
  /// side: an empty Read makes it answer.
  [[gnu::noinline]] bool must_ask_peer() const;
  /// Begins the request that is ready(). What is one FPDU, or none, is done on return; a Send or
  /// Write is open().
  void begin();
  /// What has become of the oldest waiting request, if it is a Write or Read and the peer's memory
  /// is within reach. kSend: it goes over the carrier. kLater: it, or what is left of it, follows
  /// in the next turn. kWait: once all before has been placed.
  enum class Copied : uint8_t { kDone, kLater, kWait, kSend };
  [[gnu::noinline]] Copied copy();
  void begin_turn() { turn_bytes_ = 0; }
  /// The next segment of the open message. False: it has no room in the batch.
  bool append_segment();
  /// The oldest waiting request cannot be begun, and those before it are complete by now.
  bool fault_due() const { return fault_ && queue_.retired() == queue_.started(); }
  /// Then: fails the stream.
  [[gnu::noinline, gnu::cold]] void fail_by_fault();
  /// A Read without bytes that no request of the application stands for; its answer acknowledges
  /// the requests before this position (0: none).
  [[gnu::noinline]] void emit_empty_read(uint64_t acknowledges);

  /// The oldest request whose payload goes from where it lies and has not all gone; kNoRequest if
  /// there is none.
  uint64_t first_gathered() const;
  /// Nothing of the region is sent any more.
  void revoke(const MemoryRegion& region) { payload_.revoke(region); }
  /// Some window may be bound to this queue pair.
  bool bound_windows() const { return bound_windows_; }

 private:
  [[gnu::noinline]] bool immediate_ready();
  bool worth_a_copy(bool large) const;
  bool settled();
  bool add_to(RemoteCopy& copy, uint64_t position);
  void note_copied(bool read);
  [[gnu::noinline]] void emit_read(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void emit_atomic(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void change_window(SendWqe& wqe, uint64_t position);
  FpduWriter::Built append_send(const SendWqe& wqe, const FpduWriter::Segment& segment);
  [[gnu::noinline]] bool append_immediate(SendWqe& wqe);
  /// The oldest waiting request cannot be begun.
  [[gnu::noinline, gnu::cold]] void fail_in_turn(WcStatus status);
  [[gnu::noinline]] void fail(uint64_t position, WcStatus status);
  STag draw_token();

  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  FpduWriter& writer_;
  SendCompleter& completer_;
  TransmitCounters& counters_;

  bool open_ = false;
  bool immediate_due_ = false;  // the open message is a Write that is out but for its Immediate
  bool bound_windows_ = false;
  std::optional<WcStatus> fault_;  // of the oldest waiting request
  uint64_t offset_ = 0;            // bytes of the open message that are built
  uint64_t message_bytes_ = 0;
  BufferList payload_;
  Msn send_msn_;
  QueueNumber qn_ = QueueNumber::kSend;  // of the open message
  Msn request_msn_;                      // queue 1: Reads and atomics
  uint32_t request_id_ = 0;              // of the next atomic
  uint64_t token_state_;
  uint64_t copied_bytes_ = 0;  // of the oldest waiting request
  uint64_t turn_bytes_ = 0;    // copied in this turn
  uint32_t large_run_ = 0;     // large Reads and Writes in a row
  uint32_t sent_untried_ = 0;  // so many go over the carrier, behind one that could not be copied
};

// What this side owes the peer: answers to its Reads and atomics, in the order of the requests, and
// news of its Sends that were delivered. Transmit side. RFC 5040 5.2, RFC 7306 5.2.
class Responder {
 public:
  Responder(const QpConfig& config, StreamState& stream, FpduWriter& writer,
            TransmitCounters& counters)
      : config_(config), stream_(stream), writer_(writer), counters_(counters) {}

  void restart();
  void reset() { open_ = false; }
  /// Forgets the Read Response under way.
  void drop_message() { open_ = false; }

  /// A Read Response has been begun and not ended.
  bool open() const { return open_; }
  uint64_t left() const { return message_bytes_ - offset_; }
  /// Answers the oldest request. An atomic is answered at once; a Read opens a Read Response.
  [[gnu::noinline]] void begin();
  /// The next segment of the open Read Response. False: it has no room in the batch.
  [[gnu::noinline]] bool append_segment();
  /// Payload of answers that are built goes from where it lies and has not all gone.
  bool gathers() const { return gathered_end_ > writer_.sent_position(); }

  /// The peer is to be told what has been delivered here before it sees a message that takes a
  /// receive.
  bool delivery_due() const {
    return stream_.marks_deliveries(config_) &&
           stream_.delivered.load(std::memory_order_acquire) != told_delivered_.value;
  }
  [[gnu::noinline]] void emit_delivered_mark(bool next_waits = false);

 private:
  void answer_atomic(const InboundRequest& request);
  std::optional<uint64_t> execute(const AtomicRequestHeader& request, const RemoteRange& cell);
  FpduWriter::Built append_from(const RemoteRange& source, STag stag, const TaggedHeader& header,
                                uint32_t size);
  void answered(const InboundRequest& request);
  [[gnu::noinline]] void fail(TerminateCode code);

  const QpConfig& config_;
  StreamState& stream_;
  FpduWriter& writer_;
  TransmitCounters& counters_;
  bool open_ = false;
  Msn atomic_msn_;      // of the next Atomic Response
  Msn told_delivered_;  // what the peer knows to have been delivered here
  uint64_t offset_ = 0;
  uint64_t message_bytes_ = 0;
  uint64_t gathered_end_ = 0;  // behind the last answer that goes from where it lies
};

class Transmitter {
 public:
  Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream,
              TransmitCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// The next bytes to send: valid until sent(), or until the side is given back. Empty when
  /// nothing may be sent now. Completes what needs no bytes on the way.
  std::span<const iovec> window();
  /// The last window() is empty for want of memory, or a turn was long enough: try again.
  bool unfinished() const {
    return stream_.running.load(std::memory_order_relaxed) &&
           (batch_.starved() || after_copy_ == Requester::Copied::kLater);
  }
  /// The last window() is empty because what goes next waits until all before has been placed.
  bool awaits_placing() const { return after_copy_ == Requester::Copied::kWait; }
  /// The first `bytes` of the window are with the kernel: completes the requests they finish. True
  /// if there may be more to send.
  bool sent(size_t bytes);
  /// The kernel could not read the application's memory.
  void fault();
  /// Work that window() may turn into bytes now, as far as a look from outside can tell: it may
  /// still have to wait for ORD or a fence. Lock-free.
  bool wanted() const;

  /// The last bytes that may go over the present carrier have gone: carrier_changed() follows once
  /// what comes next goes over another one.
  bool carrier_change_due() const { return switching_ && batch_.empty(); }
  void carrier_changed() {
    switching_ = false;
    lent_from_ = writer_.sent_position();
  }

  /// What the last window() holds is mostly of large messages.
  bool sends_large() const { return batch_.large(); }
  /// All that was posted or owed has been handed over, so that a FIN loses nothing (answers to
  /// Reads may still be out).
  bool idle() const { return idle_.load(std::memory_order_acquire) && !queue_.waiting(); }
  /// Nothing could be sent at the last try, perhaps because requests wait for answers.
  bool dry() const { return dry_.load(std::memory_order_acquire); }
  /// Asks for another try.
  void forget_dry() { dry_.store(false, std::memory_order_release); }
  /// Failed, and the Terminate (if one was due) has been handed over: the stream may be shut down
  /// for writing.
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  bool bound_windows() const { return requester_.bound_windows(); }
  SendCompleter& completer() { return completer_; }

  /// Completes all requests, as SendCompleter::flush() says. Pending bytes of half-sent FPDUs move
  /// into memory of our own.
  bool flush();
  /// The peer has ended in order, and reads no more. `unread`: bytes that it had not received then,
  /// where the carrier is a socket; lent memory says so itself.
  void note_peer_end(uint64_t unread);
  /// Completes what has gone and has its answer. `peer_done`: the peer will answer no more, so what
  /// it has read counts as acknowledged (note_peer_end(); all that has gone without that). `cut`:
  /// what has not gone never will.
  void settle(bool peer_done, bool cut);
  /// Nothing goes out: what has been posted is lost (Requester::lose()).
  void lose();
  /// Forgets everything without completions.
  void reset();
  /// No byte of what `shape` says this region was is looked at after this.
  void quiesce(const MemoryRegion& region, const RegionShape& shape);

 private:
  void fill();  // what is noinline in its classes stays out of it, see there
  [[gnu::noinline, gnu::cold]] void fill_traced();
  bool begin_next();
  [[gnu::noinline]] bool begin_or_copy();
  // Faults that are asked for (QpConfig::script).
  enum class AfterFaults : uint8_t { kGo, kNoRequest, kNothing, kEmitted };
  [[gnu::noinline, gnu::cold]] AfterFaults apply_faults(bool response, bool request);
  [[gnu::noinline]] bool apply_fault_verdict(uint64_t position, const FaultVerdict& verdict);
  [[gnu::noinline]] bool emit_opening();
  [[gnu::noinline, gnu::cold]] bool emit_mark(uint32_t due);
  [[gnu::noinline]] bool begin_local();
  [[gnu::noinline]] bool emit_terminate();
  bool acknowledgement_due(bool request) const {
    return completer_.acknowledging().on() && must_acknowledge(request);
  }
  [[gnu::noinline]] bool must_acknowledge(bool request) const;
  [[gnu::noinline]] void emit_acknowledgement();
  void drop_messages();
  void drop_batch();
  void withdraw();
  void note_progress();

  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  TransmitCounters& counters_;
  const std::unique_ptr<TransmitTrace> trace_;  // null unless steps are written down
  FpduWriter writer_;
  TransmitBatch& batch_ = writer_.batch();
  SendCompleter completer_;
  Requester requester_;
  Responder responder_;

  Requester::Copied after_copy_ = Requester::Copied::kDone;  // of the last window()
  bool response_turn_ = false;  // fairness: answers and requests alternate
  bool closed_ = true;          // nothing is built any more
  bool flushed_ = false;        // a failure's work has been flushed: the Terminate may follow
  bool opened_ = false;         // RTR and magic are out
  bool switching_ = false;      // ... and the mark behind which the carrier changes
  std::optional<uint64_t> lent_from_;  // stream position behind which lent memory carries
  std::optional<uint64_t> peer_read_;  // ... which the peer had reached when it ended
  std::atomic<bool> dry_{true};
  std::atomic<bool> idle_{true};
  std::atomic<bool> finished_{false};
};

}  // namespace uwarp
