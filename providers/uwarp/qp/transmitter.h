// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The transmit side of a stream: takes requests in order and owed answers between them, cuts them
// into FPDUs, and completes what has gone. One thread at a time (QueuePair holds the side).
// RFC 5040 5, 5041 5.2, 5044 4.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ddp/buffer_list.h"
#include "qp/acknowledging.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit_batch.h"
#include "qp/transmit_trace.h"

namespace uwarp {

class Transmitter {
 public:
  Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream,
              TransmitCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// The next bytes to send; empty when nothing may be sent now.
  std::span<const iovec> window();
  /// The last window() is empty for want of memory.
  bool starved() const { return batch_.starved(); }
  void sent(size_t bytes);
  /// The kernel could not read the application's memory.
  void fault();
  /// Work that window() may turn into bytes now, as far as a look from outside can tell: it may
  /// still have to wait for ORD or a fence. Lock-free.
  bool wanted() const;

  /// What the last window() holds is mostly of large messages.
  bool sends_large() const { return batch_.large(); }
  /// Everything accepted so far has been handed over (answers to Reads may still be out).
  bool idle() const { return idle_.load(std::memory_order_acquire); }
  /// Nothing could be sent when it was tried last, be it that requests wait for answers.
  bool dry() const { return dry_.load(std::memory_order_acquire); }
  /// Asks for another try.
  void forget_dry() { dry_.store(false, std::memory_order_release); }
  /// Failed, and the Terminate (if one was due) has been handed over.
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  bool bound_windows() const { return bound_windows_; }

  /// Completes all requests: those done with success, the failure's with its status, the rest
  /// flushed. Pending bytes of half-sent FPDUs move into memory of our own.
  void flush();
  /// Completes what has been posted to a failed queue.
  void flush_late();
  /// Raises kSqDrained if it is asked for and nothing is on its way.
  void look_for_drain();
  /// Completes what has gone and has its answer. `peer_done`: the peer has read all of it and will
  /// answer no more, so that what has gone counts as acknowledged. `cut`: what has not gone never
  /// will.
  void settle(bool peer_done, bool cut) {
    if (peer_done) acknowledging_.stop();
    if (cut) built_position_ = sent_position_;
    retire();
  }
  /// Any thread: asks whoever has the transmit side to complete what has gone. That is done once
  /// has_retired() is true of the wish, or by the caller when the side is free.
  uint32_t ask_to_retire() { return wish_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  bool has_retired(uint32_t wish) const {
    return static_cast<int32_t>(granted_.load(std::memory_order_acquire) - wish) >= 0;
  }
  /// Forgets everything without completions.
  void reset();
  /// No byte of [base, base + length), which this region was, is looked at after this.
  void quiesce(const MemoryRegion& region, const std::byte* base, uint64_t length);

 private:
  enum class Message : uint8_t { kNone, kRequest, kResponse };
  enum class Next : uint8_t { kNothing, kEmitted, kOpened };
  /// What became of an FPDU: kFault when its payload is not there (regions on demand).
  enum class Built : uint8_t { kNoRoom, kDone, kFault };

  struct Segment {
    uint32_t payload;   // octets
    bool last;          // of its message
    uint8_t following;  // others of that size that come right behind it, as announced to the peer
  };

  void fill();  // what is noinline below stays out of it, see there
  [[gnu::noinline, gnu::cold]] void fill_traced();
  Next begin_next();
  // Faults that are asked for (QpConfig::script).
  enum class Obeyed : uint8_t { kGo, kNoRequest, kNothing, kEmitted };
  [[gnu::noinline, gnu::cold]] Obeyed obey_script(bool response, bool request);
  [[gnu::noinline]] bool obey_verdict(uint64_t position, const FaultVerdict& verdict);
  [[gnu::noinline]] bool emit_opening();
  bool must_be_silent() const;
  [[gnu::noinline]] bool begin_local();
  [[gnu::noinline]] bool emit_terminate();
  bool request_ready();
  [[gnu::noinline]] bool immediate_ready();
  [[gnu::noinline]] bool must_ask_peer() const;
  bool ends_soon() const;
  bool begin_request();
  [[gnu::noinline]] void emit_read(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void emit_atomic(const SendWqe& wqe, uint64_t position);
  bool acknowledgement_due(bool request) const;
  bool delivery_due() const;
  [[gnu::noinline]] void emit_delivered_mark();
  [[gnu::noinline]] void note_peer_delivered();
  [[gnu::noinline]] void emit_acknowledgement();
  /// A Read without octets that no request of the application stands for; its answer acknowledges
  /// the requests before this position (0: none).
  [[gnu::noinline]] void emit_empty_read(uint64_t acknowledges);
  [[gnu::noinline]] bool begin_response();
  void emit_atomic_response(const InboundRequest& request);
  bool append_segment();
  [[gnu::noinline]] bool append_immediate(SendWqe& wqe);
  [[gnu::noinline]] void change_window(SendWqe& wqe, uint64_t position);
  bool append_request_segment(const Segment& segment);
  [[gnu::noinline]] bool append_response_segment(const Segment& segment);
  bool end_response_segment(const RemotePlace& source, STag stag);
  void note_answered(const InboundRequest& request);
  void close_message();
  uint8_t following(uint32_t payload, uint64_t left) const;
  bool begin_tagged(RdmapOpcode opcode, STag stag, TaggedOffset to, const Segment& segment);
  Built append_tagged(RdmapOpcode opcode, STag stag, TaggedOffset to, const Segment& segment);
  Built append_untagged(RdmapOpcode opcode, const UntaggedHeader& header, uint32_t payload);
  Built end_payload(size_t header_bytes, uint32_t payload);
  template <typename Header>
  void append_control(RdmapOpcode opcode, Msn& msn, const Header& header);
  template <typename Header>
  void append_request(RdmapOpcode opcode, const Header& header);
  [[gnu::noinline]] void append_empty_write(STag stag, TaggedOffset offset);
  void retire() { retire(sent_position_); }
  /// As if all octets before this position had gone.
  void retire(uint64_t sent_position);
  void complete(uint64_t position, WcStatus status, uint32_t vendor_err);
  [[gnu::noinline]] void fail_request(uint64_t position, WcStatus status);
  [[gnu::noinline]] void fail_response(TerminateCode code);
  void drop_batch();
  uint64_t first_gathered() const;
  void complete_before(uint64_t failed);
  /// Completes all that is posted: `own` with the failure's status, the rest as flushed.
  void flush_requests(uint64_t own);
  void note_progress();
  STag draw_token();

  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  TransmitCounters& counters_;
  const std::unique_ptr<TransmitTrace> trace_;  // null unless steps are written down
  TransmitBatch batch_;

  Message message_ = Message::kNone;
  bool response_turn_ = false;  // fairness: answers and requests alternate
  bool revoked_ = false;        // memory of the open message was deregistered
  bool immediate_due_ = false;  // the open message is a Write that is out but for its Immediate
  bool bound_windows_ = false;  // some window may be bound to this queue pair
  bool closed_ = true;          // nothing is built any more
  bool flushed_ = false;        // a failure's work has been flushed: the Terminate may follow
  bool opened_ = false;         // RTR and magic are out
  uint64_t offset_ = 0;         // octets of the open message that are built
  uint64_t message_bytes_ = 0;
  BufferList payload_;
  uint64_t built_position_ = 0;  // stream octets built and sent
  uint64_t sent_position_ = 0;
  uint64_t gathered_answer_end_ = 0;  // behind the last answer that goes from where it lies
  Msn send_msn_;
  Msn request_msn_;  // queue 1: Reads and atomics
  Msn atomic_response_msn_;
  uint32_t request_id_ = 0;  // of the next atomic
  uint64_t token_state_;
  Acknowledging acknowledging_;
  Msn told_delivered_;                // what the peer knows to have been delivered here
  Msn peer_delivered_;                // of ours, as far as it has been looked at
  uint64_t delivered_position_;       // send requests before this one have been delivered
  std::atomic<uint32_t> wish_{0};     // see ask_to_retire()
  std::atomic<uint32_t> granted_{0};  // the last wish that has been met
  std::atomic<bool> dry_{true};
  std::atomic<bool> idle_{true};
  std::atomic<bool> finished_{false};
};

}  // namespace uwarp
