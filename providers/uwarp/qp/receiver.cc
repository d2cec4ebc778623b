// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "mr/place_last.h"
#include "qp/terminate_status.h"
#include "rdmap/responder_rules.h"
#include "wire/delivered_mark.h"

namespace uwarp {
namespace {

// RFC 5041 7.1; a Write without the right to write has no code of its own and counts as an invalid
// STag (rule A6).
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

// Malformed above DDP is a request error, everything else that is not an access is fatal.
QpEvent segment_event(TerminateCode code) {
  return layer(code) == 0 ? QpEvent::kRequestError : QpEvent::kFatal;
}

bool is_immediate(RdmapOpcode opcode) {
  return opcode == RdmapOpcode::kImmediate || opcode == RdmapOpcode::kImmediateSolicited;
}

bool is_version_error(TerminateCode code) {
  return code == TerminateCode::kDdpTaggedInvalidVersion ||
         code == TerminateCode::kDdpUntaggedInvalidVersion;
}

// RFC 5040 4.8: what is wrong with the end itself, or below DDP, shows no header.
bool names_message(TerminateCode code) {
  return layer(code) <= 1 && etype(code) != 0 && !is_version_error(code);
}

}  // namespace

Receiver::Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives,
                   StreamState& stream, CompletionOrder order, ReceiveCounters& counters)
    : config_(config),
      sends_(sends),
      receives_(receives),
      stream_(stream),
      order_(order),
      counters_(counters) {
  ticket_.waiter = config.receive_waiter;
}

// After a reset there is nothing to give back, and a shared receive queue may be gone by now.
Receiver::~Receiver() {
  if (ticket_.state != ReceiveTicket::State::kNone) receives_.cancel(ticket_);
}

void Receiver::restart() {
  reset();
  send_sequence_ = request_sequence_ = atomic_sequence_ =
      UntaggedSequence(stream_.config.first_msn);
  closed_.store(false, std::memory_order_release);
}

void Receiver::reset() {
  close();
  held_.store(false, std::memory_order_release);
  receives_.cancel(ticket_);
  kept_.reset();
  begin_ = end_ = 0;
  carry_size_ = 0;
  await_ = Await::kHeader;
  place_ = RemotePlace{};
  write_open_ = taken_ = read_open_ = sink_revoked_ = read_revoked_ = false;
  ulpdu_length_ = 0;
  expect_large_ = 0;
  payload_left_ = trailer_left_ = 0;
  write_bytes_ = 0;
  direct_bytes_ = 0;
  run_.reset();
  acknowledged_ = false;
}

bool Receiver::mid_message() const {
  return await_ != Await::kHeader || carry_size_ > 0 || kept_ != nullptr || write_open_ ||
         send_sequence_.open() || read_open_;
}

// ---- Staging

void Receiver::begin_staging(StagingPointer& staging) {
  if (kept_) {
    bytes_ = kept_->bytes;
    return;
  }
  bytes_ = staging->bytes;
  std::memcpy(bytes_, carry_, carry_size_);
  begin_ = 0;
  end_ = carry_size_;
}

// Only to read: a held stream is resumed again and again, each time for a few messages of many.
void Receiver::make_room() {
  if (begin_ == 0 || kStagingBytes - end_ >= kFpduSizeMax) return;
  std::memmove(bytes_, bytes_ + begin_, available());
  end_ -= begin_;
  begin_ = 0;
}

void Receiver::end_staging(StagingPointer& staging) {
  const size_t left = closed() ? 0 : available();
  if (left > kCarryBytes) {
    if (!kept_) kept_ = std::move(staging);
    return;
  }
  std::memcpy(carry_, bytes_ + begin_, left);
  carry_size_ = static_cast<uint32_t>(left);
  begin_ = end_ = 0;
  if (kept_ && !staging) staging = std::move(kept_);
  kept_.reset();
}

std::span<const iovec> Receiver::window(StagingPointer& staging) {
  begin_staging(staging);
  make_room();
  direct_bytes_ = 0;
  run_.open(0, 0, 0);
  size_t count = 0;
  size_t room = kStagingBytes - end_;
  if (direct_possible()) {
    count = direct_iovecs(iovecs_, kMaxSge);
    room = kBehindDirect;
    if (run_.wanted() != 0) {
      count = run_iovecs(count);
      room = kBehindRun;
    }
  } else if (expects_large() && !stream_.config.crc && !held()) {
    room = std::min(room, payload_left_ + kBeforeDirect);
  }
  iovecs_[count++] = {bytes_ + end_ + run_.staged_bytes(), room};
  window_bytes_ = direct_bytes_ + run_.bytes() + room;
  return {iovecs_, count};
}

uint32_t Receiver::received(StagingPointer& staging, size_t bytes) {
  outcome_ = kRxNothing;
  in_order_ = false;
  counters_.octets.add(bytes);
  if (!closed()) {
    const size_t direct = std::min(bytes, direct_bytes_);
    const size_t behind = bytes - direct;
    payload_done(static_cast<uint32_t>(direct));
    end_ += direct_bytes_ == 0 ? behind : run_.take(behind, bytes == window_bytes_);
    direct_bytes_ = 0;
  }
  if (!held()) [[likely]]
    return consume(staging);
  look_ahead();
  end_staging(staging);
  return outcome_;
}

uint32_t Receiver::resume(StagingPointer& staging) {
  outcome_ = kRxNothing;
  in_order_ = false;
  held_.store(false, std::memory_order_release);
  begin_staging(staging);
  return consume(staging);
}

uint32_t Receiver::expire() {
  outcome_ = kRxNothing;
  if (!held() || closed()) return outcome_;
  held_.store(false, std::memory_order_release);
  counters_.rnr_timeouts.add(1);
  fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
  return outcome_;
}

uint32_t Receiver::fault() {
  outcome_ = kRxNothing;
  if (!closed()) fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
  return outcome_;
}

uint32_t Receiver::consume(StagingPointer& staging) {
  Step step = Step::kAgain;
  while (!closed() && step == Step::kAgain) {
    switch (await_) {
      case Await::kHeader:
        step = take_header();
        break;
      case Await::kPayload:
        step = take_payload();
        break;
      case Await::kTrailer:
        step = take_trailer();
        break;
    }
  }
  if (held()) look_ahead();
  end_staging(staging);
  return outcome_;
}

// An application may post the receive that is missing only once its own Sends have completed, and
// the peer may have acknowledged these behind the message that waits. InfiniBand's acknowledgements
// do not wait for buffers, so they are taken out of what is kept. They place nothing.
void Receiver::look_ahead() {
  if (!config_.acknowledged) return;
  for (size_t at = begin_; end_ - at >= kFpduLengthSize + TaggedHeader::kWireSize;) {
    const size_t size = fpdu_size(load_be16(bytes_ + at));
    if (end_ - at < size) return;
    if (is_acknowledgement(bytes_ + at)) {
      count_fpdu(RdmapOpcode::kReadResponse, true);
      finish_answer();
      end_ -= size;
      std::memmove(bytes_ + at, bytes_ + at + size, end_ - at);
    } else {
      at += size;
    }
  }
}

// The whole FPDU is there.
bool Receiver::is_acknowledgement(const std::byte* fpdu) const {
  const size_t length = load_be16(fpdu);
  const OutboundRequest* due = stream_.outbound.front();
  if (length != TaggedHeader::kWireSize || due == nullptr || due->acknowledges == 0 ||
      due->request != OutboundRequest::kNoRequest)
    return false;
  const std::byte* const header = fpdu + kFpduLengthSize;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  if (!control.tagged() || !control.last() || check_segment(header, features())) return false;
  if (RdmapControl{static_cast<uint8_t>(header[1])}.opcode() != RdmapOpcode::kReadResponse)
    return false;
  return !stream_.config.crc || verify_fpdu_crc({fpdu, fpdu_size(length)});
}

// ---- Parsing

bool Receiver::crc_ok() const {
  return verify_fpdu_crc({bytes_ + begin_, fpdu_size(ulpdu_length_)});
}

// Instead of a segment that was announced something else has come, as a rule the Terminate of a
// peer that could not go on: it lies in the segment's place.
bool Receiver::bring_back() {
  const size_t size = run_.ahead();
  if (!run_.ahead_is_one() || size > kStagingBytes - end_) return false;
  if (opcode_ == RdmapOpcode::kWrite) {
    std::memcpy(bytes_ + end_, write_target(), size);
  } else if (!list().copy_out(payload_offset_, bytes_ + end_, size)) {
    return false;
  }
  end_ += size;
  run_.give_up();
  return true;
}

Receiver::Step Receiver::take_header() {
  if (run_.ahead() != 0 && !run_.continues(bytes_ + begin_) && !bring_back()) [[unlikely]] {
    fail(TerminateCode::kDdpLocalCatastrophic, QpEvent::kFatal, false);
    return Step::kNeedMore;
  }
  if (available() < kFpduLengthSize + 1) return Step::kNeedMore;
  const std::byte* at = bytes_ + begin_;
  ulpdu_length_ = load_be16(at);
  const DdpControl control{static_cast<uint8_t>(at[kFpduLengthSize])};
  const size_t header = ddp_header_size(control);
  if (ulpdu_length_ < header) {
    fail(TerminateCode::kDdpLocalCatastrophic, QpEvent::kFatal, false);
    return Step::kNeedMore;
  }
  if (stream_.config.crc) {
    if (available() < fpdu_size(ulpdu_length_)) return Step::kNeedMore;
    if (!crc_ok()) {
      counters_.crc_errors.add(1);
      fail(TerminateCode::kMpaCrc, QpEvent::kFatal, false);
      return Step::kNeedMore;
    }
  }
  if (available() < kFpduLengthSize + header) return Step::kNeedMore;
  at += kFpduLengthSize;
  std::memcpy(header_, at, header);
  if (!is_sound_write(at)) {
    if (const auto error = check_segment(at, features())) {
      fail(*error, segment_event(*error), !is_version_error(*error));
      return Step::kNeedMore;
    }
  }
  last_ = control.last();
  opcode_ = RdmapControl{static_cast<uint8_t>(at[1])}.opcode();
  // Immediate Data is a message like a Send, with a buffer of its own.
  if (!control.tagged() && traits(opcode_).queue != QueueNumber::kSend)
    return take_control(opcode_);
  payload_left_ = static_cast<uint32_t>(ulpdu_length_ - header);
  if (control.tagged()) {
    const TaggedHeader tagged = TaggedHeader::decode(at);
    opcode_ == RdmapOpcode::kWrite ? open_write(tagged) : open_read_response(tagged);
  } else if (open_send(UntaggedHeader::decode(at), opcode_) == Step::kNeedMore) {
    return Step::kNeedMore;
  }
  if (closed()) return Step::kNeedMore;
  note_first_fpdu();
  // An empty Write is the frame that starts the stream, as a rule, and nothing that was sent.
  const bool data = opcode_ != RdmapOpcode::kWrite || payload_left_ > 0;
  if (data && stream_.establish_event.load(std::memory_order_relaxed)) [[unlikely]] {
    if (stream_.establish_event.exchange(false)) stream_.raise(QpEvent::kCommEstablished);
  }
  begin_ += kFpduLengthSize + header;
  trailer_left_ = static_cast<uint32_t>(fpdu_trailer_size(ulpdu_length_));
  if (ulpdu_length_ >= kLargeUlpdu)
    expect_large_ = kExpectLarge;
  else if (expect_large_ != 0)
    --expect_large_;
  note_following(control);
  await_ = Await::kPayload;
  return Step::kAgain;
}

// Others do not know what we read in reserved bits.
void Receiver::note_following(DdpControl control) {
  if (control.following() == 0 || last_ || !stream_.announces_runs(ulpdu_length_))
    run_.end();
  else
    run_.begin(header_, ulpdu_length_, control.following());
  if (run_.ahead() != 0) payload_done(static_cast<uint32_t>(run_.claim()));
}

void Receiver::note_first_fpdu() {
  if (stream_.first_fpdu.load(std::memory_order_relaxed)) return;
  stream_.first_fpdu.store(true, std::memory_order_release);
  outcome_ |= kRxFirstFpdu | kRxTransmitWanted;
}

// A message that is all header waits until its one FPDU is whole.
Receiver::Step Receiver::take_control(RdmapOpcode opcode) {
  const UntaggedHeader header = UntaggedHeader::decode(header_);
  const size_t size = ulpdu_length_ - UntaggedHeader::kWireSize;
  if (opcode != RdmapOpcode::kTerminate) {
    const UntaggedSequence& sequence =
        opcode == RdmapOpcode::kAtomicResponse ? atomic_sequence_ : request_sequence_;
    if (const auto error = sequence.check_msn(header)) {
      fail(*error, QpEvent::kFatal, true);
      return Step::kNeedMore;
    }
    if (header.mo != 0) {
      fail(TerminateCode::kDdpUntaggedInvalidMo, QpEvent::kFatal, true);
      return Step::kNeedMore;
    }
  }
  auto error = check_header_size(opcode, size);
  if (!error && (size > kTerminateHeaderMax || !last_))
    error = TerminateCode::kRdmapOperationUnspecified;
  if (error) {
    opcode == RdmapOpcode::kAtomicResponse ? fail_answer(*error, WcStatus::kBadRespErr)
                                           : fail(*error, segment_event(*error), true);
    return Step::kNeedMore;
  }
  if (available() < fpdu_size(ulpdu_length_)) return Step::kNeedMore;
  note_first_fpdu();
  count_fpdu(opcode, true);
  deliver_control(opcode, {bytes_ + begin_ + kFpduLengthSize + UntaggedHeader::kWireSize, size});
  begin_ += fpdu_size(ulpdu_length_);
  return Step::kAgain;
}

void Receiver::deliver_control(RdmapOpcode opcode, std::span<const std::byte> rdmap) {
  switch (opcode) {
    case RdmapOpcode::kReadRequest:
      take_read_request(ReadRequestHeader::decode(rdmap.data()));
      break;
    case RdmapOpcode::kAtomicRequest:
      take_atomic_request(AtomicRequestHeader::decode(rdmap.data()));
      break;
    case RdmapOpcode::kAtomicResponse:
      take_atomic_response(AtomicResponseHeader::decode(rdmap.data()));
      break;
    default:
      take_terminate(rdmap);
  }
}

void Receiver::open_write(const TaggedHeader& header) {
  place_ = RemotePlace{};
  // One Write goes to one buffer (RFC 5040 5.1).
  if (write_open_ && header.stag != write_stag_) {
    fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
    return;
  }
  const bool first = !write_open_;
  write_open_ = !last_;
  write_stag_ = header.stag;
  payload_offset_ = 0;
  if (first) {
    write_bytes_ = 0;
    write_next_.reset();
  }
  write_bytes_ += payload_left_;
  if (payload_left_ == 0) {
    const StreamConfig& config = stream_.config;
    if (first && last_ && config.magic_stag.value != 0 && header.stag == config.magic_stag &&
        header.to == config.magic_offset && !stream_.peer_is_uwarp.exchange(true)) {
      outcome_ |= kRxMagic;
      if (config_.acknowledged) outcome_ |= kRxTransmitWanted;  // a Send with Immediate may wait
      if (config.answer_magic) {
        stream_.answer_due.store(true, std::memory_order_release);
        outcome_ |= kRxTransmitWanted;
      }
    }
    if (stream_.marks_deliveries(config_)) [[unlikely]]
      take_delivered_mark(header);
    return;
  }
  // What is skipped or written twice would count for the length that Immediate Data reports.
  if (write_next_ && header.to != *write_next_) {
    fail(TerminateCode::kDdpTaggedBounds, QpEvent::kAccessError, true);
    return;
  }
  write_next_ = header.to + payload_left_;
  const RegionFault fault =
      config_.regions->remote(header.stag, header.to, payload_left_, kAccessRemoteWrite,
                              stream_.peer(config_.domain), place_);
  if (fault != RegionFault::kNone) fail(write_fault_code(fault), QpEvent::kAccessError, true);
}

void Receiver::open_read_response(const TaggedHeader& header) {
  OutboundRequest* read = stream_.outbound.front();
  if (read == nullptr || read->atomic) {
    fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return;
  }
  if (!read_open_) {
    read_placed_ = 0;
    read_revoked_ = false;
    read_sink_.clear();
    if (read->request != OutboundRequest::kNoRequest &&
        !sends_.gather(read->request, *config_.regions, *config_.domain, kAccessLocalWrite,
                       read_sink_)) {
      fail_answer(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kLocProtErr);
      return;
    }
    read_open_ = true;
  }
  const uint64_t end = read_placed_ + payload_left_;
  if (payload_left_ > 0 && header.stag.value != read->token) {
    fail_answer(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kBadRespErr);
  } else if (end > read->length_bytes) {
    fail_answer(TerminateCode::kDdpTaggedBounds, WcStatus::kLocLenErr);
  } else if ((payload_left_ > 0 && header.to != read_placed_) ||
             (last_ && end != read->length_bytes)) {
    fail_answer(TerminateCode::kDdpTaggedBounds, WcStatus::kBadRespErr);
  }
  payload_offset_ = read_placed_;
}

Receiver::Step Receiver::open_send(const UntaggedHeader& header, RdmapOpcode opcode) {
  if (const auto error = send_sequence_.check_msn(header)) {
    fail(*error, QpEvent::kFatal, true);
    return Step::kNeedMore;
  }
  if (!send_sequence_.open()) {
    if (config_.script != nullptr && !obey_script(header, opcode)) [[unlikely]]
      return Step::kNeedMore;
    if (!receives_.take(receive_, ticket_)) {
      hold();
      return Step::kNeedMore;
    }
    message_opcode_ = opcode;
    if (!take_receive()) return Step::kNeedMore;
    send_sequence_.begin();
  } else if (opcode != message_opcode_) {
    fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return Step::kNeedMore;
  }
  if (const auto error =
          send_sequence_.check_range(header.mo, payload_left_, sink_.length_bytes())) {
    fail_range(*error);
    return Step::kNeedMore;
  }
  payload_offset_ = header.mo;
  invalidate_ = header.invalidate_stag.value;  // means something for some opcodes only
  return Step::kAgain;
}

void Receiver::hold() {
  held_.store(true, std::memory_order_release);
  counters_.held.add(1);
  outcome_ |= kRxHeld;
}

// Before a message takes its receive, where faults are asked for. False: it does not, or not now.
bool Receiver::obey_script(const UntaggedHeader& header, RdmapOpcode opcode) {
  FaultScript& script = *config_.script;
  const FaultVerdict& verdict = script.judge_arrival(header.msn.value);
  if (script.receive_held()) return hold(), false;
  switch (verdict.act) {
    case FaultVerdict::Act::kReset:
      script.want_reset();
      return hold(), false;
    case FaultVerdict::Act::kNoReceive:
      fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
      return false;
    case FaultVerdict::Act::kTerminate:
      fail(verdict.code, segment_event(verdict.code), names_message(verdict.code));
      return false;
    case FaultVerdict::Act::kFail:
      if (!receives_.take(receive_, ticket_)) return hold(), false;
      taken_ = true;
      message_opcode_ = opcode;
      payload_offset_ = 0;
      fail_local_receive(static_cast<WcStatus>(verdict.status));
      return false;
    default:
      return true;
  }
}

// A message that does not fit its buffer. For Immediate Data that is not the buffer's fault: it has
// exactly 8 octets (7306-6.3-g).
void Receiver::fail_range(TerminateCode code) {
  if (is_immediate(message_opcode_)) {
    fail(TerminateCode::kRdmapOperationUnspecified, QpEvent::kRequestError, true);
  } else {
    fail_receive(code, QpEvent::kFatal, WcStatus::kLocLenErr);
  }
}

void Receiver::trace_fpdu(RdmapOpcode opcode) {
  TraceStep step;
  step.kind = TraceStep::Kind::kFpduReceived;
  step.opcode = static_cast<uint8_t>(opcode);
  step.queue_pair = config_.number.value;
  step.octets = ulpdu_length_;
  config_.trace->note(step);
}

// A receive of a shared queue has been posted to no queue pair, so its life begins here.
void Receiver::trace_receive(TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase) {
  TraceStep step;
  step.kind = kind;
  step.phase = phase;
  step.reported = config_.srq != nullptr;
  step.queue_pair = config_.number.value;
  step.position = receive_.position;
  step.status = static_cast<uint32_t>(status);
  step.octets = payload_offset_;
  step.wr_id = receive_.wr_id;
  config_.trace->note(step);
}

// Resolves the buffer just taken. False: it names memory that it may not.
bool Receiver::take_receive() {
  taken_ = true;
  if (config_.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveTaken, WcStatus::kSuccess);
  sink_revoked_ = false;
  sink_.clear();
  if (is_immediate(message_opcode_)) {
    // To the completion only: the memory of the receive is not touched (rule A23).
    sink_.append(immediate_, sizeof immediate_);
    return true;
  }
  for (uint32_t i = 0; i < receive_.sge_count; ++i) {
    const Sge& sge = receive_.sges[i];
    if (sge.length_bytes == 0) continue;
    RegionFault fault;
    const LocalPlace place = config_.regions->local(sge.lkey, sge.address, sge.length_bytes,
                                                    kAccessLocalWrite, *config_.domain, fault);
    if (!place) {
      fail_local_receive();
      return false;
    }
    sink_.append(place.address, sge.length_bytes, place.region, place.memory);
  }
  return true;
}

// A Read or atomic that the peer asks for; both share the depth that was negotiated.
bool Receiver::admit_request() {
  if (stream_.inbound.full()) {
    fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
    return false;
  }
  request_sequence_.skip();
  return true;
}

void Receiver::queue_request(InboundRequest& request) {
  std::memcpy(request.ddp_header, header_, sizeof request.ddp_header);
  // Nothing behind a bad request is looked at any more.
  if (request.error) close();
  request.delivered = send_sequence_.expected().previous();
  stream_.inbound.push(request);
  outcome_ |= kRxTransmitWanted;
}

void Receiver::take_read_request(const ReadRequestHeader& header) {
  if (!admit_request()) return;
  InboundRequest request;
  request.header = header;
  RemotePlace source;
  request.error =
      check_read_request(header, 0, *config_.regions, stream_.peer(config_.domain), source);
  queue_request(request);
}

// Only checked here: it is executed when the answers before it have been made.
void Receiver::take_atomic_request(const AtomicRequestHeader& header) {
  if (!admit_request()) return;
  InboundRequest request;
  request.header = header;
  RemotePlace cell;
  request.error =
      check_atomic_request(header, *config_.regions, stream_.peer(config_.domain), cell);
  queue_request(request);
}

// Matched by the order of the answers, then by the Request Identifier (rule A3).
void Receiver::take_atomic_response(const AtomicResponseHeader& header) {
  const OutboundRequest* request = stream_.outbound.front();
  if (request == nullptr || !request->atomic) {
    fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return;
  }
  if (header.request_id != request->token) {
    fail_answer(TerminateCode::kRdmapOperationUnspecified, WcStatus::kBadRespErr);
    return;
  }
  read_sink_.clear();
  if (!sends_.gather(request->request, *config_.regions, *config_.domain, kAccessLocalWrite,
                     read_sink_)) {
    fail_result();
    return;
  }
  atomic_sequence_.skip();
  // The number in the requester's own byte order, as with InfiniBand.
  const auto* value = reinterpret_cast<const std::byte*>(&header.original_value);
  if (!read_sink_.copy_in(0, value, sizeof header.original_value)) {
    fail_result();
    return;
  }
  finish_answer();
}

void Receiver::take_terminate(std::span<const std::byte> rdmap) {
  StreamFailure failure;
  failure.by_peer = true;
  if (const auto terminate = TerminateHeader::decode(rdmap)) failure.terminate = *terminate;
  failure.status = terminate_status(failure.terminate.code);
  if (config_.acknowledged && failure.terminate.code == TerminateCode::kDdpUntaggedNoBuffer)
    failure.status = WcStatus::kRnrRetryExcErr;
  stream_.fail(failure, QpEvent::kFatal);
  close();
  outcome_ |= kRxTerminated;
}

// ---- Placing

bool Receiver::placement_valid() const {
  switch (opcode_) {
    case RdmapOpcode::kWrite:
      return place_ && place_.region->key.load(std::memory_order_acquire) == write_stag_.value;
    case RdmapOpcode::kReadResponse:
      return !read_revoked_;
    default:
      return !sink_revoked_;
  }
}

// Not through a window: unbinding must not have to wait for a receive call. Not into memory that
// may not be there: the failed call would not say which of the segment's octets have come.
bool Receiver::direct_possible() const {
  return await_ == Await::kPayload && !stream_.config.crc && !closed() &&
         payload_left_ >= kDirectBytes && end_ == begin_ && !place_.through_window() &&
         placement_valid() && placement_plain();
}

bool Receiver::placement_plain() const {
  switch (opcode_) {
    case RdmapOpcode::kWrite:
      return place_.memory == MemoryKind::kPlain;
    case RdmapOpcode::kReadResponse:
      return read_sink_.plain();
    default:
      return sink_.plain();
  }
}

size_t Receiver::direct_iovecs(iovec* out, size_t max) {
  uint64_t wanted = payload_left_ - kTailBytes;
  size_t count = 1;
  if (opcode_ == RdmapOpcode::kWrite) {
    out[0] = {write_target(), static_cast<size_t>(wanted)};
  } else {
    count = list().describe(payload_offset_, wanted, out, max);
  }
  direct_bytes_ = wanted;
  return count;
}

// The peer may write to the places of [offset, offset + size) of the message, which begin behind
// the segment under way; `place` is theirs if the message is a Write.
bool Receiver::run_has_place(uint64_t offset, uint64_t size, RemotePlace& place) {
  if (opcode_ != RdmapOpcode::kWrite) return offset + size <= list().length_bytes();
  const TaggedHeader header = TaggedHeader::decode(header_);
  return config_.regions->remote(header.stag, header.to + offset, size, kAccessRemoteWrite,
                                 stream_.peer(config_.domain), place) == RegionFault::kNone &&
         place.memory == MemoryKind::kPlain && !place.through_window();
}

// Behind the rest of the segment under way those that have been announced: each goes to its place
// but for its last octets, which are staged with the header of the next one. They are looked at
// when all of it has come (take_header), and name no other places than these.
size_t Receiver::run_iovecs(size_t count) {
  if (direct_bytes_ != payload_left_ - kTailBytes) return count;
  const size_t header = ddp_header_size(DdpControl{static_cast<uint8_t>(header_[0])});
  const uint64_t payload = ulpdu_length_ - header;
  const uint64_t offset = payload_offset_ + payload_left_;
  RemotePlace place;
  if (!run_has_place(offset, run_.wanted() * payload, place)) return count;
  const uint64_t direct = payload - kTailBytes;
  const size_t staged = kTailBytes + trailer_left_ + kFpduLengthSize + header;
  uint32_t segments = 0;
  for (; segments < run_.wanted() && count + 3 <= kMaxIovecs; ++segments) {
    iovec* const out = iovecs_ + count;
    const uint64_t skipped = segments * payload;
    size_t used = 1;
    uint64_t size = direct;
    if (opcode_ == RdmapOpcode::kWrite)
      out[1] = {place.address + skipped, direct};
    else
      used = list().describe(offset + skipped, size, out + 1, kMaxIovecs - count - 2);
    if (size != direct) break;
    out[0] = {bytes_ + end_ + segments * staged, staged};
    count += 1 + used;
  }
  run_.open(segments, direct, staged);
  return count;
}

Receiver::Step Receiver::take_payload() {
  if (payload_left_ == 0) {
    await_ = Await::kTrailer;
    return Step::kAgain;
  }
  uint32_t size = static_cast<uint32_t>(std::min<size_t>(available(), payload_left_));
  // The tail stays together, so that it can be stored last.
  if (size < payload_left_ && payload_left_ - size < kTailBytes)
    size = payload_left_ > kTailBytes ? payload_left_ - kTailBytes : 0;
  if (size == 0) return Step::kNeedMore;
  if (!place(bytes_ + begin_, size)) {
    fail_placement();
    return Step::kNeedMore;
  }
  begin_ += size;
  payload_done(size);
  return Step::kAgain;
}

// False if the memory may not be touched any more, or is not there.
bool Receiver::place(const std::byte* from, uint32_t size) {
  if (opcode_ == RdmapOpcode::kWrite) {
    if (!place_) return false;
    const PlaceGuard guard(place_, write_stag_);
    if (!guard) return false;
    if (place_.memory != MemoryKind::kPlain) [[unlikely]]
      return place_last_on_demand(write_target(), from, size);
    if (last_ && size == payload_left_) {
      place_last(write_target(), from, size);
    } else {
      std::memcpy(write_target(), from, size);
    }
    return true;
  }
  if (!placement_valid()) return false;
  return list().copy_in(payload_offset_, from, size);
}

void Receiver::fail_placement() {
  if (opcode_ == RdmapOpcode::kWrite) {
    fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
  } else if (opcode_ == RdmapOpcode::kReadResponse) {
    fail_answer(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kLocProtErr);
  } else {
    fail_local_receive();
  }
}

Receiver::Step Receiver::take_trailer() {
  const uint32_t size = static_cast<uint32_t>(std::min<size_t>(available(), trailer_left_));
  begin_ += size;
  trailer_left_ -= size;
  if (trailer_left_ > 0) return Step::kNeedMore;
  await_ = Await::kHeader;
  finish_segment();
  return Step::kAgain;
}

// ---- Whole segments and messages

void Receiver::finish_segment() {
  count_fpdu(opcode_, last_);
  if (opcode_ == RdmapOpcode::kWrite) return;
  if (opcode_ == RdmapOpcode::kReadResponse) {
    read_placed_ = payload_offset_;
    if (last_) finish_answer();
    return;
  }
  send_sequence_.placed(ulpdu_length_ - UntaggedHeader::kWireSize);
  if (last_) finish_send();
}

void Receiver::finish_send() {
  send_sequence_.finish();
  WorkCompletion completion = receive_completion(WcStatus::kSuccess, 0);
  bool solicited = traits(opcode_).solicited;
  if (traits(opcode_).invalidates) {
    const STag stag{invalidate_};
    if (!config_.regions->invalidate_window(stag, stream_.peer(config_.domain))) {
      fail_receive(TerminateCode::kRdmapCannotInvalidate, QpEvent::kAccessError,
                   WcStatus::kRemInvReqErr);
      return;
    }
    completion.wc_flags = kWcWithInvalidate;
    completion.imm_or_invalidated = stag.value;
  } else if (opcode_ == RdmapOpcode::kSendImmediate) {
    solicited = RdmapControl::SolicitedBit::test(static_cast<uint8_t>(header_[1]));
    completion.wc_flags = kWcWithImm;
    completion.imm_or_invalidated = __builtin_bswap32(invalidate_);
  } else if (is_immediate(opcode_)) {
    if (payload_offset_ != kImmediateSize) {
      fail_range(TerminateCode::kRdmapOperationUnspecified);
      return;
    }
    describe_immediate(completion);
  }
  write_bytes_ = 0;
  complete_sent_first();
  if (config_.acknowledged) [[unlikely]]
    stream_.delivered.store(send_sequence_.expected().previous().value, std::memory_order_release);
  push_receive(completion, solicited);
}

// Once for the bytes that one receive call brought: what is sent later none of them can answer.
void Receiver::complete_sent_first() {
  if (in_order_ && !acknowledged_) return;
  if (sends_.in_flight() && order_.complete_sent(acknowledged_)) outcome_ |= kRxTransmitWanted;
  in_order_ = true;
  acknowledged_ = false;
}

// What the peer says that it has delivered is complete.
void Receiver::take_delivered_mark(const TaggedHeader& header) {
  const auto mark = DeliveredMark::decode(header);
  if (!mark) return;
  stream_.peer_delivered.store(mark->msn.value, std::memory_order_release);
  acknowledged_ = true;
  outcome_ |= kRxTransmitWanted;
}

// Verbs has 32 of the 64 bits, in network order as they came. The Write that the length belongs to
// is not marked on the wire: it is the last one that nothing on queue 0 has followed (rule A25).
void Receiver::describe_immediate(WorkCompletion& completion) const {
  completion.opcode = WcOpcode::kRecvWriteWithImm;
  completion.wc_flags = kWcWithImm;
  std::memcpy(&completion.imm_or_invalidated, immediate_ + (config_.immediate_in_last_half ? 4 : 0),
              4);
  completion.byte_len = write_open_ ? 0 : static_cast<uint32_t>(write_bytes_);
}

void Receiver::finish_answer() {
  const uint64_t request = stream_.outbound.front()->request;
  if (config_.trace != nullptr && request != OutboundRequest::kNoRequest) [[unlikely]] {
    TraceStep step;
    step.kind = TraceStep::Kind::kSendAnswered;
    step.queue_pair = config_.number.value;
    step.position = static_cast<uint32_t>(request);
    config_.trace->note(step);
  }
  const uint64_t acknowledges = stream_.outbound.front()->acknowledges;
  stream_.outbound.pop();
  read_open_ = false;
  if (acknowledges != 0) stream_.acknowledged.store(acknowledges, std::memory_order_release);
  if (request != OutboundRequest::kNoRequest)
    sends_.at(request).answered.store(true, std::memory_order_release);
  acknowledged_ = true;
  outcome_ |= kRxTransmitWanted;
}

WorkCompletion Receiver::receive_completion(WcStatus status, uint32_t vendor_err) const {
  WorkCompletion completion{};
  completion.wr_id = receive_.wr_id;
  completion.status = status;
  completion.opcode = WcOpcode::kRecv;
  completion.vendor_err = vendor_err;
  completion.byte_len = static_cast<uint32_t>(payload_offset_);
  completion.qp_num = config_.number.value;
  if (config_.trace != nullptr) [[unlikely]]
    completion.src_qp = receive_.position;
  return completion;
}

void Receiver::push_receive(const WorkCompletion& completion, bool solicited) {
  taken_ = false;
  if (config_.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveCompleted, completion.status);
  if (!config_.recv_cq->push(completion, solicited))
    fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
}

void Receiver::complete_receive(WcStatus status, uint32_t vendor_err) {
  push_receive(receive_completion(status, vendor_err), true);
}

// ---- Failures

StreamFailure Receiver::describe(TerminateCode code, bool with_header) const {
  StreamFailure failure = StreamFailure::terminated_by_us(code);
  if (with_header) failure.terminate.copy_ddp_header(header_, ulpdu_length_);
  return failure;
}

void Receiver::fail(TerminateCode code, QpEvent event, bool with_header) {
  stream_.fail(describe(code, with_header), event);
  close();
  outcome_ |= kRxFailed;
}

void Receiver::fail_receive(TerminateCode code, QpEvent event, WcStatus status) {
  const StreamFailure failure = describe(code, true);
  stream_.fail(failure, event);
  close();
  outcome_ |= kRxFailed;
  complete_receive(status, failure.vendor_err());
}

void Receiver::fail_local_receive(WcStatus status) {
  const StreamFailure failure = describe(TerminateCode::kRdmapLocalCatastrophic, false);
  stream_.fail(failure, QpEvent::kFatal);
  close();
  outcome_ |= kRxFailed;
  complete_receive(status, failure.vendor_err());
}

// The answer at hand is wrong, or does not fit what was asked.
void Receiver::fail_answer(TerminateCode code, WcStatus status) {
  StreamFailure failure = describe(code, true);
  if (const OutboundRequest* open = stream_.outbound.front()) failure.request = open->request;
  failure.status = status;
  stream_.fail(failure, QpEvent::kRequestError);
  close();
  outcome_ |= kRxFailed;
}

// The place for an atomic's result is not (or no longer) what it must be. The peer did nothing
// wrong, so no header is given and the completion tells (RFC 7306 8.1).
void Receiver::fail_result() {
  StreamFailure failure = describe(TerminateCode::kRdmapLocalCatastrophic, false);
  failure.request = stream_.outbound.front()->request;
  failure.status = WcStatus::kLocProtErr;
  stream_.fail(failure, std::nullopt);
  close();
  outcome_ |= kRxFailed;
}

void Receiver::flush() {
  close();
  held_.store(false, std::memory_order_release);
  receives_.cancel(ticket_);
  if (taken_) {
    payload_offset_ = 0;
    counters_.flushed.add(1);
    complete_receive(WcStatus::kWrFlushErr, 0);
  }
  if (config_.srq != nullptr) return;
  WorkCompletion completion{};
  completion.status = WcStatus::kWrFlushErr;
  completion.opcode = WcOpcode::kRecv;
  completion.qp_num = config_.number.value;
  while (receives_.drain(completion.wr_id, receive_.position)) {
    counters_.flushed.add(1);
    if (config_.trace != nullptr) [[unlikely]] {
      receive_.wr_id = completion.wr_id;
      completion.src_qp = receive_.position;
      trace_receive(TraceStep::Kind::kReceiveCompleted, WcStatus::kWrFlushErr,
                    TraceStep::Phase::kWaiting);
    }
    config_.recv_cq->push(completion, true);
  }
}

void Receiver::quiesce(const MemoryRegion& region) {
  if (taken_ && sink_.uses(region)) sink_revoked_ = true;
  if (read_open_ && read_sink_.uses(region)) read_revoked_ = true;
}

// The rest of a Write's segment goes where the region is now, or fails.
void Receiver::look_up_again(const MemoryRegion& region) {
  if (await_ == Await::kHeader || opcode_ != RdmapOpcode::kWrite) return;
  if (place_.region != &region) return;
  (void)config_.regions->remote(write_stag_, TaggedHeader::decode(header_).to,
                                ulpdu_length_ - TaggedHeader::kWireSize, kAccessRemoteWrite,
                                stream_.peer(config_.domain), place_);
}

}  // namespace uwarp
