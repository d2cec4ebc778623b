// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmit_trace.h"

#include <algorithm>

#include "base/bytes.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

void TransmitTrace::tell(TraceStep::Kind kind, uint64_t position) {
  TraceStep step;
  step.kind = kind;
  step.queue_pair = queue_pair_;
  step.position = static_cast<uint32_t>(position);
  sink_.note(step);
}

// An FPDU begins in one piece: its length and the two control bytes lie side by side.
void TransmitTrace::built(const SendQueue& queue, std::span<const iovec> bytes,
                          std::span<const uint32_t> ends) {
  for (; begun_ < queue.started(); ++begun_) tell(TraceStep::Kind::kSendBegun, begun_);
  fpdus_.clear();
  gone_ = 0;
  size_t piece = 0, piece_begin = 0, begin = 0;
  for (const uint32_t end : ends) {
    while (piece < bytes.size() && piece_begin + bytes[piece].iov_len <= begin)
      piece_begin += bytes[piece++].iov_len;
    if (piece == bytes.size()) return;
    const auto* at = static_cast<const std::byte*>(bytes[piece].iov_base) + (begin - piece_begin);
    const RdmapControl control{static_cast<uint8_t>(at[kFpduLengthSize + 1])};
    fpdus_.push_back({end, static_cast<uint8_t>(control.opcode()), load_be16(at)});
    begin = end;
  }
}

void TransmitTrace::sent(SendQueue& queue, size_t batch_bytes, uint64_t stream_position) {
  for (; gone_ < fpdus_.size() && fpdus_[gone_].end <= batch_bytes; ++gone_) {
    TraceStep step;
    step.kind = TraceStep::Kind::kFpduSent;
    step.queue_pair = queue_pair_;
    step.opcode = fpdus_[gone_].opcode;
    step.bytes = fpdus_[gone_].bytes;
    sink_.note(step);
  }
  // Requests that have completed already are not reported as with the kernel.
  with_kernel_ = std::max(with_kernel_, queue.retired());
  while (with_kernel_ < queue.started() &&
         queue.at(with_kernel_).end_position.load(std::memory_order_relaxed) <= stream_position)
    tell(TraceStep::Kind::kSendWithKernel, with_kernel_++);
}

void TransmitTrace::completed(uint64_t position, const WorkCompletion& completion, bool reported) {
  TraceStep step;
  step.kind = TraceStep::Kind::kSendCompleted;
  step.phase = position < with_kernel_ ? TraceStep::Phase::kWithKernel
               : position < begun_     ? TraceStep::Phase::kBegun
                                       : TraceStep::Phase::kWaiting;
  step.reported = reported;
  step.queue_pair = queue_pair_;
  step.position = static_cast<uint32_t>(position);
  step.opcode = static_cast<uint8_t>(completion.opcode);
  step.status = static_cast<uint32_t>(completion.status);
  sink_.note(step);
  // A request that never was begun is not reported as begun later.
  begun_ = std::max(begun_, position + 1);
}

}  // namespace uwarp
