// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/inbound_answers.h"

#include "base/bytes.h"

namespace uwarp {

bool InboundAnswers::gather(uint64_t position) {
  sink_.clear();
  return sends_.gather(position, *in_.config.regions, *in_.config.domain, kAccessLocalWrite, sink_);
}

void InboundAnswers::open(const TaggedHeader& header) {
  InboundSegment& segment = in_.segment;
  const OutboundRequest* read = in_.stream.outbound.front();
  if (read == nullptr || read->atomic)
    return in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
  if (!read_open_) {
    placed_ = 0;
    sink_.clear();
    if (read->request != OutboundRequest::kNoRequest && !gather(read->request)) return fail_place();
    read_open_ = true;
  }
  segment.payload_offset = placed_;
  const uint32_t payload = segment.payload_left;
  const uint64_t end = placed_ + payload;
  if (payload > 0 && header.stag.value != read->token)
    return fail(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kBadRespErr);
  if (end > read->length_bytes) return fail(TerminateCode::kDdpTaggedBounds, WcStatus::kLocLenErr);
  if ((payload > 0 && header.to != placed_) || (segment.last && end != read->length_bytes))
    return fail(TerminateCode::kDdpTaggedBounds, WcStatus::kBadRespErr);
}

void InboundAnswers::finish_segment() {
  placed_ = in_.segment.payload_offset;
  if (in_.segment.last) finish();
}

// Matched by the order of the answers, then by the Request Identifier (rule A3).
void InboundAnswers::take(const AtomicResponseHeader& header) {
  const OutboundRequest* request = in_.stream.outbound.front();
  if (request == nullptr || !request->atomic)
    return in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
  if (header.request_id != request->token)
    return fail(TerminateCode::kRdmapOperationUnspecified, WcStatus::kBadRespErr);
  if (!gather(request->request)) return fail_place();
  atomic_sequence_.skip();
  // The number in the requester's own byte order, as with InfiniBand.
  const auto* value = reinterpret_cast<const std::byte*>(&header.original_value);
  if (!sink_.copy_in(0, value, sizeof header.original_value)) return fail_place();
  finish();
}

bool InboundAnswers::is_acknowledgement(const std::byte* fpdu) const {
  const size_t length = load_be16(fpdu);
  const OutboundRequest* due = in_.stream.outbound.front();
  if (length != TaggedHeader::kWireSize || due == nullptr || due->acknowledges == 0 ||
      due->request != OutboundRequest::kNoRequest)
    return false;
  const std::byte* const header = fpdu + kFpduLengthSize;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  if (!control.tagged() || !control.last() || check_segment(header, in_.features())) return false;
  if (RdmapControl{static_cast<uint8_t>(header[1])}.opcode() != RdmapOpcode::kReadResponse)
    return false;
  return !in_.stream.config.crc || verify_fpdu_crc({fpdu, fpdu_size(length)});
}

void InboundAnswers::finish() {
  const OutboundRequest answered = *in_.stream.outbound.front();
  const bool own = answered.request == OutboundRequest::kNoRequest;
  if (in_.config.trace != nullptr && !own) [[unlikely]] {
    TraceStep step;
    step.kind = TraceStep::Kind::kSendAnswered;
    step.queue_pair = in_.config.number.value;
    step.position = static_cast<uint32_t>(answered.request);
    in_.config.trace->note(step);
  }
  in_.stream.outbound.pop();
  read_open_ = false;
  if (answered.acknowledges != 0)
    in_.stream.acknowledged.store(answered.acknowledges, std::memory_order_release);
  if (!own) sends_.at(answered.request).answered.store(true, std::memory_order_release);
  order_.note_acknowledged();
  in_.outcome |= kRxTransmitWanted;
}

void InboundAnswers::fail(TerminateCode code, WcStatus status) {
  StreamFailure failure = in_.failure(code, true);
  if (const OutboundRequest* open = in_.stream.outbound.front()) failure.request = open->request;
  failure.status = status;
  in_.fail(failure, QpEvent::kRequestError);
}

// The peer did nothing wrong, so no header is given and the completion tells (RFC 7306 8.1).
void InboundAnswers::fail_place() {
  StreamFailure failure = in_.failure(TerminateCode::kRdmapLocalCatastrophic, false);
  failure.request = in_.stream.outbound.front()->request;
  failure.status = WcStatus::kLocProtErr;
  in_.fail(failure, std::nullopt);
}

}  // namespace uwarp
