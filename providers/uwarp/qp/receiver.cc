// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "qp/terminate_status.h"

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

bool is_version_error(TerminateCode code) {
  return code == TerminateCode::kDdpTaggedInvalidVersion ||
         code == TerminateCode::kDdpUntaggedInvalidVersion;
}

// Orders plain stores into application memory. Not std::atomic_thread_fence: ThreadSanitizer does
// not know that one, and there is no atomic object on the application's side anyway.
inline void store_barrier() {
#if defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");
#else
  asm volatile("" ::: "memory");  // x86 keeps stores in order
#endif
}

// Applications poll the last octet of a Write: it becomes visible after all others.
void place_last(std::byte* to, const std::byte* from, size_t size) {
  const size_t tail = size >= 8 ? 8 : 1;
  std::memcpy(to, from, size - tail);
  store_barrier();
  if (tail == 8) {
    uint64_t word;
    std::memcpy(&word, from + size - 8, 8);
    std::memcpy(to + size - 8, &word, 8);
  } else {
    *reinterpret_cast<volatile unsigned char*>(to + size - 1) =
        static_cast<unsigned char>(from[size - 1]);
  }
}

}  // namespace

Receiver::Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives,
                   StreamState& stream)
    : config_(config), sends_(sends), receives_(receives), stream_(stream) {}

void Receiver::restart() {
  reset();
  send_sequence_ = read_sequence_ = UntaggedSequence{};
  closed_.store(false, std::memory_order_release);
}

void Receiver::reset() {
  close();
  held_.store(false, std::memory_order_release);
  kept_.reset();
  begin_ = end_ = 0;
  carry_size_ = 0;
  await_ = Await::kHeader;
  region_ = nullptr;
  write_open_ = taken_ = read_open_ = sink_revoked_ = read_revoked_ = false;
  payload_left_ = trailer_left_ = 0;
  direct_bytes_ = 0;
}

bool Receiver::mid_message() const {
  return await_ != Await::kHeader || carry_size_ > 0 || kept_ != nullptr || write_open_ ||
         send_sequence_.open() || read_open_;
}

// ---- Staging

std::byte* Receiver::begin_staging(StagingPointer& staging) {
  if (kept_) {
    bytes_ = kept_->bytes;
    if (kStagingBytes - end_ < kFpduSizeMax) {
      std::memmove(bytes_, bytes_ + begin_, available());
      end_ -= begin_;
      begin_ = 0;
    }
    return bytes_;
  }
  bytes_ = staging->bytes;
  std::memcpy(bytes_, carry_, carry_size_);
  begin_ = 0;
  end_ = carry_size_;
  return bytes_;
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
  direct_bytes_ = 0;
  size_t count = 0;
  size_t room = kStagingBytes - end_;
  if (direct_possible()) {
    count = direct_iovecs(iovecs_, kMaxSge);
    room = kBehindDirect;
  }
  iovecs_[count++] = {bytes_ + end_, room};
  return {iovecs_, count};
}

uint32_t Receiver::received(StagingPointer& staging, size_t bytes) {
  outcome_ = kRxNothing;
  if (!closed()) {
    const size_t direct = std::min(bytes, direct_bytes_);
    direct_bytes_ = 0;
    payload_done(static_cast<uint32_t>(direct));
    end_ += bytes - direct;
  }
  return consume(staging);
}

uint32_t Receiver::resume(StagingPointer& staging) {
  outcome_ = kRxNothing;
  held_.store(false, std::memory_order_release);
  begin_staging(staging);
  return consume(staging);
}

uint32_t Receiver::expire() {
  outcome_ = kRxNothing;
  if (!held() || closed()) return outcome_;
  held_.store(false, std::memory_order_release);
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
  end_staging(staging);
  return outcome_;
}

// ---- Parsing

bool Receiver::crc_ok() const {
  return verify_fpdu_crc({bytes_ + begin_, fpdu_size(ulpdu_length_)});
}

Receiver::Step Receiver::take_header() {
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
      fail(TerminateCode::kMpaCrc, QpEvent::kFatal, false);
      return Step::kNeedMore;
    }
  }
  if (available() < kFpduLengthSize + header) return Step::kNeedMore;
  at += kFpduLengthSize;
  std::memcpy(header_, at, header);
  // Extensions of RFC 7306 are off in this version.
  if (const auto error = check_segment(at, RdmapFeatures{})) {
    fail(*error, segment_event(*error), !is_version_error(*error));
    return Step::kNeedMore;
  }
  last_ = control.last();
  opcode_ = RdmapControl{static_cast<uint8_t>(at[1])}.opcode();
  if (!control.tagged() && traits(opcode_).header_size > 0) return take_control(opcode_);
  payload_left_ = static_cast<uint32_t>(ulpdu_length_ - header);
  if (control.tagged()) {
    const TaggedHeader tagged = TaggedHeader::decode(at);
    opcode_ == RdmapOpcode::kWrite ? open_write(tagged) : open_read_response(tagged);
  } else if (open_send(UntaggedHeader::decode(at), opcode_) == Step::kNeedMore) {
    return Step::kNeedMore;
  }
  if (closed()) return Step::kNeedMore;
  note_first_fpdu();
  begin_ += kFpduLengthSize + header;
  trailer_left_ = static_cast<uint32_t>(fpdu_trailer_size(ulpdu_length_));
  await_ = Await::kPayload;
  return Step::kAgain;
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
    if (const auto error = read_sequence_.check_msn(header)) {
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
    fail(*error, segment_event(*error), true);
    return Step::kNeedMore;
  }
  if (available() < fpdu_size(ulpdu_length_)) return Step::kNeedMore;
  note_first_fpdu();
  if (opcode == RdmapOpcode::kTerminate) {
    take_terminate(size);
  } else {
    take_read_request(bytes_ + begin_ + kFpduLengthSize + UntaggedHeader::kWireSize);
  }
  begin_ += fpdu_size(ulpdu_length_);
  return Step::kAgain;
}

void Receiver::open_write(const TaggedHeader& header) {
  region_ = nullptr;
  // One Write goes to one buffer (RFC 5040 5.1).
  if (write_open_ && header.stag != write_stag_) {
    fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
    return;
  }
  const bool first = !write_open_;
  write_open_ = !last_;
  write_stag_ = header.stag;
  payload_offset_ = 0;
  if (payload_left_ == 0) {
    const StreamConfig& config = stream_.config;
    if (first && last_ && config.magic_stag.value != 0 && header.stag == config.magic_stag &&
        header.to == config.magic_offset && !stream_.peer_is_uwarp.exchange(true)) {
      outcome_ |= kRxMagic;
      if (config.answer_magic) {
        stream_.answer_due.store(true, std::memory_order_release);
        outcome_ |= kRxTransmitWanted;
      }
    }
    return;
  }
  RegionFault fault;
  region_ = config_.regions->remote(header.stag, header.to, payload_left_, kAccessRemoteWrite,
                                    *config_.domain, fault);
  if (region_ != nullptr && !(stream_.remote_access.load() & kAccessRemoteWrite)) {
    region_ = nullptr;
    fault = RegionFault::kRights;
  }
  if (region_ == nullptr) {
    fail(write_fault_code(fault), QpEvent::kAccessError, true);
    return;
  }
  stag_ = header.stag;
  to_ = header.to;
}

void Receiver::open_read_response(const TaggedHeader& header) {
  OutboundRead* read = stream_.outbound.front();
  if (read == nullptr) {
    fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return;
  }
  if (!read_open_) {
    read_placed_ = 0;
    read_revoked_ = false;
    read_sink_.clear();
    if (read->request != OutboundRead::kNoRequest &&
        !sends_.gather(read->request, *config_.regions, *config_.domain, kAccessLocalWrite,
                       read_sink_)) {
      fail_read(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kLocProtErr);
      return;
    }
    read_open_ = true;
  }
  const uint64_t end = read_placed_ + payload_left_;
  if (payload_left_ > 0 && header.stag != read->sink) {
    fail_read(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kBadRespErr);
  } else if (end > read->length_bytes) {
    fail_read(TerminateCode::kDdpTaggedBounds, WcStatus::kLocLenErr);
  } else if ((payload_left_ > 0 && header.to != read_placed_) ||
             (last_ && end != read->length_bytes)) {
    fail_read(TerminateCode::kDdpTaggedBounds, WcStatus::kBadRespErr);
  }
  payload_offset_ = read_placed_;
}

Receiver::Step Receiver::open_send(const UntaggedHeader& header, RdmapOpcode opcode) {
  if (const auto error = send_sequence_.check_msn(header)) {
    fail(*error, QpEvent::kFatal, true);
    return Step::kNeedMore;
  }
  if (!send_sequence_.open()) {
    if (!receives_.take(receive_)) {
      held_.store(true, std::memory_order_release);
      outcome_ |= kRxHeld;
      return Step::kNeedMore;
    }
    if (!take_receive()) return Step::kNeedMore;
    send_sequence_.begin();
  }
  if (const auto error =
          UntaggedSequence::check_range(header.mo, payload_left_, sink_.length_bytes())) {
    fail_receive(*error, QpEvent::kFatal, WcStatus::kLocLenErr);
    return Step::kNeedMore;
  }
  payload_offset_ = header.mo;
  if (traits(opcode).invalidates) invalidate_ = header.invalidate_stag.value;
  return Step::kAgain;
}

// Resolves the buffer just taken. False: it names memory that it may not.
bool Receiver::take_receive() {
  taken_ = true;
  sink_revoked_ = false;
  sink_.clear();
  for (uint32_t i = 0; i < receive_.sge_count; ++i) {
    const Sge& sge = receive_.sges[i];
    if (sge.length_bytes == 0) continue;
    RegionFault fault;
    std::byte* address = config_.regions->local(sge.lkey, sge.address, sge.length_bytes,
                                                kAccessLocalWrite, *config_.domain, fault);
    if (address == nullptr) {
      fail_local_receive();
      return false;
    }
    sink_.append(address, sge.length_bytes);
  }
  return true;
}

void Receiver::take_read_request(const std::byte* rdmap) {
  if (stream_.inbound.full()) {
    fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
    return;
  }
  read_sequence_.skip();
  InboundRead read;
  read.header = ReadRequestHeader::decode(rdmap);
  std::memcpy(read.ddp_header, header_, sizeof read.ddp_header);
  if (read.header.size > 0 &&
      config_.regions->remote(read.header.source_stag, read.header.source_to, read.header.size,
                              kAccessRemoteRead, *config_.domain, read.fault) != nullptr &&
      !(stream_.remote_access.load() & kAccessRemoteRead))
    read.fault = RegionFault::kRights;
  // Nothing behind a bad request is looked at any more.
  if (read.fault != RegionFault::kNone) close();
  stream_.inbound.push(read);
  outcome_ |= kRxTransmitWanted;
}

void Receiver::take_terminate(size_t size) {
  const std::byte* at = bytes_ + begin_ + kFpduLengthSize + UntaggedHeader::kWireSize;
  StreamFailure failure;
  failure.by_peer = true;
  if (const auto terminate = TerminateHeader::decode({at, size})) failure.terminate = *terminate;
  failure.status = terminate_status(failure.terminate.code);
  stream_.fail(failure, QpEvent::kFatal);
  close();
  outcome_ |= kRxTerminated;
}

// ---- Placing

bool Receiver::placement_valid() {
  switch (opcode_) {
    case RdmapOpcode::kWrite:
      return region_->rkey.load(std::memory_order_acquire) == stag_.value;
    case RdmapOpcode::kReadResponse:
      return !read_revoked_;
    default:
      return !sink_revoked_;
  }
}

std::byte* Receiver::tagged_target() const {
  return region_->base + (to_ + payload_offset_ - region_->first);
}

bool Receiver::direct_possible() const {
  return await_ == Await::kPayload && !stream_.config.crc && !closed() &&
         payload_left_ >= kDirectBytes && end_ == begin_ &&
         const_cast<Receiver*>(this)->placement_valid();
}

size_t Receiver::direct_iovecs(iovec* out, size_t max) {
  uint64_t wanted = payload_left_ - kTailBytes;
  size_t count = 1;
  if (opcode_ == RdmapOpcode::kWrite) {
    out[0] = {tagged_target(), static_cast<size_t>(wanted)};
  } else {
    BufferList& list = opcode_ == RdmapOpcode::kReadResponse ? read_sink_ : sink_;
    count = list.describe(payload_offset_, wanted, out, max);
  }
  direct_bytes_ = wanted;
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
  if (!placement_valid()) {
    if (opcode_ == RdmapOpcode::kWrite) {
      fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
    } else if (opcode_ == RdmapOpcode::kReadResponse) {
      fail_read(TerminateCode::kDdpTaggedInvalidSTag, WcStatus::kLocProtErr);
    } else {
      fail_local_receive();
    }
    return Step::kNeedMore;
  }
  place(bytes_ + begin_, size);
  begin_ += size;
  payload_done(size);
  return Step::kAgain;
}

void Receiver::place(const std::byte* from, uint32_t size) {
  if (opcode_ == RdmapOpcode::kWrite) {
    if (last_ && size == payload_left_) {
      place_last(tagged_target(), from, size);
    } else {
      std::memcpy(tagged_target(), from, size);
    }
  } else if (opcode_ == RdmapOpcode::kReadResponse) {
    read_sink_.copy_in(payload_offset_, from, size);
  } else {
    sink_.copy_in(payload_offset_, from, size);
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
  if (opcode_ == RdmapOpcode::kWrite) return;
  if (opcode_ == RdmapOpcode::kReadResponse) {
    read_placed_ = payload_offset_;
    if (last_) finish_read();
    return;
  }
  send_sequence_.placed(ulpdu_length_ - UntaggedHeader::kWireSize);
  if (last_) finish_send();
}

void Receiver::finish_send() {
  if (const auto error = send_sequence_.finish(payload_offset_)) {
    fail_receive(*error, QpEvent::kFatal, WcStatus::kLocLenErr);
    return;
  }
  if (traits(opcode_).invalidates) {
    // Only a window bound to this queue pair may be invalidated from afar; there is none yet.
    fail_receive(TerminateCode::kRdmapCannotInvalidate, QpEvent::kAccessError,
                 WcStatus::kRemInvReqErr);
    return;
  }
  complete_receive(WcStatus::kSuccess, 0);
}

void Receiver::finish_read() {
  const uint64_t request = stream_.outbound.front()->request;
  stream_.outbound.pop();
  read_open_ = false;
  if (request != OutboundRead::kNoRequest)
    sends_.at(request).answered.store(true, std::memory_order_release);
  outcome_ |= kRxTransmitWanted;
}

void Receiver::complete_receive(WcStatus status, uint32_t vendor_err) {
  WorkCompletion completion{};
  completion.wr_id = receive_.wr_id;
  completion.status = status;
  completion.opcode = WcOpcode::kRecv;
  completion.vendor_err = vendor_err;
  completion.byte_len = static_cast<uint32_t>(payload_offset_);
  completion.qp_num = config_.number.value;
  taken_ = false;
  if (!config_.recv_cq->push(completion, traits(opcode_).solicited))
    fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
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

void Receiver::fail_local_receive() {
  const StreamFailure failure = describe(TerminateCode::kRdmapLocalCatastrophic, false);
  stream_.fail(failure, QpEvent::kFatal);
  close();
  outcome_ |= kRxFailed;
  complete_receive(WcStatus::kLocProtErr, failure.vendor_err());
}

void Receiver::fail_read(TerminateCode code, WcStatus status) {
  StreamFailure failure = describe(code, true);
  if (const OutboundRead* read = stream_.outbound.front()) failure.request = read->request;
  failure.status = status;
  stream_.fail(failure, QpEvent::kRequestError);
  close();
  outcome_ |= kRxFailed;
}

void Receiver::flush() {
  close();
  held_.store(false, std::memory_order_release);
  if (taken_) {
    payload_offset_ = 0;
    complete_receive(WcStatus::kWrFlushErr, 0);
  }
  if (config_.srq != nullptr) return;
  WorkCompletion completion{};
  completion.status = WcStatus::kWrFlushErr;
  completion.opcode = WcOpcode::kRecv;
  completion.qp_num = config_.number.value;
  while (receives_.drain(completion.wr_id)) config_.recv_cq->push(completion, true);
}

void Receiver::quiesce(const std::byte* base, uint64_t length) {
  if (taken_ && sink_.overlaps(base, length)) sink_revoked_ = true;
  if (read_open_ && read_sink_.overlaps(base, length)) read_revoked_ = true;
}

}  // namespace uwarp
