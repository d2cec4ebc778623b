// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The peer's answers to our Reads and atomics, and where they go. Receive side. RFC 5040 5.2, RFC
// 7306 5.2.
#pragma once

#include <cstdint>

#include "protocol/ddp/buffer_list.h"
#include "protocol/ddp/segment.h"
#include "qp/receive/completion_order.h"
#include "qp/receive/inbound_stream.h"
#include "qp/send_queue.h"

namespace uwarp {

class InboundAnswers {
 public:
  InboundAnswers(InboundStream& in, SendQueue& sends, CompletionOrder& order)
      : in_(in), sends_(sends), order_(order) {}

  void reset() { read_open_ = false; }
  void restart() { atomic_sequence_ = UntaggedSequence(in_.stream.config.first_msn); }
  /// Between the first and the last segment of a Read Response.
  bool message_open() const { return read_open_; }
  /// Queue 3. Only its number moves.
  const UntaggedSequence& atomic_sequence() const { return atomic_sequence_; }

  /// A segment of a Read Response has come; false if it failed the stream.
  [[gnu::noinline]] void open(const TaggedHeader& header);
  /// The payload of the segment under way is in place.
  void finish_segment();
  void take(const AtomicResponseHeader& header);
  /// A whole FPDU that is the answer to a Read that only acknowledges.
  bool is_acknowledgement(const std::byte* fpdu) const;
  /// The oldest request has its answer.
  [[gnu::noinline]] void finish();

  /// The memory of the answer under way.
  BufferList& sink() { return sink_; }
  const BufferList& sink() const { return sink_; }
  /// The answer at hand is wrong, or does not fit what was asked.
  [[gnu::noinline, gnu::cold]] void fail(TerminateCode code, WcStatus status);
  /// The place where it belongs is not, or no longer, what it must be.
  [[gnu::noinline, gnu::cold]] void fail_place();

 private:
  bool gather(uint64_t position);

  InboundStream& in_;
  SendQueue& sends_;
  CompletionOrder& order_;
  UntaggedSequence atomic_sequence_;
  bool read_open_ = false;  // the sink is set up for the Read at the head
  uint64_t placed_ = 0;
  BufferList sink_;
};

}  // namespace uwarp
