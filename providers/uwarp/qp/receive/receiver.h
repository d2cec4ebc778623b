// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The receive side of a stream: says where the next bytes belong, and takes FPDUs off the stream
// one after the other. One thread at a time (QueuePair's receive lock). RFC 5044 4, 5041 5-7, RFC
// 5040 5-7, RFC 7306 5-6.
//
// Between two calls all that is kept is a partial header, the position inside a payload, and, only
// while a stream is held or a CRC is waiting for its FPDU, a staging buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "qp/receive/completion_order.h"
#include "qp/receive/inbound_answers.h"
#include "qp/receive/inbound_messages.h"
#include "qp/receive/inbound_stream.h"
#include "qp/receive/inbound_writes.h"
#include "qp/receive/payload_placer.h"
#include "qp/receive/segment_run.h"
#include "qp/receive/staged_bytes.h"

namespace uwarp {

class Receiver {
 public:
  Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives, StreamState& stream,
           CompletionOrder order, ReceiveCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// Where the next bytes belong. `staging` must be non-null.
  std::span<const iovec> window(StagingPointer& staging);
  /// The stream gave `bytes` into the last window. May keep `staging` (null on return, or another).
  /// Returns ReceiveOutcome bits, as the following calls do.
  uint32_t received(StagingPointer& staging, size_t bytes);
  /// For the next received(): what it finds may answer requests that the peer has read only now out
  /// of our memory.
  void note_acknowledged() { order_.note_acknowledged(); }
  /// Goes on after kRxHeld: consumes what is kept.
  uint32_t resume(StagingPointer& staging);
  /// What is owed to the peer has been sent: the completion that waited for that (XRC) is stored.
  uint32_t complete_kept();
  /// The grace time of a held stream is over: Terminate 1/2/02. Of an unreliable one: resume()
  /// follows, and drops the message.
  uint32_t expire();
  /// The kernel could not write to the place of the last window (memory unmapped): Terminate.
  uint32_t fault();

  /// Further bytes are dropped: the stream failed or ended. Reads only to see the FIN.
  bool closed() const { return in_.closed(); }
  void close() { in_.close(); }
  bool held() const { return messages_.held(); }
  /// Held, but reading goes on: an acknowledgement is due that may be behind the message that
  /// waits, and there is room to keep what comes before it.
  bool looks_ahead() const {
    return held() && in_.config.acknowledged && !closed() && !in_.stream.outbound.empty() &&
           staged_.size() < kStagingBytes;
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
  /// See InboundMessages.
  CompletionQueue* named_completions() const { return messages_.named_completions(); }
  void report_queue() { messages_.report_queue(); }
  void forget(const XrcQueue& queue) { messages_.forget(queue); }

 private:
  void begin_call();
  uint32_t consume(StagingPointer& staging);
  [[gnu::noinline, gnu::cold]] void look_ahead();

  // One FPDU. Each step returns false if it needs more bytes, or may not go on.
  bool take_header();
  bool read_header();
  [[gnu::noinline]] bool check_frame();
  bool open_message();
  bool take_payload();
  bool take_trailer();
  void finish_segment();
  [[gnu::noinline, gnu::cold]] bool bring_back();
  void note_following();
  void note_first_fpdu();

  // A message that is all header.
  [[gnu::noinline]] bool take_control();
  bool check_control(size_t size);
  void deliver_control(std::span<const std::byte> rdmap);
  /// A Read or atomic that the peer asks for: checked on arrival, then queued for the transmit
  /// side, which executes them in order. RFC 5040 5.2, RFC 7306 5.2.
  template <typename Header>
  void take_request(const Header& header);
  void take_terminate(std::span<const std::byte> rdmap);

  InboundStream in_;
  CompletionOrder order_;
  InboundWrites writes_;
  InboundMessages messages_;
  InboundAnswers answers_;
  UntaggedSequence request_sequence_;  // queue 1, only its number
  PayloadPlacer placer_;
  StagedBytes staged_;

  bool open_ = false;         // a segment is under way: its header has been taken
  uint8_t expect_large_ = 0;  // segments
  uint32_t trailer_left_ = 0;
  size_t direct_bytes_ = 0;  // of the last window, that go straight to their place
  size_t window_bytes_ = 0;  // ... and all of it
  SegmentRun run_;           // segments behind the one under way
};

}  // namespace uwarp
