// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Turns posted requests into messages, one after the other: Sends and Writes segment by segment,
// Reads and atomics as one FPDU, changes of windows without any. Transmit side. RFC 5040 5, RFC
// 7306 5, 6.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/ddp/buffer_list.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/fpdu_writer.h"
#include "qp/transmit/send_completer.h"

namespace uwarp {

class Requester {
 public:
  Requester(const QpConfig& config, SendQueue& queue, StreamState& stream, FpduWriter& writer,
            SendCompleter& completer, TransmitCounters& counters);

  void restart();
  /// Forgets the message under way.
  void drop_message() { open_ = immediate_due_ = false; }

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
  /// The next segment of the open message. False: it has no room in the batch.
  bool append_segment();
  /// If the oldest waiting request has failed, and those before it are complete by now: fails the
  /// stream. True if it has.
  bool fail_if_due();
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
  bool gather(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void emit_read(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void emit_atomic(const SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] void change_window(SendWqe& wqe, uint64_t position);
  [[gnu::noinline]] uint8_t marked_write_control() const;
  FpduWriter::Built append_write(const SendWqe& wqe, const FpduWriter::Segment& segment);
  FpduWriter::Built append_send(const SendWqe& wqe, const FpduWriter::Segment& segment);
  [[gnu::noinline]] bool append_immediate(SendWqe& wqe);
  /// The last byte of a request is built.
  void end(SendWqe& wqe);
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
};

}  // namespace uwarp
