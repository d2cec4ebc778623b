// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/responder.h"

#include "protocol/rdmap/atomic_operation.h"
#include "protocol/rdmap/responder_rules.h"
#include "protocol/wire/delivered_mark.h"
#include "qp/terminate_status.h"

namespace uwarp {
void Responder::restart() {
  open_ = false;
  gathered_end_ = 0;
  atomic_msn_ = stream_.config.first_msn;
  told_delivered_ = stream_.config.first_msn.previous();
}

void Responder::emit_delivered_mark(bool next_waits) {
  told_delivered_ = Msn{stream_.delivered.load(std::memory_order_acquire)};
  writer_.append_empty_write(DeliveredMark::kStag,
                             DeliveredMark{told_delivered_, next_waits}.offset());
}

void Responder::begin() {
  const InboundRequest& request = *stream_.inbound.front();
  offset_ = 0;
  if (request.error) return fail(*request.error);
  if (request.atomic() != nullptr) return answer_atomic(request);
  counters_.count(MessageKind::kReadResponse);
  open_ = true;
  message_bytes_ = request.read()->size;
}

// Executed when it is its turn among the answers owed, so in the order of the requests; begin() is
// called only when an FPDU has room, so it is executed once. RFC 7306 5.4.
void Responder::answer_atomic(const InboundRequest& request) {
  const AtomicRequestHeader header = *request.atomic();
  RemotePlace cell;
  if (const auto error = check_atomic_request(
          header, *config_.regions, stream_.peer(config_.domain), cell, config_.acknowledged))
    return fail(*error);
  // Answers to Reads before it may still lie in the application's memory. Without memory for a
  // copy they go out first, and it is executed for the next batch.
  if (!writer_.batch().detach(cell.address, sizeof(uint64_t))) return;
  const auto original = execute(header, cell);
  if (!original) return fail(TerminateCode::kRdmapInvalidSTag);
  answered(request);
  writer_.append_message(
      RdmapOpcode::kAtomicResponse, atomic_msn_,
      AtomicResponseHeader{.request_id = header.request_id, .original_value = *original});
}

std::optional<uint64_t> Responder::execute(const AtomicRequestHeader& request,
                                           const RemotePlace& cell) {
  const PlaceGuard guard(cell, request.remote_stag);
  if (!guard) return std::nullopt;
  if (cell.memory == MemoryKind::kPlain) [[likely]]
    return execute_atomic(cell.address, request);
  return execute_atomic_on_demand(cell.address, request, config_.regions->on_demand_atomics);
}

// The source is checked again for each segment: it may be deregistered while the answer is on its
// way, and then the Terminate reports what is left of the request (RFC 5040 4.8).
bool Responder::append_segment() {
  using Built = FpduWriter::Built;
  const FpduWriter::Segment segment = writer_.next_segment(left(), TaggedHeader::kWireSize);
  const ReadRequestHeader& request = *stream_.inbound.front()->read();
  RemotePlace source;
  if (const auto error = check_read_request(request, offset_, *config_.regions,
                                            stream_.peer(config_.domain), source)) {
    fail(*error);
    return true;
  }
  const Built built = append_from(source, request.source_stag,
                                  {.control = segment.control(true),
                                   .rsvd_ulp = make_rdmap_control(RdmapOpcode::kReadResponse),
                                   .stag = request.sink_stag,
                                   .to = request.sink_to + offset_},
                                  segment.payload);
  if (built == Built::kNoRoom) return false;
  if (built == Built::kFault) {
    fail(TerminateCode::kRdmapInvalidSTag);
    return true;
  }
  if (segment.payload > TransmitBatch::kCopyBytes) gathered_end_ = writer_.built_position();
  offset_ += segment.payload;
  if (segment.last) {
    answered(*stream_.inbound.front());
    open_ = false;
  }
  return true;
}

// What a window shows is copied while the binding holds: unbinding then waits for no send call.
FpduWriter::Built Responder::append_from(const RemotePlace& source, STag stag,
                                         const TaggedHeader& header, uint32_t size) {
  BufferList payload;
  payload.append(source.address, size, source.region, source.memory);
  if (!source.through_window()) [[likely]]
    return writer_.append(header, &payload, 0, size);
  const PlaceGuard guard(source, stag);
  return guard ? writer_.append(header, &payload, 0, size, true) : FpduWriter::Built::kFault;
}

// Freed before the bytes go out: the peer may ask again as soon as it has the last one.
void Responder::answered(const InboundRequest& request) {
  if (request.delivered.after(told_delivered_)) told_delivered_ = request.delivered;
  stream_.inbound.pop();
}

// A Read that fails half way is reported as what is left of it (RFC 5040 4.8); of an atomic only
// the DDP header is given (RFC 7306 8.1).
void Responder::fail(TerminateCode code) {
  const InboundRequest& request = *stream_.inbound.front();
  StreamFailure failure = StreamFailure::terminated_by_us(code);
  if (const ReadRequestHeader* read = request.read()) {
    failure.terminate.copy_ddp_header(request.ddp_header,
                                      UntaggedHeader::kWireSize + ReadRequestHeader::kWireSize);
    ReadRequestHeader rest = *read;
    rest.sink_to += offset_;
    rest.source_to += offset_;
    rest.size -= static_cast<uint32_t>(offset_);
    std::byte encoded[ReadRequestHeader::kWireSize];
    rest.encode(encoded);
    failure.terminate.copy_read_request(encoded);
  } else {
    failure.terminate.copy_ddp_header(request.ddp_header,
                                      UntaggedHeader::kWireSize + AtomicRequestHeader::kWireSize);
  }
  stream_.fail(failure, is_protection_error(code) ? QpEvent::kAccessError : QpEvent::kRequestError);
  open_ = false;
}

}  // namespace uwarp
