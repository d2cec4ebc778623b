// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Messages that take a receive: Sends of all kinds, and Immediate Data. From their first segment to
// the receive completion. Receive side. RFC 5040 5.3, RFC 5041 5.3 (queue 0), RFC 7306 6.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/ddp/buffer_list.h"
#include "protocol/ddp/segment.h"
#include "qp/receive/completion_order.h"
#include "qp/receive/inbound_stream.h"
#include "qp/receive/inbound_writes.h"
#include "qp/receive_queue.h"

namespace uwarp {

class InboundMessages {
 public:
  InboundMessages(InboundStream& in, ReceiveQueue& receives, InboundWrites& writes,
                  CompletionOrder& order);

  void reset();
  void restart() { sequence_ = UntaggedSequence(in_.stream.config.first_msn); }
  /// Between the first and the last segment of a message.
  bool message_open() const { return sequence_.open(); }
  /// The last message that has been delivered.
  Msn delivered() const { return sequence_.expected().previous(); }

  /// A segment has come. False: it is held for want of a receive, or has failed the stream.
  bool open(const UntaggedHeader& header);
  /// The payload of the segment under way is in place.
  void finish_segment();

  /// No receive is posted for the message that has come.
  bool held() const { return place_in_line_.held(); }
  void end_hold() { place_in_line_.go_on(); }
  /// The message that is held waits no longer: it is dropped when the stream goes on, and so are
  /// those behind it until there is a receive again.
  void end_grace() { grace_ended_at_ = receive_.position; }

  /// The memory of the message under way.
  BufferList& sink() { return sink_; }
  const BufferList& sink() const { return sink_; }
  /// The receive cannot be used; nothing is wrong with the message.
  [[gnu::noinline, gnu::cold]] void fail_receive(WcStatus status = WcStatus::kLocProtErr);
  /// The stream has failed. If that was a segment of a Write whose Immediate Data will not come
  /// now: the receive that this would have taken fails, as with InfiniBand.
  [[gnu::noinline, gnu::cold]] void fail_immediate();
  /// No more bytes will come: the receive that was taken is flushed, and those that wait.
  void flush();

  /// XRC: the answers that were owed have been sent: stores the completion that waited for that.
  [[gnu::noinline]] void complete_kept();
  /// XRC: where receives complete, if a message has named a queue since the last reset.
  CompletionQueue* named_completions() const {
    return named_ != nullptr ? named_->completions : nullptr;
  }
  /// XRC: `queue` is going away. What has taken a receive of it, or waits for one, fails the
  /// stream.
  void forget(const XrcQueue& queue);
  /// The next message that takes a receive reports kRxNewQueue.
  void report_queue() { report_queue_ = true; }

 private:
  bool take_receive(const UntaggedHeader& header);
  [[gnu::noinline]] bool take_room();
  [[gnu::noinline]] bool aim(const UntaggedHeader& header);
  [[gnu::noinline]] void aim_nowhere();
  bool resolve_sink();
  [[gnu::noinline, gnu::cold]] std::optional<bool> apply_faults(const UntaggedHeader& header);
  [[gnu::noinline]] bool hold();
  [[gnu::noinline]] bool do_without_receive();
  bool drop();
  void read_away();
  bool continues_dropped() const {
    return opcode_ == kDropped && in_.segment.opcode == dropped_opcode_;
  }
  void finish();
  [[gnu::noinline]] bool describe(WorkCompletion& completion, bool& solicited);
  /// The message is wrong, or does not fit its receive.
  [[gnu::noinline, gnu::cold]] void fail(TerminateCode code, QpEvent event, WcStatus status);
  [[gnu::noinline, gnu::cold]] bool lose_long_message(TerminateCode code);
  [[gnu::noinline, gnu::cold]] void fail_range(TerminateCode code);
  WorkCompletion completion(WcStatus status, uint32_t vendor_err) const;
  void push(const WorkCompletion& completion, bool solicited);
  void keep(const WorkCompletion& completion, bool solicited);
  void end_receive(WcStatus status);
  void store(CompletionQueue& queue, const WorkCompletion& completion, bool solicited);
  [[gnu::noinline, gnu::cold]] void trace_receive(
      TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase = TraceStep::Phase::kBegun);

  InboundStream& in_;
  ReceiveQueue& receives_;
  ReceivePlace place_in_line_;
  InboundWrites& writes_;
  CompletionOrder& order_;
  UntaggedSequence sequence_;
  const bool unusual_;  // faults may be injected, messages name their queue, or take no receive
  bool report_queue_ = false;
  CompletionQueue* completions_;         // of the receive that is in use
  const ProtectionDomain* domain_;       // ... of its memory
  const XrcQueue* named_ = nullptr;      // XRC: that the last message has named
  QueueNumber qn_ = QueueNumber::kSend;  // the same in all segments of the message
  bool taken_ = false;                   // a receive is in use
  /// What the last receive was when a message had waited long enough for the next one.
  std::optional<uint32_t> grace_ended_at_;
  RecvWqe receive_;
  BufferList sink_;
  /// Of a message that is read and dropped, in place of its own opcode. No segment has it, so that
  /// only rare paths meet it.
  static constexpr RdmapOpcode kDropped{0xE};
  static_assert(!traits(kDropped).defined);
  RdmapOpcode opcode_ = RdmapOpcode::kSend;  // the same in all segments of the message
  RdmapOpcode dropped_opcode_ = kDropped;
  uint32_t invalidate_ = 0;  // its Invalidate STag, or immediate of our own Send
  std::byte immediate_[kImmediateSize];
  /// The application answers over another queue pair, and nothing orders two streams: the peer is
  /// to have the acknowledgement of its message before the application has the message.
  struct Kept {
    CompletionQueue* queue;
    WorkCompletion completion;
    bool solicited;
  };
  const bool keeps_;
  std::optional<Kept> kept_;
};

}  // namespace uwarp
