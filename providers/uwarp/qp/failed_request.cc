// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/failed_request.h"

#include "protocol/wire/ddp_headers.h"
#include "qp/terminate_status.h"

namespace uwarp {
namespace {

// The class of the error says what kind of request it is about.
uint64_t likely_request(TerminateCode code, SendQueue& queue) {
  for (uint64_t i = queue.retired(); i != queue.started(); ++i)
    if (may_have_caused(code, queue.at(i).opcode)) return i;
  return queue.retired();
}

// Several open Writes may use one key; the offset tells them apart, as far as it can.
uint64_t failed_write(const TaggedHeader& header, SendQueue& queue) {
  uint64_t same_key = StreamFailure::kNoRequest;
  for (uint64_t i = queue.retired(); i != queue.started(); ++i) {
    const SendWqe& wqe = queue.at(i);
    if (!is_write(wqe.opcode) || wqe.rkey != header.stag.value) continue;
    const uint64_t offset = header.to - wqe.remote_address;
    if (offset == 0 || offset < wqe.length_bytes) return i;
    if (same_key == StreamFailure::kNoRequest) same_key = i;
  }
  return same_key;
}

uint64_t failed_send(Msn msn, SendQueue& queue) {
  for (uint64_t i = queue.retired(); i != queue.started(); ++i) {
    const SendWqe& wqe = queue.at(i);
    if (takes_receive(wqe.opcode) && wqe.msn == msn.value) return i;
  }
  return StreamFailure::kNoRequest;
}

uint64_t failed_read(Msn msn, const OutboundRequests& outbound) {
  const OutboundRequest* open =
      outbound.find([&](const OutboundRequest& candidate) { return candidate.msn == msn; });
  return open != nullptr ? open->request : StreamFailure::kNoRequest;
}

}  // namespace

uint64_t failed_request(const StreamFailure& failure, const OutboundRequests& outbound,
                        SendQueue& queue, bool acknowledged) {
  if (failure.oldest_request) return queue.retired();
  if (!failure.by_peer) return failure.request;
  const TerminateHeader& terminate = failure.terminate;
  if (!terminate.has_ddp_header)
    return acknowledged ? likely_request(terminate.code, queue) : failure.request;
  const std::byte* header = terminate.ddp_header.data();
  if (terminate.ddp_header_size == TaggedHeader::kWireSize) {
    const RdmapControl control{static_cast<uint8_t>(header[1])};
    return control.opcode() == RdmapOpcode::kWrite
               ? failed_write(TaggedHeader::decode(header), queue)
               : StreamFailure::kNoRequest;
  }
  const UntaggedHeader untagged = UntaggedHeader::decode(header);
  switch (untagged.qn) {
    case QueueNumber::kSend:
      return failed_send(untagged.msn, queue);
    case QueueNumber::kReadRequest:
      return failed_read(untagged.msn, outbound);
    default:
      return static_cast<uint32_t>(untagged.qn) >= kFirstSharedQueue
                 ? failed_send(untagged.msn, queue)
                 : StreamFailure::kNoRequest;
  }
}

}  // namespace uwarp
