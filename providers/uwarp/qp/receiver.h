// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The receive side of a stream: finds out where the next bytes belong, parses FPDUs, places payload
// and completes messages. One thread at a time (QueuePair's receive lock). RFC 5044 4, 5041 5-7,
// RFC 5040 5-7, RFC 7306 5-6.
//
// Between two calls all that is kept is a partial header (carry_), the position inside a payload,
// and, only while a stream is held or a CRC is waiting for its FPDU, a staging buffer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ddp/buffer_list.h"
#include "ddp/segment.h"
#include "mpa/fpdu.h"
#include "qp/completion_order.h"
#include "qp/message_kind.h"
#include "qp/receive_queue.h"
#include "qp/segment_run.h"
#include "qp/send_queue.h"
#include "qp/staging_buffer.h"
#include "qp/stream_state.h"
#include "rdmap/segment_rules.h"

namespace uwarp {

/// What a receive call found besides completions; bits.
enum ReceiveOutcome : uint32_t {
  kRxNothing = 0,
  kRxTransmitWanted = 1u << 0,  // the transmit side has something to do: call the pump
  kRxHeld = 1u << 1,            // no receive posted: stop reading until receive_resumable()
  kRxFailed = 1u << 2,          // the stream failed: flush(), pump the Terminate out, then FIN
  kRxTerminated = 1u << 3,      // the peer's Terminate came: flush(), then FIN
  kRxFirstFpdu = 1u << 4,       // the first FPDU of this stream has come
  kRxMagic = 1u << 5,           // the peer has shown that it is a uwarp
};

class Receiver {
 public:
  Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives, StreamState& stream,
           CompletionOrder order, ReceiveCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  std::span<const iovec> window(StagingPointer& staging);
  uint32_t received(StagingPointer& staging, size_t bytes);
  uint32_t resume(StagingPointer& staging);
  uint32_t expire();
  /// The kernel could not write to the place of the last window (memory unmapped): Terminate.
  uint32_t fault();

  /// Further bytes are dropped: the stream failed or ended.
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  bool held() const { return place_in_line_.held(); }
  /// Held, and yet worth reading on: an acknowledgement is due that may be behind the message that
  /// waits, and there is room to keep what comes before it.
  bool looks_ahead() const {
    return held() && config_.acknowledged && !closed() && !stream_.outbound.empty() &&
           available() < kStagingBytes;
  }
  /// A large message is under way, or another one is likely to follow the last.
  bool expects_large() const { return expect_large_ != 0; }
  /// Inside an FPDU or a message: a FIN here is an error (RFC 5044 7.2).
  bool mid_message() const;
  /// No more bytes will come; the taken receive buffer and the queue are flushed.
  void flush();
  void reset();
  /// Nothing that was found by this region's local key is written after this.
  void quiesce(const MemoryRegion& region);
  /// The region has become another under the same keys.
  void look_up_again(const MemoryRegion& region);

 private:
  // Largest control FPDU, and whatever a header or a held-back tail may leave behind.
  static constexpr size_t kCarryBytes = 128;
  // A payload with at least this much missing is received straight into its place.
  static constexpr uint32_t kDirectBytes = 2048;
  // Behind a direct payload: its tail, pad, CRC and the next header; for a message of 64 KiB also
  // its second segment of some twenty octets, between the two.
  static constexpr size_t kBehindDirect = 128;
  // The same behind a run of segments, where a megabyte's last segment is of some 300 octets.
  static constexpr size_t kBehindRun = 512;
  // After a large segment another one is expected, or will come after the short end of this
  // message, of which only so much goes by way of the staging buffer: a copy less of the rest is
  // worth a second call.
  static constexpr uint8_t kExpectLarge = 2;  // segments
  static constexpr size_t kBeforeDirect = 2048;
  // The last octets of a Write are stored after all others: applications poll them.
  static constexpr uint32_t kTailBytes = 8;

  enum class Await : uint8_t { kHeader, kPayload, kTrailer };
  enum class Step : uint8_t { kAgain, kNeedMore };

  // Staging.
  void begin_staging(StagingPointer& staging);
  void make_room();
  void end_staging(StagingPointer& staging);
  size_t available() const { return end_ - begin_; }

  // Parsing, in the order in which bytes come.
  uint32_t consume(StagingPointer& staging);
  void look_ahead();
  bool is_acknowledgement(const std::byte* fpdu) const;
  Step take_header();
  bool bring_back();
  void note_following(DdpControl control);
  Step take_payload();
  Step take_trailer();
  bool crc_ok() const;
  Step take_control(RdmapOpcode opcode);
  void open_write(const TaggedHeader& header);
  void open_read_response(const TaggedHeader& header);
  Step open_send(const UntaggedHeader& header, RdmapOpcode opcode);
  bool take_receive();
  [[gnu::noinline, gnu::cold]] bool obey_script(const UntaggedHeader& header, RdmapOpcode opcode);
  void hold();
  void fail_range(TerminateCode code);
  RdmapFeatures features() const {
    return {config_.extensions, config_.extensions,
            stream_.peer_is_uwarp.load(std::memory_order_relaxed)};
  }
  void deliver_control(RdmapOpcode opcode, std::span<const std::byte> rdmap);
  bool admit_request();
  void queue_request(InboundRequest& request);
  void take_read_request(const ReadRequestHeader& header);
  void take_atomic_request(const AtomicRequestHeader& header);
  void take_atomic_response(const AtomicResponseHeader& header);
  void take_terminate(std::span<const std::byte> rdmap);

  // Placing.
  BufferList& list() { return opcode_ == RdmapOpcode::kReadResponse ? read_sink_ : sink_; }
  bool direct_possible() const;
  size_t direct_iovecs(iovec* out, size_t max);
  size_t run_iovecs(size_t count);
  bool run_has_place(uint64_t offset, uint64_t size, RemotePlace& place);
  bool place(const std::byte* from, uint32_t size);
  bool placement_valid() const;
  bool placement_plain() const;
  std::byte* write_target() const { return place_.address + payload_offset_; }
  void payload_done(uint32_t size) {
    payload_left_ -= size;
    payload_offset_ += size;
  }

  // Whole segments and messages.
  void finish_segment();
  void count_fpdu(RdmapOpcode opcode, bool last) {
    counters_.fpdus.add(1);
    counters_.count(message_kind(opcode), last ? 1 : 0);
    if (config_.trace != nullptr) [[unlikely]]
      trace_fpdu(opcode);
  }
  [[gnu::noinline, gnu::cold]] void trace_fpdu(RdmapOpcode opcode);
  [[gnu::noinline, gnu::cold]] void trace_receive(
      TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase = TraceStep::Phase::kBegun);
  void finish_send();
  void complete_sent_first();
  void describe_immediate(WorkCompletion& completion) const;
  void finish_answer();
  void take_delivered_mark(const TaggedHeader& header);
  void note_first_fpdu();

  // Failures.
  void fail(TerminateCode code, QpEvent event, bool with_header);
  void fail_receive(TerminateCode code, QpEvent event, WcStatus status);
  void fail_answer(TerminateCode code, WcStatus status);
  void fail_result();
  void fail_placement();
  void fail_local_receive(WcStatus status = WcStatus::kLocProtErr);
  void close() { closed_.store(true, std::memory_order_release); }
  StreamFailure describe(TerminateCode code, bool with_header) const;
  WorkCompletion receive_completion(WcStatus status, uint32_t vendor_err) const;
  void push_receive(const WorkCompletion& completion, bool solicited);
  void complete_receive(WcStatus status, uint32_t vendor_err);

  const QpConfig& config_;
  SendQueue& sends_;
  ReceiveQueue& receives_;
  ReceivePlace place_in_line_;
  StreamState& stream_;
  CompletionOrder order_;
  ReceiveCounters& counters_;

  // Staging of the call under way, or kept between calls.
  std::byte* bytes_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  StagingPointer kept_;
  uint32_t carry_size_ = 0;
  std::byte carry_[kCarryBytes];

  // The segment under way.
  Await await_ = Await::kHeader;
  bool last_ = false;
  RdmapOpcode opcode_ = RdmapOpcode::kWrite;
  uint16_t ulpdu_length_ = 0;
  uint8_t expect_large_ = 0;  // segments
  uint32_t payload_left_ = 0;
  uint64_t payload_offset_ = 0;  // message offset of the next octet
  uint32_t trailer_left_ = 0;
  uint32_t outcome_ = 0;
  bool in_order_ = false;  // all that the peer may have answered by the bytes at hand is complete
  bool acknowledged_ = false;        // ... but for what has been acknowledged among them
  size_t direct_bytes_ = 0;          // octets of the last window that go straight to their place
  size_t window_bytes_ = 0;          // ... and all of it
  SegmentRun run_;                   // segments behind the one under way
  std::byte header_[kDdpHeaderMax];  // of the segment under way, for a Terminate
  // Tagged placement.
  RemotePlace place_;        // of the Write segment under way
  bool write_open_ = false;  // a Write has begun and not ended
  STag write_stag_;
  uint64_t write_bytes_ = 0;                // of the last Write since the last message of queue 0
  std::optional<TaggedOffset> write_next_;  // of the Write's next byte, once one has been placed
  // Untagged placement (Send) and Read sinks.
  UntaggedSequence send_sequence_;
  UntaggedSequence request_sequence_;  // queue 1, only its MSN
  UntaggedSequence atomic_sequence_;   // queue 3, only its MSN
  bool taken_ = false;                 // a receive buffer is in use
  RecvWqe receive_;
  BufferList sink_;  // of the Send's buffer
  bool sink_revoked_ = false;
  RdmapOpcode message_opcode_ = RdmapOpcode::kSend;  // the same in all segments of the message
  uint32_t invalidate_ = 0;  // its Invalidate STag, or immediate of our own Send
  std::byte immediate_[kImmediateSize];
  bool read_open_ = false;  // read_sink_ is set up for the Read at the head
  uint64_t read_placed_ = 0;
  BufferList read_sink_;
  bool read_revoked_ = false;

  std::atomic<bool> closed_{true};
  // The segment under way and its end; for each of a run its staged octets and its place.
  static constexpr size_t kMaxIovecs = kMaxSge + 2 + 2 * DdpControl::kMostFollowing;
  iovec iovecs_[kMaxIovecs];
};

}  // namespace uwarp
