// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The two roles of MPA start-up.
#include "protocol/mpa/handshake.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>

#include "protocol/mpa/fpdu.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

namespace {

// Depth as it goes on the wire.
constexpr uint16_t wire_depth(uint16_t depth) {
  return depth == kDepthNotNegotiated ? depth : std::min(depth, kDepthWireMax);
}

// In the smaller of two depths the all-ones value sets no limit.
static_assert(kDepthNotNegotiated > kDepthWireMax);

// Adds what belongs to the frame to `buffer`, decodes it, and says how much was taken.
StartFrameDecode take_frame(std::span<const std::byte> bytes, bool reply,
                            std::span<std::byte> buffer, size_t& buffered, size_t& wanted,
                            size_t& consumed, MpaStartFrame& frame) {
  StartFrameDecode step;
  do {
    const size_t piece = std::min(wanted, bytes.size() - consumed);
    if (piece != 0) std::memcpy(&buffer[buffered], &bytes[consumed], piece);
    buffered += piece;
    consumed += piece;
    step = decode_start_frame(buffer.first(buffered), reply, frame);
    wanted = step.wanted;
  } while (step.status == StartFrameDecode::Status::kNeedMore && consumed < bytes.size());
  return step;
}

}  // namespace

const char* describe(MpaFailure failure) {
  static constexpr const char* kTexts[] = {
      "no failure",
      "not an MPA frame of the expected kind",
      "unknown MPA revision",
      "more than 512 bytes of private data",
      "IRD/ORD word announced but missing",
      "peer demands markers",
      "reply is not of the request's revision",
      "peer wants more inbound reads than this side can hold",
      "no ready-to-receive message in common",
      "peer did not wait for the reply",
      "peer closed the connection",
  };
  static_assert(std::size(kTexts) == static_cast<size_t>(MpaFailure::kPeerClosed) + 1);
  return kTexts[static_cast<size_t>(failure)];
}

size_t write_bare_terminate_fpdu(std::byte* at, TerminateCode code, bool crc) {
  constexpr size_t kLength = UntaggedHeader::kWireSize + TerminateHeader::kWireSizeMin;
  static_assert(fpdu_size(kLength) == kBareTerminateFpduSize);
  store_be16(at, kLength);
  const UntaggedHeader header{.control = DdpControl::make(false, true),
                              .rsvd_ulp = make_rdmap_control(RdmapOpcode::kTerminate),
                              .invalidate_stag = STag{},
                              .qn = QueueNumber::kTerminate,
                              .msn = Msn{1},
                              .mo = 0};
  header.encode(at + kFpduLengthSize);
  TerminateHeader terminate;
  terminate.code = code;
  terminate.encode(at + kFpduLengthSize + UntaggedHeader::kWireSize);
  const size_t covered = kFpduLengthSize + kLength;
  static_assert(fpdu_pad(kLength) == 0, "the CRC below covers no pad");
  return covered + write_fpdu_trailer(at + covered, kLength, crc ? crc32c(at, covered) : 0);
}

// --- Initiator ----------------------------------------------------------------------------------

MpaInitiator::MpaInitiator(const Config& config) : ird_limit_(config.ird_limit) {
  const bool enhanced = config.revision >= 2;
  sent_.revision = enhanced ? 2 : 1;
  sent_.crc = config.crc;
  sent_.enhanced = enhanced;
  // Peer-to-peer offers at least one kind of RTR. RFC 6581-9.2-a.
  sent_.peer_to_peer = enhanced && config.peer_to_peer && (config.rtr_write || config.rtr_read);
  sent_.rtr_write = sent_.peer_to_peer && config.rtr_write;
  sent_.rtr_read = sent_.peer_to_peer && config.rtr_read;
  sent_.ird = wire_depth(config.ird);
  sent_.ord = wire_depth(config.ord);

  const size_t space = enhanced ? kPrivateDataEnhancedMax : kPrivateDataWireMax;
  assert(config.private_data.size() <= space);
  MpaStartFrame frame = sent_;
  (void)frame.private_data.assign(
      config.private_data.first(std::min(space, config.private_data.size())));
  request_size_ = frame.encode(request_);
}

MpaInitiator::Verdict MpaInitiator::on_bytes(std::span<const std::byte> bytes) {
  verdict_.consumed = 0;
  if (verdict_.state != State::kNeedMore || bytes.empty()) return verdict_;
  const StartFrameDecode step =
      take_frame(bytes, true, received_, received_size_, wanted_, verdict_.consumed, reply_);
  if (step.status == StartFrameDecode::Status::kBad) fail(step.error);
  if (step.status == StartFrameDecode::Status::kFrame) judge_reply();
  return verdict_;
}

MpaInitiator::Verdict MpaInitiator::on_end_of_stream() {
  verdict_.consumed = 0;
  if (verdict_.state != State::kNeedMore) return verdict_;
  fail(MpaFailure::kPeerClosed);
  // A peer that knows only revision 1 closes when it sees a 2.
  verdict_.retry_revision1 = sent_.revision == 2 && received_size_ == 0;
  return verdict_;
}

void MpaInitiator::fail(MpaFailure failure) {
  verdict_.state = State::kFailed;
  verdict_.failure = failure;
  wanted_ = 0;
}

void MpaInitiator::judge_reply() {
  // A rejection comes first: it ends the connection, so the rest does not matter. RFC 5044-7.1.1-e.
  if (reply_.reject) {
    verdict_.state = State::kRejected;
    return;
  }
  // The Reply is of the Request's revision, and enhanced as that is. RFC 6581-6-b.
  if (reply_.revision != sent_.revision || reply_.enhanced != sent_.enhanced) {
    fail(MpaFailure::kRevisionMismatch);
    verdict_.retry_revision1 = sent_.revision == 2;
    return;
  }
  if (reply_.markers) return fail(MpaFailure::kMarkersDemanded);  // none are sent: RFC 5044-4.3-a/b

  negotiated_.crc = sent_.crc || reply_.crc;  // on if either side asks: RFC 5044-4.4-c
  negotiated_.revision = sent_.revision;
  negotiated_.enhanced = sent_.enhanced;
  negotiated_.ird = sent_.ird;
  negotiated_.ord = sent_.ord;
  if (sent_.enhanced && !(negotiate_depths() && negotiate_rtr())) return;
  verdict_.state = State::kAccepted;
}

bool MpaInitiator::negotiate_depths() {
  negotiated_.ord = std::min(sent_.ord, reply_.ird);  // what the Reply allows: RFC 6581-9.1-e
  const bool both_known = sent_.ird != kDepthNotNegotiated && reply_.ord != kDepthNotNegotiated;
  if (!both_known || reply_.ord <= sent_.ird) return true;
  if (reply_.ord <= ird_limit_) {
    negotiated_.ird = reply_.ord;
    return true;
  }
  fail(MpaFailure::kInsufficientIrd);  // an ORD that cannot be served: RFC 6581-9.1-f
  verdict_.terminate = TerminateCode::kMpaInsufficientIrd;
  return false;
}

bool MpaInitiator::negotiate_rtr() {
  // Without A in both frames there is no RTR: the client-server model, in which the initiator's
  // own first message allows the responder to send.
  if (!sent_.peer_to_peer || !reply_.peer_to_peer) return true;
  negotiated_.peer_to_peer = true;
  if (sent_.rtr_write && reply_.rtr_write) {
    negotiated_.rtr = RtrKind::kWrite;  // preferred when the Reply names several, A36
  } else if (sent_.rtr_read && reply_.rtr_read) {
    negotiated_.rtr = RtrKind::kRead;
    negotiated_.ord = std::max<uint16_t>(negotiated_.ord, 1);  // for the RTR: RFC 6581-9.2-h
  } else {
    fail(MpaFailure::kNoCommonRtr);  // no common RTR, no connection: RFC 6581-9.2-c
    verdict_.terminate = TerminateCode::kMpaNoCommonRtr;
    return false;
  }
  return true;
}

// --- Responder ----------------------------------------------------------------------------------

MpaResponder::Verdict MpaResponder::on_bytes(std::span<const std::byte> bytes) {
  verdict_.consumed = 0;
  if (bytes.empty()) return verdict_;
  if (verdict_.state == State::kRequest) refuse(MpaFailure::kBytesBehindRequest);
  if (verdict_.state != State::kNeedMore) return verdict_;
  const StartFrameDecode step =
      take_frame(bytes, false, received_, received_size_, wanted_, verdict_.consumed, request_);
  if (step.status == StartFrameDecode::Status::kBad) refuse(step.error);
  if (step.status == StartFrameDecode::Status::kFrame) {
    judge_request();
    if (verdict_.consumed < bytes.size() && verdict_.state == State::kRequest)
      refuse(MpaFailure::kBytesBehindRequest);
  }
  return verdict_;
}

MpaResponder::Verdict MpaResponder::on_end_of_stream() {
  verdict_.consumed = 0;
  if (verdict_.state == State::kNeedMore || verdict_.state == State::kRequest)
    refuse(MpaFailure::kPeerClosed);
  return verdict_;
}

void MpaResponder::refuse(MpaFailure failure) {
  verdict_.state = State::kRefused;
  verdict_.failure = failure;
  wanted_ = 0;
}

void MpaResponder::judge_request() {
  if (request_.revision > config_.revision_max) return refuse(MpaFailure::kBadRevision);
  MpaFailure failure = MpaFailure::kNone;
  if (request_.markers) {
    failure = MpaFailure::kMarkersDemanded;
  } else if (request_.peer_to_peer && choose_rtr() == RtrKind::kNone) {
    failure = MpaFailure::kNoCommonRtr;  // a Send alone is not taken, A37
  }
  if (failure == MpaFailure::kNone) {
    verdict_.state = State::kRequest;
    wanted_ = 1;
    return;
  }
  refuse(failure);
  // The peer knows MPA, so it gets a Reply.
  MpaStartFrame frame = make_reply({});
  frame.reject = true;
  reply_size_ = frame.encode(reply_);
}

RtrKind MpaResponder::choose_rtr() const {
  if (!request_.peer_to_peer) return RtrKind::kNone;
  if (request_.rtr_write) return RtrKind::kWrite;  // one that is on offer: RFC 6581-9.2-b
  return request_.rtr_read ? RtrKind::kRead : RtrKind::kNone;
}

size_t MpaResponder::private_data_max() const {
  return request_.enhanced ? kPrivateDataEnhancedMax : kPrivateDataWireMax;
}

// What accepting and rejecting Replies share: revision and S as asked. RFC 6581-6-c.
MpaStartFrame MpaResponder::make_reply(std::span<const std::byte> private_data) const {
  MpaStartFrame frame;
  frame.is_reply = true;
  // The result rather than our wish, for initiators that look at the Reply only.
  frame.crc = config_.crc || request_.crc;
  frame.revision = request_.revision;
  frame.enhanced = request_.enhanced;
  frame.peer_to_peer = request_.peer_to_peer;
  assert(private_data.size() <= private_data_max());
  (void)frame.private_data.assign(
      private_data.first(std::min(private_data.size(), private_data_max())));
  return frame;
}

MpaResponder::Reply MpaResponder::accept(uint16_t ird, uint16_t ord,
                                         std::span<const std::byte> private_data) {
  assert(verdict_.state == State::kRequest);
  MpaStartFrame frame = make_reply(private_data);
  const RtrKind rtr = choose_rtr();
  frame.rtr_write = rtr == RtrKind::kWrite;
  frame.rtr_read = rtr == RtrKind::kRead;
  frame.ird = wire_depth(ird);
  if (rtr == RtrKind::kRead) frame.ird = std::max<uint16_t>(frame.ird, 1);
  frame.ord = wire_depth(ord);

  MpaNegotiated result;
  result.crc = frame.crc;
  result.revision = frame.revision;
  result.enhanced = frame.enhanced;
  result.peer_to_peer = frame.peer_to_peer;
  result.rtr = rtr;
  result.ird = frame.ird;
  result.ord = frame.ord;
  if (frame.enhanced) {
    result.ord = std::min(frame.ord, request_.ird);  // fits the initiator's IRD: RFC 6581-9.1-c
    // An ORD that is still open stays open in the frame; its owner keeps to result.ord later.
    if (frame.ord != kDepthNotNegotiated) frame.ord = result.ord;
  }
  reply_size_ = frame.encode(reply_);
  verdict_.state = State::kReplied;
  return {.bytes = refusal(), .negotiated = result};
}

MpaResponder::Reply MpaResponder::reject(std::span<const std::byte> private_data) {
  assert(verdict_.state == State::kRequest);
  MpaStartFrame frame = make_reply(private_data);
  frame.reject = true;
  reply_size_ = frame.encode(reply_);
  verdict_.state = State::kReplied;
  return {.bytes = refusal(), .negotiated = {}};
}

}  // namespace uwarp
