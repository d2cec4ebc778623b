// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/inbound_stream.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/bytes.h"
#include "memory/place_last.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/control_writes.h"
#include "qp/receive_queue.h"

namespace uwarp {

void SegmentRun::begin(const std::byte* header, uint16_t ulpdu_length, uint8_t following) {
  following_ = following;
  ulpdu_length_ = ulpdu_length;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  const size_t payload = ulpdu_length - ddp_header_size(control);
  if (control.tagged()) {
    auto next = TaggedHeader::decode(header);
    next.to += payload;
    next.encode(next_);
  } else {
    auto next = UntaggedHeader::decode(header);
    next.mo += static_cast<uint32_t>(payload);
    next.encode(next_);
  }
}

size_t SegmentRun::take(size_t bytes, bool filled) {
  size_t staged = 0;
  uint32_t whole = 0;
  for (; whole < segments_; ++whole) {
    const size_t between = std::min(bytes, staged_);
    const size_t direct = std::min(bytes - between, direct_);
    staged += between;
    ahead_ += direct;
    bytes -= between + direct;
    if (direct < direct_) break;
  }
  width_ = filled ? std::clamp<uint32_t>(2 * width_, 1, DdpControl::kMostFollowing)
                  : std::max(whole, width_ / 2);
  segments_ = 0;
  return staged + bytes;
}

bool SegmentRun::continues(const std::byte* fpdu) const {
  const std::byte* const header = fpdu + kFpduLengthSize;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  const DdpControl expected{static_cast<uint8_t>(next_[0])};
  return load_be16(fpdu) == ulpdu_length_ && control.tagged() == expected.tagged() &&
         std::memcmp(header + 1, next_ + 1, ddp_header_size(expected) - 1) == 0;
}

size_t SegmentRun::claim() {
  const size_t direct = std::min(ahead_, direct_);
  ahead_ -= direct;
  return direct;
}

bool InboundAnswers::gather(uint64_t position) {
  sink_.clear();
  return sends_.gather(position, *in_.config.regions, *in_.config.domain, kAccessLocalWrite, sink_);
}

void InboundAnswers::open(const TaggedHeader& header) {
  assert(in_.stream.mine.receive());
  InboundSegment& segment = in_.segment;
  const OutboundRequest* read = in_.stream.outbound.front();
  // A response answers the outstanding Read. RFC 5040-5.2.2-j, 5042-f.
  if (read == nullptr || read->atomic)
    return void(in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true));
  if (!read_open_) {
    placed_ = 0;
    sink_.clear();
    if (read->request != OutboundRequest::kNoRequest && !gather(read->request)) return fail_place();
    read_open_ = true;
  }
  segment.payload_offset = placed_;
  const uint32_t payload = segment.payload_left;
  const uint64_t end = placed_ + payload;
  // To the sink of that Read, which no Write reaches. RFC 5040-5.2.2-e/f/h/i, 5042-d/e.
  if (payload > 0 && header.stag.value != read->token)
    return void(fail(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kBadRespErr));
  if (end > read->length_bytes)
    return void(fail(TerminateCode::kDdpTaggedBounds, WcStatus::kLocLenErr));
  if ((payload > 0 && header.to != placed_) || (segment.last && end != read->length_bytes))
    return void(fail(TerminateCode::kDdpTaggedBounds, WcStatus::kBadRespErr));
}

void InboundAnswers::finish_segment() {
  assert(in_.stream.mine.receive());
  placed_ = in_.segment.payload_offset;
  if (in_.segment.last) finish();
}

// Matched by the order of the answers, then by the Request Identifier (rule A3). RFC 7306-5.2.2-h.
void InboundAnswers::take(const AtomicResponseHeader& header) {
  assert(in_.stream.mine.receive());
  const OutboundRequest* request = in_.stream.outbound.front();
  if (request == nullptr || !request->atomic)
    return void(in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true));
  if (header.request_id != request->token)
    return void(fail(TerminateCode::kRdmapOperationUnspecified, WcStatus::kBadRespErr));
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
  assert(in_.stream.mine.receive() && !in_.stream.outbound.empty());
  // All of the answer completes the request. RFC 5040-5.2.2-d, 5040-5.5-11/19/20c, 7306-5.2.2-g.
  const OutboundRequest answered = *in_.stream.outbound.front();
  const bool own = answered.request == OutboundRequest::kNoRequest;
  if (in_.config.trace != nullptr && !own) [[unlikely]]
    in_.config.trace->note({.kind = TraceStep::Kind::kSendAnswered,
                            .queue_pair = in_.config.number.value,
                            .position = static_cast<uint32_t>(answered.request)});
  in_.stream.outbound.pop();
  read_open_ = false;
  if (answered.acknowledges != 0) in_.stream.acknowledge(answered.acknowledges);
  if (!own) sends_.at(answered.request).answered.store(true, std::memory_order_release);
  order_.note_acknowledged();
  in_.outcome |= kRxTransmitWanted;
}

bool InboundAnswers::fail(TerminateCode code, WcStatus status) {
  StreamFailure failure = in_.failure(code, true);
  if (const OutboundRequest* open = in_.stream.outbound.front()) failure.request = open->request;
  failure.status = status;
  return in_.fail(failure, QpEvent::kRequestError);
}

// The peer did nothing wrong, so no header is given and the completion tells. RFC 5040-7.1-a.
void InboundAnswers::fail_place() {
  StreamFailure failure = in_.failure(TerminateCode::kRdmapLocalCatastrophic, false);
  failure.request = in_.stream.outbound.front()->request;
  failure.status = WcStatus::kLocProtErr;
  in_.fail(failure, std::nullopt);
}

namespace {

// A Write without the right to write has no code of its own and counts as an invalid STag (rule
// A6).
TerminateCode write_fault_code(RegionFault fault) {
  switch (fault) {
    case RegionFault::kBounds:
      return TerminateCode::kDdpTaggedBounds;
    case RegionFault::kWrap:
      return TerminateCode::kDdpTaggedToWrap;
    case RegionFault::kWrongDomain:
      return TerminateCode::kDdpTaggedSTagNotOfStream;
    default:
      return TerminateCode::kDdpTaggedInvalidSTag;
  }
}

}  // namespace

void InboundWrites::reset() {
  place_ = RemoteRange{};
  message_open_ = false;
  bytes_ = 0;
}

void InboundWrites::open(const TaggedHeader& header) {
  assert(in_.stream.mine.receive());
  place_ = RemoteRange{};
  InboundSegment& segment = in_.segment;
  // One Write goes to one buffer, whose STag is in each segment. RFC 5040-5.1-i.
  if (message_open_ && header.stag != stag_)
    return void(in_.fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true));
  const bool first = !message_open_;
  message_open_ = !segment.last;
  stag_ = header.stag;
  segment.payload_offset = 0;
  if (first) {
    bytes_ = 0;
    next_.reset();
  }
  bytes_ += segment.payload_left;
  // STag and TO of an empty segment are not checked. RFC 5040-5.1-j, 5041-5.2-i/j.
  if (segment.payload_left == 0) return take_empty(header, first && segment.last);
  // What is skipped or written twice would count for the length that Immediate Data reports.
  if (next_ && header.to != *next_)
    return void(in_.fail(TerminateCode::kDdpTaggedBounds, QpEvent::kAccessError, true));
  next_ = header.to + segment.payload_left;
  // Each segment is checked when it comes, before any of it is placed. RFC 5040-5.1-c/d/e,
  // 5041-4.2-e, 5041-7.1-a/t6, 4296-3.1-b.
  const RegionFault fault = resolve(header.stag, header.to, segment.payload_left, place_);
  if (fault != RegionFault::kNone) in_.fail(write_fault_code(fault), QpEvent::kAccessError, true);
}

void InboundWrites::take_empty(const TaggedHeader& header, bool alone) {
  const StreamConfig& config = in_.stream.config;
  if (alone && config.magic_stag.value != 0 && header.stag == config.magic_stag &&
      header.to == config.magic_offset && !in_.stream.peer_is_uwarp.exchange(true)) {
    in_.outcome |= kRxMagic;
    if (config.persona == PersonaWrite::Said::kRoce) [[unlikely]]
      tell_persona();
    if (config.answer_magic) in_.stream.answer_due.store(true, std::memory_order_release);
    // A Send with Immediate may have waited for it.
    if (config.answer_magic || in_.config.acknowledged) in_.outcome |= kRxTransmitWanted;
  }
  if (config.may_leave_tcp && alone && in_.stream.peer_is_uwarp.load(std::memory_order_relaxed))
    take_carrier_write(header);
  if (alone) take_persona_write(header);
  if (WireWrite::is(header) && alone) in_.stream.peer_delays.store(true, std::memory_order_relaxed);
  if (!in_.stream.reports_deliveries(in_.config)) [[likely]]
    return;
  if (const auto write = DeliveredWrite::decode(header)) {
    in_.stream.peer_delivered.store(
        write->msn.value | (write->next_waits ? StreamState::kNextWaits : 0),
        std::memory_order_release);
    order_.note_acknowledged();
    in_.outcome |= kRxTransmitWanted;
  }
}

void InboundWrites::tell_persona() {
  in_.stream.control_writes_due.fetch_or(StreamState::kPersonaDue, std::memory_order_release);
  in_.outcome |= kRxTransmitWanted;
}

// Only a uwarp that has recognised this one says it. The first one counts, so that a peer cannot
// make a line of the log, or an answer, of each.
void InboundWrites::take_persona_write(const TaggedHeader& header) {
  const PersonaWrite::Said said = PersonaWrite::decode(header);
  if (said == PersonaWrite::Said::kNothing) return;
  auto unsaid = PersonaWrite::Said::kNothing;
  if (!in_.stream.peer_persona.compare_exchange_strong(unsaid, said)) return;
  in_.outcome |= kRxPersona;
  const PersonaWrite::Said own = in_.stream.config.persona;
  if (own == PersonaWrite::Said::kIwarp && said != own) tell_persona();
}

void InboundWrites::take_carrier_write(const TaggedHeader& header) {
  const auto write = CarrierWrite::decode(header);
  if (!write) return;
  switch (write->kind) {
    case CarrierWrite::Kind::kMailbox:
      in_.stream.peer_mailbox = write->value;
      break;
    case CarrierWrite::Kind::kNumber:
      in_.stream.peer_letter_number = write->value;
      in_.outcome |= kRxOffer;
      break;
    case CarrierWrite::Kind::kSwitch:
      in_.when_whole = kRxSwitch;  // the trailer still comes by the old carrier
      break;
  }
}

bool InboundWrites::store(const std::byte* from, uint32_t size) {
  assert(in_.stream.mine.receive());
  if (!place_) return false;
  const RangeGuard guard(place_, stag_);
  if (!guard) return false;
  if (place_.memory != MemoryKind::kPlain) [[unlikely]]
    return place_last_on_demand(target(), from, size);
  if (in_.segment.last && size == in_.segment.payload_left)
    place_last(target(), from, size);
  else
    std::memcpy(target(), from, size);
  return true;
}

bool InboundWrites::find_behind(uint64_t offset, uint64_t size, RemoteRange& place) const {
  const TaggedHeader header = TaggedHeader::decode(in_.segment.header);
  return resolve(header.stag, header.to + offset, size, place) == RegionFault::kNone &&
         place.memory == MemoryKind::kPlain && !place.through_window();
}

void InboundWrites::resolve_again(const MemoryRegion& region) {
  if (place_.region != &region) return;
  (void)resolve(stag_, TaggedHeader::decode(in_.segment.header).to,
                in_.segment.ulpdu_length - TaggedHeader::kWireSize, place_);
}

namespace {

bool is_immediate(RdmapOpcode opcode) {
  return opcode == RdmapOpcode::kImmediate || opcode == RdmapOpcode::kImmediateSolicited;
}

// What is wrong with the end itself, or below DDP, shows no header.
bool names_message(TerminateCode code) {
  return layer(code) <= 1 && etype(code) != 0 && !is_version_error(code);
}

}  // namespace

InboundMessages::InboundMessages(InboundStream& in, ReceiveQueue& receives, InboundWrites& writes,
                                 CompletionOrder& order)
    : in_(in),
      receives_(receives),
      queue_place_(receives, in.config.receive_waiter),
      writes_(writes),
      order_(order),
      unusual_(in.config.script != nullptr || in.config.sink != nullptr ||
               is_xrc(in.config.transport)),
      completions_(in.config.recv_cq),
      domain_(in.config.receive_domain()),
      defers_(in.config.acknowledged && is_xrc(in.config.transport)) {
  receive_.position = ~uint32_t{0};  // none yet
}

void InboundMessages::reset() {
  complete_deferred();
  aim_nowhere();
  taken_ = false;
}

// XRC. A message that waits in line comes here again.
bool InboundMessages::aim(const UntaggedHeader& header) {
  const auto number = static_cast<uint32_t>(header.qn);
  const XrcQueue* queue = named_;
  if (queue == nullptr || queue->number != number)
    queue = in_.config.xrc != nullptr ? in_.config.xrc->find(number) : nullptr;
  if (queue == nullptr)
    return in_.fail(TerminateCode::kDdpUntaggedInvalidQn, QpEvent::kRequestError, true);
  if (report_queue_) in_.outcome |= kRxNewQueue;
  report_queue_ = false;
  qn_ = header.qn;
  if (queue == named_) return true;
  queue_place_.move_to(*queue->receives);
  completions_ = queue->completions;
  domain_ = queue->domain;
  named_ = queue;
  return true;
}

void InboundMessages::aim_nowhere() {
  queue_place_.move_to(receives_);
  completions_ = in_.config.recv_cq;
  domain_ = in_.config.receive_domain();
  named_ = nullptr;
  report_queue_ = true;
}

void InboundMessages::forget(const XrcQueue& queue) {
  assert(in_.stream.mine.receive());
  complete_deferred();
  if (named_ != &queue) return;
  if (taken_ || rnr_blocked())
    in_.fail(TerminateCode::kDdpUntaggedInvalidQn, QpEvent::kRequestError, true);
  sink_.clear();
  aim_nowhere();
  taken_ = false;  // the receive goes with its queue
}

bool InboundMessages::open(const UntaggedHeader& header) {
  assert(in_.stream.mine.receive());
  InboundSegment& segment = in_.segment;
  if (const auto error = sequence_.check_msn(header))
    return in_.fail(*error, QpEvent::kFatal, true);
  if (!sequence_.open()) {
    if (!take_receive(header)) return false;
    // The control byte is the same in all segments. RFC 5040-3.1-e.
  } else if ((segment.opcode != opcode_ &&
              (opcode_ != kDropped || segment.opcode != dropped_opcode_)) ||
             header.qn != qn_) {
    return in_.fail(header.qn != qn_ ? TerminateCode::kDdpUntaggedInvalidQn
                                     : TerminateCode::kRdmapUnexpectedOpcode,
                    QpEvent::kRequestError, true);
  }
  const auto error = sequence_.check_range(header.mo, segment.payload_left, sink_.length_bytes());
  if (error && !lose_long_message(*error)) return fail_range(*error);
  segment.payload_offset = header.mo;
  invalidate_ = header.invalidate_stag.value;  // or nothing: RFC 5040-4.1-l, 5041-4.3-c
  return true;
}

// One for each message, also for an empty one. RFC 5040-5.3-b/l/m, 5041-5.1-b, 7306-6.3-b.
bool InboundMessages::take_receive(const UntaggedHeader& header) {
  if (unusual_) [[unlikely]] {
    if (is_xrc(in_.config.transport) && !aim(header)) return false;
    if (in_.config.script != nullptr) {
      if (const auto taken = apply_faults(header)) return *taken;
    }
    if (in_.config.sink != nullptr) return take_sink();
  }
  if (!queue_place_.take(receive_)) return do_without_receive();
  opcode_ = in_.segment.opcode;
  taken_ = true;
  if (in_.config.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveTaken, WcStatus::kSuccess);
  sink_.clear();
  if (is_immediate(opcode_)) {
    // To the completion only: the memory of the receive is not touched (rule A23).
    sink_.append(immediate_, sizeof immediate_);
  } else {
    for (const Sge& sge : std::span(receive_.sges, receive_.sge_count))
      if (!append_local(sink_, sge, *in_.config.regions, *domain_, kAccessLocalWrite))
        return fail_receive();
  }
  sequence_.begin();
  return true;
}

bool InboundMessages::take_sink() {
  opcode_ = in_.segment.opcode;
  if (opcode_ != RdmapOpcode::kSend)
    return in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
  const std::span<std::byte> space = in_.config.sink->space();
  if (space.empty()) return block_rnr();
  sink_.clear();
  sink_.append(space.data(), static_cast<uint32_t>(space.size()));
  sequence_.begin();
  return true;
}

// Without acknowledgements a message waits for a moment only, and only if one has been received
// since the last that waited in vain. False: it is held. RFC 5041-7.1-u2c.
bool InboundMessages::do_without_receive() {
  if (!is_unreliable(in_.config.transport) || grace_ended_at_ != receive_.position)
    return block_rnr();
  queue_place_.leave();
  return drop();
}

// Reads and drops the message, or the rest of it. If it is Immediate Data, its Write has been
// placed.
bool InboundMessages::drop() {
  read_away();
  sequence_.begin();
  return true;
}

void InboundMessages::read_away() {
  dropped_opcode_ = in_.segment.opcode;
  opcode_ = kDropped;
  sink_.clear();
  sink_.append(nullptr, is_immediate(dropped_opcode_) ? kImmediateSize : ~uint32_t{0}, nullptr,
               MemoryKind::kNull);
  in_.counters.dropped.add(1);
}

bool InboundMessages::block_rnr() {
  queue_place_.block_rnr();
  in_.counters.held.add(1);
  in_.outcome |= kRxRnrBlocked;
  if (in_.stream.reports_deliveries(in_.config)) {
    in_.stream.control_writes_due.fetch_or(StreamState::kWaitDue, std::memory_order_release);
    in_.outcome |= kRxTransmitWanted;
  }
  return false;
}

// Before a message takes its receive, where faults are asked for: what take_receive() returns, or
// nothing if it goes on.
std::optional<bool> InboundMessages::apply_faults(const UntaggedHeader& header) {
  FaultScript& script = *in_.config.script;
  const FaultVerdict& verdict = script.judge_arrival(header.msn.value);
  if (script.receive_held()) return block_rnr();
  switch (verdict.act) {
    case FaultVerdict::Act::kReset:
      script.want_reset();
      return block_rnr();
    case FaultVerdict::Act::kNoReceive:
      if (is_unreliable(in_.config.transport)) return drop();
      return in_.fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
    case FaultVerdict::Act::kTerminate:
      return in_.fail(verdict.code, segment_event(verdict.code), names_message(verdict.code));
    case FaultVerdict::Act::kFail:
      if (!queue_place_.take(receive_)) return block_rnr();
      taken_ = true;
      opcode_ = in_.segment.opcode;
      in_.segment.payload_offset = 0;
      return fail_receive(static_cast<WcStatus>(verdict.status));
    default:
      return std::nullopt;
  }
}

void InboundMessages::finish_segment() {
  assert(in_.stream.mine.receive());
  sequence_.placed(in_.segment.ulpdu_length - UntaggedHeader::kWireSize);
  if (in_.segment.last) finish();
}

// A message is delivered once, with its length, when all of it and all before it is placed.
// RFC 5040-3.1-d/i, 5040-5.3-c/e, 5040-5.5-10/10b/16, 5041-4.1-g, 5041-5.3-e, 7306-6.3-c,
// 7306-6.4-b.
void InboundMessages::finish() {
  sequence_.finish();
  if (in_.config.sink != nullptr) [[unlikely]]
    return in_.config.sink->arrived(in_.segment.payload_offset);
  WorkCompletion done = completion(WcStatus::kSuccess, 0);
  bool solicited = traits(opcode_).solicited;
  if (opcode_ != RdmapOpcode::kSend && !describe(done, solicited)) return;
  writes_.forget_length();
  if (order_.complete_sent() == AfterTurn::kCheckAgain) in_.outcome |= kRxTransmitWanted;
  if (in_.config.acknowledged) [[unlikely]]
    in_.stream.delivered.store(delivered().value, std::memory_order_release);
  if (!defers_) [[likely]]
    return push(done, solicited);
  end_receive(done.status);
  deferred_ = Deferred{completions_, done, solicited};
  in_.outcome |= kRxTransmitWanted | kRxDeferred;
}

// What a message that is more than a Send adds to its completion. False: it has none, or has failed
// the stream.
bool InboundMessages::describe(WorkCompletion& done, bool& solicited) {
  if (opcode_ == kDropped) {
    writes_.forget_length();
    return false;
  }
  // Before the completion is seen. A key that may not be invalidated ends the stream instead.
  // RFC 5040-5.3-p/r/s, 5040-7.2-d.
  if (traits(opcode_).invalidates) {
    const STag stag{invalidate_};
    if (!in_.config.regions->invalidate_window(stag, in_.stream.peer(in_.config.domain)))
      return fail(TerminateCode::kRdmapCannotInvalidate, QpEvent::kAccessError,
                  WcStatus::kRemInvReqErr);
    done.wc_flags = kWcWithInvalidate;
    done.imm_or_invalidated = stag.value;
  } else if (opcode_ == RdmapOpcode::kSendImmediate) {
    solicited = RdmapControl::SolicitedBit::test(static_cast<uint8_t>(in_.segment.header[1]));
    done.wc_flags = kWcWithImm;
    done.imm_or_invalidated = __builtin_bswap32(invalidate_);
  } else if (is_immediate(opcode_)) {
    if (in_.segment.payload_offset != kImmediateSize)
      return fail_range(TerminateCode::kRdmapOperationUnspecified);  // 8 bytes: RFC 7306-6.3-g
    // Verbs has 32 of the 64 bits, in network order as they came. The Write that the length belongs
    // to is not marked on the wire: it is the last one that nothing on queue 0 has followed (rule
    // A25). RFC 7306-6.4-c/d.
    done.opcode = WcOpcode::kRecvWriteWithImm;
    done.wc_flags = kWcWithImm;
    std::memcpy(&done.imm_or_invalidated, immediate_ + (in_.config.immediate_in_last_half ? 4 : 0),
                4);
    done.byte_len = writes_.last_length();
  }
  return true;
}

// Where nothing is acknowledged a message that is longer than its receive is the receive's error
// alone: the stream goes on behind it. False: it is another error.
bool InboundMessages::lose_long_message(TerminateCode code) {
  if (!is_unreliable(in_.config.transport) || !taken_ || is_immediate(opcode_) ||
      code != TerminateCode::kDdpUntaggedTooLong)
    return false;
  in_.segment.payload_offset = sequence_.placed_bytes();
  push(completion(WcStatus::kLocLenErr, 0), true);
  read_away();
  return true;
}

// For Immediate Data it is not the buffer's fault: it has 8 bytes. RFC 5040-5.3-d, 7306-6.1-b.
bool InboundMessages::fail_range(TerminateCode code) {
  if (is_immediate(in_.segment.opcode))
    return in_.fail(TerminateCode::kRdmapOperationUnspecified, QpEvent::kRequestError, true);
  return fail(code, QpEvent::kFatal, WcStatus::kLocLenErr);
}

// A bad message is told here and to the peer. RFC 5040-3.2-b, 5040-5.3-h.
bool InboundMessages::fail(TerminateCode code, QpEvent event, WcStatus status) {
  const StreamFailure failure = in_.failure(code, true);
  in_.fail(failure, event);
  push(completion(status, failure.vendor_err()), true);
  return false;
}

bool InboundMessages::fail_receive(WcStatus status) {
  const StreamFailure failure = in_.failure(TerminateCode::kRdmapLocalCatastrophic, false);
  in_.fail(failure, QpEvent::kFatal);
  push(completion(status, failure.vendor_err()), true);
  return false;
}

void InboundMessages::fail_immediate() {
  const auto control = static_cast<uint8_t>(in_.segment.header[1]);
  const bool marked = in_.segment.opcode == RdmapOpcode::kWrite &&
                      RdmapControl::ImmediateBit::test(control) &&
                      in_.stream.reports_deliveries(in_.config);
  // Which shared queue the Immediate Data of an XRC message would have named is not known.
  if (!marked || taken_ || is_xrc(in_.config.transport) || !queue_place_.take(receive_)) return;
  taken_ = true;
  in_.segment.payload_offset = 0;
  push(completion(WcStatus::kLocAccessErr, in_.stream.failure().vendor_err()), true);
}

WorkCompletion InboundMessages::completion(WcStatus status, uint32_t vendor_err) const {
  WorkCompletion completion{};
  completion.wr_id = receive_.wr_id;
  completion.status = status;
  completion.opcode = WcOpcode::kRecv;
  completion.vendor_err = vendor_err;
  completion.byte_len = static_cast<uint32_t>(in_.segment.payload_offset);
  completion.qp_num = in_.config.number.value;
  if (in_.config.trace != nullptr) [[unlikely]]
    completion.src_qp = receive_.position;
  return completion;
}

void InboundMessages::push(const WorkCompletion& completion, bool solicited) {
  if (in_.config.sink != nullptr) [[unlikely]] {
    taken_ = false;
    return;
  }
  end_receive(completion.status);
  store(*completions_, completion, solicited);
}

// A completion that is kept comes before the one of this receive.
inline void InboundMessages::end_receive(WcStatus status) {
  taken_ = false;
  if (in_.config.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveCompleted, status);
  if (defers_) [[unlikely]]
    complete_deferred();
}

void InboundMessages::store(CompletionQueue& queue, const WorkCompletion& completion,
                            bool solicited) {
  if (!queue.push(completion, solicited))
    in_.fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
}

void InboundMessages::complete_deferred() {
  assert(in_.stream.mine.receive());
  if (!deferred_) return;
  const Deferred deferred = *deferred_;
  deferred_.reset();
  store(*deferred.queue, deferred.completion, deferred.solicited);
}

void InboundMessages::flush() {
  assert(in_.stream.mine.receive());
  complete_deferred();
  queue_place_.leave();
  in_.segment.payload_offset = 0;
  if (taken_) {
    in_.counters.flushed.add(1);
    push(completion(WcStatus::kWrFlushErr, 0), true);
  }
  if (in_.config.shares_receives()) return;
  while (receives_.drain(receive_.wr_id, receive_.position)) {
    in_.counters.flushed.add(1);
    if (in_.config.trace != nullptr) [[unlikely]]
      trace_receive(TraceStep::Kind::kReceiveCompleted, WcStatus::kWrFlushErr,
                    TraceStep::Phase::kWaiting);
    completions_->push(completion(WcStatus::kWrFlushErr, 0), true);
  }
}

// A receive of a shared queue has been posted to no queue pair, so its life begins here.
void InboundMessages::trace_receive(TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase) {
  in_.config.trace->note({.kind = kind,
                          .phase = phase,
                          .reported = in_.config.shares_receives(),
                          .queue_pair = in_.config.number.value,
                          .position = receive_.position,
                          .status = static_cast<uint32_t>(status),
                          .bytes = in_.segment.payload_offset,
                          .wr_id = receive_.wr_id});
}

// Shows the DDP header of a bad segment. RFC 5040-3.1-g, 5040-4.8-p, 5040-7.1-c, 5041-7.1-b.
StreamFailure InboundStream::failure(TerminateCode code, bool with_header) const {
  StreamFailure failure = StreamFailure::terminated_by_us(code);
  if (with_header) failure.terminate.copy_ddp_header(segment.header, segment.ulpdu_length);
  return failure;
}

bool InboundStream::fail(const StreamFailure& failure, std::optional<QpEvent> event) {
  stream.fail(failure, event);
  close();
  outcome |= kRxFailed;
  return false;
}

void InboundStream::trace_fpdu(RdmapOpcode opcode) {
  config.trace->note({.kind = TraceStep::Kind::kFpduReceived,
                      .opcode = static_cast<uint8_t>(opcode),
                      .queue_pair = config.number.value,
                      .bytes = segment.ulpdu_length});
}

}  // namespace uwarp
