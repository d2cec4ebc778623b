// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The transmit side of a stream: chooses what goes next, cuts it into segments, and fills batches
// with them. One thread at a time (QueuePair holds the side).
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "protocol/ddp/segment.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/direct_requests.h"
#include "qp/transmit/send_completer.h"
#include "qp/transmit/transmit_batch.h"

namespace uwarp {

/// A member of its QueuePair. Closed until restart() begins a stream. From then on next_iovecs()
/// fills the batch, with one message after the other, and sent() empties it. A stream that has
/// failed begins no message; flush() completes all requests, the Terminate follows if one is due,
/// and the side is closed again, and finished() once all of that has gone. Without a peer lose()
/// completes what is posted, as often as needed. reset() closes it at any time. After flush(),
/// lose() and reset() no byte on its way is in memory of the application.
class Transmitter {
  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  TransmitCounters& counters_;
  const std::unique_ptr<TransmitTrace> trace_;  // null unless steps are written down

  // Under the transmit side: the stream, ...
  TransmitBatch batch_;
  SendCompleter completer_;
  DirectRequests direct_;
  bool response_turn_ = false;  // fairness: answers and requests alternate
  bool closed_ = true;          // nothing is built any more
  bool flushed_ = false;        // a failure's work has been flushed: the Terminate may follow
  bool opened_ = false;         // RTR and magic are out
  bool wire_told_ = true;       // the peer need not be told that it is over a wire
  bool switching_ = false;      // ... and the control Write behind which the carrier changes
  bool bound_windows_ = false;
  std::optional<uint64_t> peer_read_;  // ... which the peer had reached when it ended

  // ... the message under way, ...
  /// What has been begun and not ended. kImmediate: a Write that is out but for its Immediate Data.
  enum class Open : uint8_t { kNothing, kAnswer, kRequest, kImmediate } open_ = Open::kNothing;
  QueueNumber qn_ = QueueNumber::kSend;
  uint64_t offset_ = 0;  // bytes that are built
  uint64_t message_bytes_ = 0;
  BufferList payload_;  // of a request

  // ... requests, ...
  std::optional<WcStatus> fault_;  // of the oldest waiting request
  Msn send_msn_;
  Msn request_msn_;          // queue 1: Reads and atomics
  uint32_t request_id_ = 0;  // of the next atomic
  uint64_t token_state_;

  // ... and answers.
  Msn atomic_msn_;             // of the next Atomic Response
  Msn reported_delivered_;     // what the peer knows to have been delivered here
  uint64_t gathered_end_ = 0;  // behind the last answer that goes from where it lies

  // Read by any thread.
  std::atomic<bool> dry_{true};
  std::atomic<bool> idle_{true};
  std::atomic<bool> finished_{false};

 public:
  Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream, QueuePairSlot& slot);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// The next bytes to send: valid until sent(), or until the side is given back. Empty when
  /// nothing may be sent now. Completes what needs no bytes on the way.
  std::span<const iovec> next_iovecs();
  /// The last next_iovecs() is empty for want of memory, or a turn was long enough: try again.
  bool unfinished() const {
    return stream_.running.load(std::memory_order_relaxed) &&
           (batch_.starved() || direct_.outcome() == DirectRequests::Outcome::kLater);
  }
  /// The last next_iovecs() is empty because what goes next waits until all before has been placed.
  bool awaits_placing() const { return direct_.outcome() == DirectRequests::Outcome::kWait; }
  /// The first `bytes` of the window are with the kernel: completes the requests they finish. True
  /// if there may be more to send.
  bool sent(size_t bytes);
  /// The kernel could not read the application's memory.
  void fault();
  /// Work that next_iovecs() may turn into bytes now, as far as a look from outside can tell: it
  /// may still have to wait for ORD or a fence. Lock-free.
  bool wanted() const;

  /// The last bytes that may go over the present carrier have gone: carrier_changed() follows once
  /// what comes next goes over another one.
  bool carrier_change_due() const { return switching_ && batch_.empty(); }
  void carrier_changed() {
    switching_ = false;
    completer_.carrier_changed();
  }

  /// What the last next_iovecs() holds is mostly of large messages.
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

  /// Some window may be bound to this queue pair.
  bool bound_windows() const { return bound_windows_; }
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
  /// Nothing goes out: what has been posted is lost (lose_requests()).
  void lose();
  /// Forgets everything without completions.
  void reset();
  /// No byte of what `shape` says this region was is looked at after this.
  void quiesce(const MemoryRegion& region, const RegionShape& shape);

 private:
  using Built = TransmitBatch::Built;
  struct Segment {
    uint32_t payload;   // bytes
    bool last;          // of its message
    uint8_t following;  // others of that size that come right behind it, as announced to the peer

    DdpControl control(bool tagged) const {
      return DdpControl::make(tagged, last).followed_by(following);
    }
  };

  // ---- What goes next
  void fill();  // what is noinline here and in the parts stays out of it, see there
  bool begin_next();
  // Faults that are asked for (QpConfig::script).
  enum class AfterFaults : uint8_t { kGo, kNoRequest, kNothing, kEmitted };
  [[gnu::noinline, gnu::cold]] AfterFaults apply_faults(bool response, bool request);
  [[gnu::noinline]] bool apply_fault_verdict(uint64_t position, const FaultVerdict& verdict);
  [[gnu::noinline]] bool emit_opening();
  [[gnu::noinline, gnu::cold]] bool emit_persona();
  [[gnu::noinline, gnu::cold]] bool emit_control_write(uint32_t due);
  [[gnu::noinline]] bool begin_local();
  [[gnu::noinline]] bool emit_terminate();
  bool acknowledgement_due(bool request) const {
    return completer_.acknowledging().on() && must_acknowledge(request);
  }
  [[gnu::noinline]] bool must_acknowledge(bool request) const;
  void note_progress();

  // ---- Segments
  /// Bytes of the open message that are not built.
  uint64_t left() const { return message_bytes_ - offset_; }
  /// The next segment of the open message.
  Segment next_segment(size_t header_bytes) const {
    const uint32_t payload = segment_payload(left(), stream_.config.mulpdu, header_bytes);
    return {payload, payload == left(),  // L on the last: RFC 5041-4.1-c/d/e/f, 5041-5.2-c/h
            left() < 2 * uint64_t{payload} ? uint8_t{0} : following(payload)};
  }
  [[gnu::noinline]] uint8_t following(uint32_t payload) const;
  /// An FPDU with this header; `payload` as for TransmitBatch::append().
  template <typename Header, typename... Payload>
  Built append(const Header& header, const Payload&... payload) {
    return batch_.append(Header::kWireSize, std::bind_front(&Header::encode, &header), payload...);
  }
  /// A message that is all header, with the next number of its queue. has_space() was checked.
  template <typename Header>
  void append_message(RdmapOpcode opcode, Msn& msn, const Header& header) {
    assert(batch_.has_space());
    UntaggedHeader untagged;
    untagged.rsvd_ulp = make_rdmap_control(opcode);
    untagged.qn = traits(opcode).queue;
    untagged.msn = msn;
    msn = msn.next();
    batch_.append(UntaggedHeader::kWireSize + Header::kWireSize, [&](std::byte* at) {
      untagged.encode(at);
      header.encode(at + UntaggedHeader::kWireSize);
    });
    counters_.count(message_kind(opcode));
  }
  /// has_space() was checked.
  [[gnu::noinline]] void append_empty_write(STag stag, TaggedOffset offset);

  // ---- Requests: Sends and Writes segment by segment, Reads and atomics as one FPDU, changes of
  // windows without any.
  /// The oldest waiting request may be begun now.
  bool request_ready();
  [[gnu::noinline]] bool immediate_ready();
  /// The peer is gone, or was never there, which the application is not told (is_unreliable()):
  /// what waits is lost. True: a change of a window is next, which needs no peer, and may be begun.
  bool lose_requests();
  /// The oldest waiting request waits for the peer's first message, and the peer may wait for this
  /// side: an empty Read makes it answer.
  [[gnu::noinline]] bool must_ask_peer() const;
  /// Begins the request that is ready. What is one FPDU, or none, is done on return; a Send or
  /// Write is open.
  void begin_request();
  [[gnu::noinline]] void emit_request(SendWqe& wqe, uint64_t position);
  /// `acknowledges`: its answer acknowledges the requests before this position (0: none).
  void emit_read(uint64_t request, uint64_t acknowledges, ReadRequestHeader header);
  /// One without bytes that no request of the application stands for.
  [[gnu::noinline]] void emit_empty_read(uint64_t acknowledges) {
    emit_read(OutboundRequest::kNoRequest, acknowledges, {.source_stag = STag{1}});
  }
  [[gnu::noinline]] void change_window(SendWqe& wqe, uint64_t position);
  /// The next segment of the open request. False: it has no room in the batch.
  bool append_segment();
  Built append_send(const SendWqe& wqe, const Segment& segment);
  [[gnu::noinline]] bool append_immediate(SendWqe& wqe);
  /// The oldest waiting request cannot be begun.
  [[gnu::noinline, gnu::cold]] void fail_in_turn(WcStatus status);
  [[gnu::noinline, gnu::cold]] void fail_request(uint64_t position, WcStatus status);

  // ---- What this side owes the peer: answers to its Reads and atomics, in the order of the
  // requests, and news of its Sends that were delivered.
  /// Answers the oldest request. An atomic is answered at once; a Read opens a Read Response.
  [[gnu::noinline]] void begin_answer();
  void answer_atomic(const InboundRequest& request);
  /// The next segment of the open Read Response. False: it has no room in the batch.
  [[gnu::noinline]] bool append_answer();
  void note_answered(const InboundRequest& request);
  [[gnu::noinline]] void fail_answer(TerminateCode code);
  /// The peer is to be told what has been delivered here before it sees a message that takes a
  /// receive.
  bool delivery_due() const {
    if (!stream_.reports_deliveries(config_)) return false;
    const uint32_t delivered = stream_.delivered.load(std::memory_order_acquire);
    return delivered != reported_delivered_.value &&
           delivered != stream_.told_delivered.load(std::memory_order_acquire);
  }
  [[gnu::noinline]] void emit_delivered_write(bool next_waits = false);

  // ---- The end
  void drop_batch();
  void withdraw();
};

}  // namespace uwarp
