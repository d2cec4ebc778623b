// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/receiver.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/tuning.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/rdmap/segment_rules.h"

namespace uwarp {

void StagedBytes::begin(StagingPointer& staging) {
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
void StagedBytes::make_space() {
  if (begin_ == 0 || space_size() >= kFpduSizeMax) return;
  std::memmove(bytes_, data(), size());
  end_ -= begin_;
  begin_ = 0;
}

void StagedBytes::end(StagingPointer& staging, bool closed) {
  const size_t left = closed ? 0 : size();
  if (left > kCarryBytes) {
    if (!kept_) kept_ = std::move(staging);
    return;
  }
  assert(begin_ <= end_ && end_ <= kStagingBytes);
  std::memcpy(carry_, data(), left);
  carry_size_ = static_cast<uint32_t>(left);
  begin_ = end_ = 0;
  if (kept_ && !staging) staging = std::move(kept_);
  kept_.reset();
}

void StagedBytes::reset() {
  kept_.reset();
  begin_ = end_ = 0;
  carry_size_ = 0;
}

void StagedBytes::take_out(size_t offset, size_t size) {
  assert(offset + size <= this->size());
  end_ -= size;
  std::byte* const at = bytes_ + begin_ + offset;
  std::memmove(at, at + size, this->size() - offset);
}

Receiver::Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives,
                   StreamState& stream, CompletionOrder order, ReceiveCounters& counters)
    : in_(config, stream, counters),
      order_(order),
      writes_(in_, order_),
      messages_(in_, receives, writes_, order_),
      answers_(in_, sends, order_) {}

void Receiver::restart() {
  assert(in_.stream.mine.receive());
  reset();
  messages_.restart();
  answers_.restart();
  request_sequence_ = UntaggedSequence(in_.stream.config.first_msn);
  done_bytes_ = ahead_bytes_ = 0;
  in_.reopen();
}

void Receiver::reset() {
  assert(in_.stream.mine.receive());
  in_.close();
  messages_.reset();
  answers_.reset();
  writes_.reset();
  staged_.reset();
  order_.restart();
  run_.reset();
  in_.segment = InboundSegment{};
  in_.when_whole = kRxNothing;
  open_ = false;
  expect_large_ = 0;
  trailer_left_ = 0;
  direct_bytes_ = 0;
}

bool Receiver::mid_message() const {
  assert(in_.stream.mine.receive());
  return open_ || staged_.pending() || writes_.message_open() || messages_.message_open() ||
         answers_.message_open();
}

// ---- Calls

std::span<const iovec> Receiver::next_iovecs(StagingPointer& staging) {
  assert(in_.stream.mine.receive());
  staged_.begin(staging);
  staged_.make_space();
  direct_bytes_ = 0;
  run_.close();
  iovec* const iovecs = staging->iovecs;
  size_t count = 0;
  size_t space = staged_.space_size();
  const uint32_t left = open_ ? in_.segment.payload_left : 0;
  const bool crc = in_.stream.config.crc;
  if (left >= tuning::kDirectBytes && !crc && !closed() && staged_.size() == 0)
    count = describe_payload(iovecs);
  if (count != 0) {
    space = tuning::kBehindDirect;
    if (run_.wanted() != 0 && direct_bytes_ == left - kTailBytes)
      count = describe_run(iovecs, count);
  } else if (expects_large() && !crc && !rnr_blocked()) {
    space = std::min(space, size_t{left} + tuning::kDirectBytes);
  }
  assert(count < StagingBuffer::kIovecs && run_.staged_bytes() + space <= staged_.space_size());
  iovecs[count++] = {staged_.space() + run_.staged_bytes(), space};
  next_bytes_ = direct_bytes_ + run_.bytes() + space;
  return {iovecs, count};
}

size_t Receiver::describe_payload(iovec* iovecs) {
  assert(in_.segment.payload_left >= kTailBytes);
  uint64_t wanted = in_.segment.payload_left - kTailBytes;
  size_t count = 0;
  if (is_write()) {
    if (writes_.direct()) iovecs[count++] = {writes_.target(), static_cast<size_t>(wanted)};
  } else if (sink_->plain() && !sink_->revoked()) {
    count = sink_->describe(in_.segment.payload_offset, wanted, iovecs, kMaxSge);
  }
  direct_bytes_ = count == 0 ? 0 : wanted;
  return count;
}

size_t Receiver::describe_run(iovec* iovecs, size_t count) {
  const size_t header = in_.segment.header_size();
  const uint64_t payload = in_.segment.ulpdu_length - header;
  // Where the segments of the run begin in the message, and how long they are together.
  const uint64_t offset = in_.segment.payload_offset + in_.segment.payload_left;
  const uint64_t length = run_.wanted() * payload;
  RemoteRange place;  // theirs, if it is a Write
  if (is_write() ? !writes_.find_behind(offset, length, place)
                 : offset + length > sink_->length_bytes())
    return count;
  const uint64_t direct = payload - kTailBytes;
  const size_t staged_size = kTailBytes + trailer_left_ + kFpduLengthSize + header;
  uint32_t segments = 0;
  for (; segments < run_.wanted() && count + 3 <= StagingBuffer::kIovecs; ++segments) {
    iovec* const out = iovecs + count;
    const uint64_t skipped = segments * payload;
    size_t used = 1;
    uint64_t size = direct;
    if (is_write())
      out[1] = {place.address + skipped, direct};
    else
      used = sink_->describe(offset + skipped, size, out + 1, StagingBuffer::kIovecs - count - 2);
    if (size != direct) break;
    out[0] = {staged_.space() + segments * staged_size, staged_size};
    count += 1 + used;
  }
  run_.open(segments, direct, staged_size);
  return count;
}

uint32_t Receiver::received(StagingPointer& staging, size_t bytes) {
  assert(in_.stream.mine.receive() && bytes <= next_bytes_);
  in_.counters.bytes.add(bytes);
  if (!closed()) {
    const size_t direct = std::min(bytes, direct_bytes_);
    const size_t behind = bytes - direct;
    in_.segment.payload_done(direct);
    staged_.add(direct_bytes_ == 0 ? behind : run_.take(behind, bytes == next_bytes_));
    direct_bytes_ = 0;
  }
  return consume(staging);
}

uint32_t Receiver::resume(StagingPointer& staging) {
  assert(in_.stream.mine.receive());
  messages_.end_rnr_block();
  staged_.begin(staging);
  return consume(staging);
}

uint32_t Receiver::complete_deferred() {
  assert(in_.stream.mine.receive());
  in_.outcome = kRxNothing;
  messages_.complete_deferred();
  return in_.outcome;
}

uint32_t Receiver::expire() {
  assert(in_.stream.mine.receive());
  in_.outcome = kRxNothing;
  if (!rnr_blocked() || closed()) return kRxNothing;
  if (is_unreliable(in_.config.transport)) {
    messages_.end_grace();
    return kRxNothing;
  }
  messages_.end_rnr_block();
  in_.counters.rnr_timeouts.add(1);  // without a buffer: RFC 5041-7.1-u2/u2b
  in_.fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
  return in_.outcome;
}

uint32_t Receiver::fault() {
  assert(in_.stream.mine.receive());
  in_.outcome = kRxNothing;
  if (!closed()) in_.fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
  return in_.outcome;
}

// In one piece, as Transmitter::fill(). Behind an error nothing is looked at. RFC 5040-7-b,
// 5041-7.1-c.
[[gnu::flatten]] uint32_t Receiver::consume(StagingPointer& staging) {
  in_.outcome = kRxNothing;
  order_.begin();
  const InboundSegment& segment = in_.segment;
  while (!rnr_blocked() && !closed()) {
    if (!open_) {
      if (!read_header()) break;
      // Immediate Data is a message like a Send, with a buffer of its own.
      const bool data =
          segment.control().tagged() || traits(segment.opcode).queue == QueueNumber::kSend;
      if (!(data ? open_message() : take_control())) break;
      if (!open_) continue;  // a message that is all header
    }
    if (!take_payload()) break;
    const size_t trailer = std::min<size_t>(staged_.size(), trailer_left_);
    staged_.consume(trailer);
    trailer_left_ -= static_cast<uint32_t>(trailer);  // the pad may hold anything: RFC 5044-4.1-c
    if (trailer_left_ != 0) break;
    open_ = false;
    in_.count_fpdu(segment.opcode, segment.last);
    done_bytes_ += fpdu_size(segment.ulpdu_length);
    if (segment.opcode == RdmapOpcode::kWrite)
      in_.outcome |= std::exchange(in_.when_whole, kRxNothing);
    else if (segment.opcode == RdmapOpcode::kReadResponse)
      answers_.finish_segment();
    else
      messages_.finish_segment();
  }
  if (rnr_blocked()) read_ahead();
  if (staged_.size() == 0) done_bytes_ += std::exchange(ahead_bytes_, 0);
  staged_.end(staging, closed());
  return in_.outcome;
}

// An application may post the receive that is missing only once its own Sends have completed, and
// the peer may have acknowledged these behind the message that waits. InfiniBand's acknowledgements
// do not wait for buffers, so they are taken out of what is kept. They place nothing.
void Receiver::read_ahead() {
  if (!in_.config.acknowledged) return;
  for (size_t at = 0; staged_.size() - at >= kFpduLengthSize + TaggedHeader::kWireSize;) {
    const std::byte* const fpdu = staged_.data() + at;
    const size_t size = fpdu_size(load_be16(fpdu));
    if (staged_.size() - at < size) return;
    if (answers_.is_acknowledgement(fpdu)) {
      in_.count_fpdu(RdmapOpcode::kReadResponse, true);
      answers_.finish();
      staged_.take_out(at, size);
      ahead_bytes_ += size;
    } else {
      at += size;
    }
  }
}

// ---- One FPDU

bool Receiver::read_header() {
  InboundSegment& segment = in_.segment;
  if (run_.ahead() != 0 && !run_.continues(staged_.data()) && !bring_back()) [[unlikely]]
    return in_.fail(TerminateCode::kDdpLocalCatastrophic, QpEvent::kFatal, false);
  if (staged_.size() < kFpduLengthSize + 1) return false;
  const std::byte* const at = staged_.data() + kFpduLengthSize;
  segment.ulpdu_length = load_be16(staged_.data());
  const DdpControl control{static_cast<uint8_t>(at[0])};
  const size_t header = ddp_header_size(control);
  // A ULPDU holds a whole DDP header. RFC 5041-4.4-a, 5044-4.1-f.
  if (segment.ulpdu_length < header)
    return in_.fail(TerminateCode::kDdpLocalCatastrophic, QpEvent::kFatal, false);
  if (in_.stream.config.crc && !check_frame()) return false;
  if (staged_.size() < kFpduLengthSize + header) return false;
  std::memcpy(segment.header, at, header);
  if (!is_sound_write(at)) {
    if (const auto error = check_segment(at, in_.features()))
      return in_.fail(*error, segment_event(*error), !is_version_error(*error));
  }
  segment.last = control.last();
  segment.opcode = RdmapControl{static_cast<uint8_t>(at[1])}.opcode();
  segment.payload_left = static_cast<uint32_t>(segment.ulpdu_length - header);
  return true;
}

// With CRC on nothing of a frame is looked at before it is whole and right. RFC 5044-4.4-b/d.
bool Receiver::check_frame() {
  const size_t size = fpdu_size(in_.segment.ulpdu_length);
  if (staged_.size() < size) return false;
  if (verify_fpdu_crc({staged_.data(), size})) return true;
  in_.counters.crc_errors.add(1);
  return in_.fail(TerminateCode::kMpaCrc, QpEvent::kFatal, false);  // no header: RFC 5040-4.8-o
}

// Instead of a segment that was announced something else has come, as a rule the Terminate of a
// peer that could not go on: it lies in the segment's place.
bool Receiver::bring_back() {
  const size_t size = run_.ahead();
  if (!run_.ahead_is_one() || size > staged_.space_size()) return false;
  if (is_write())
    std::memcpy(staged_.space(), writes_.target(), size);
  else if (!sink_->copy_out(in_.segment.payload_offset, staged_.space(), size))
    return false;
  staged_.add(size);
  run_.give_up();
  return true;
}

// The T flag says whether the buffer is a tagged one. Messages of both kinds may be open at once.
// RFC 5041-4.1-a/b, 5041-5.3-h.
bool Receiver::open_message() {
  InboundSegment& segment = in_.segment;
  if (is_write()) {
    writes_.open(TaggedHeader::decode(segment.header));
  } else if (segment.opcode == RdmapOpcode::kReadResponse) {
    sink_ = &answers_.sink();
    answers_.open(TaggedHeader::decode(segment.header));
  } else {
    sink_ = &messages_.sink();
    if (!messages_.open(UntaggedHeader::decode(segment.header))) return false;
  }
  if (closed()) [[unlikely]] {
    messages_.fail_immediate();
    return false;
  }
  note_first_fpdu();
  // An empty Write is the frame that starts the stream, as a rule, and nothing that was sent.
  const bool data = segment.opcode != RdmapOpcode::kWrite || segment.payload_left > 0;
  if (data && in_.stream.establish_event.load(std::memory_order_relaxed)) [[unlikely]] {
    if (in_.stream.establish_event.exchange(false)) in_.stream.raise(QpEvent::kCommEstablished);
  }
  staged_.consume(kFpduLengthSize + segment.header_size());
  trailer_left_ = static_cast<uint32_t>(fpdu_trailer_size(segment.ulpdu_length));
  if (segment.ulpdu_length >= kLargeUlpdu)
    expect_large_ = tuning::kExpectLarge;
  else if (expect_large_ != 0)
    --expect_large_;
  // Others do not know what we read in reserved bits.
  const uint8_t following = segment.control().following();
  if (following == 0 || segment.last || !in_.stream.announces_runs(segment.ulpdu_length))
    run_.end();
  else
    run_.begin(segment.header, segment.ulpdu_length, following);
  if (run_.ahead() != 0) segment.payload_done(run_.claim());
  return open_ = true;
}

void Receiver::take_first_fpdu() {
  in_.stream.first_fpdu.store(true, std::memory_order_release);
  in_.outcome |= kRxFirstFpdu | kRxTransmitWanted;
}

bool Receiver::take_payload() {
  InboundSegment& segment = in_.segment;
  while (segment.payload_left > 0) {
    const uint32_t left = segment.payload_left;
    uint32_t size = static_cast<uint32_t>(std::min<size_t>(staged_.size(), left));
    // The tail stays together, so that it can be stored last.
    if (size < left && left - size < kTailBytes) size = left > kTailBytes ? left - kTailBytes : 0;
    if (size == 0) return false;
    const bool placed = is_write() ? writes_.store(staged_.data(), size)
                                   : !sink_->revoked() && sink_->copy_in(segment.payload_offset,
                                                                         staged_.data(), size);
    if (!placed) [[unlikely]]
      return fail_payload();
    staged_.consume(size);
    segment.payload_done(size);
  }
  return true;
}

bool Receiver::fail_payload() {
  if (is_write()) {
    in_.fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
    messages_.fail_immediate();
  } else if (in_.segment.opcode == RdmapOpcode::kReadResponse) {
    answers_.fail_place();
  } else {
    messages_.fail_receive();
  }
  return false;
}

// ---- Messages that are all header

// Such a message waits until its one FPDU is whole, and takes no receive. RFC 5040-5.4-c.
bool Receiver::take_control() {
  const size_t size = in_.segment.payload_left;
  if (!check_control(size)) return false;
  const size_t whole = fpdu_size(in_.segment.ulpdu_length);
  if (staged_.size() < whole) return false;
  note_first_fpdu();
  in_.count_fpdu(in_.segment.opcode, true);
  done_bytes_ += fpdu_size(in_.segment.ulpdu_length);
  const std::byte* const rdmap = staged_.data() + kFpduLengthSize + UntaggedHeader::kWireSize;
  switch (in_.segment.opcode) {
    case RdmapOpcode::kReadRequest:
      take_request(ReadRequestHeader::decode(rdmap));
      break;
    case RdmapOpcode::kAtomicRequest:
      take_request(AtomicRequestHeader::decode(rdmap));
      break;
    case RdmapOpcode::kAtomicResponse:
      answers_.take(AtomicResponseHeader::decode(rdmap));
      break;
    default:
      take_terminate({rdmap, size});
  }
  staged_.consume(whole);
  return true;
}

bool Receiver::check_control(size_t size) {
  const RdmapOpcode opcode = in_.segment.opcode;
  const UntaggedHeader header = UntaggedHeader::decode(in_.segment.header);
  const bool answer = opcode == RdmapOpcode::kAtomicResponse;
  // Each queue counts for itself. A Terminate is always taken. RFC 5040-5.4-d, 5041-4.3-j.
  if (opcode != RdmapOpcode::kTerminate) {
    const UntaggedSequence& sequence = answer ? answers_.atomic_sequence() : request_sequence_;
    auto error = sequence.check_msn(header);
    if (!error && header.mo != 0) error = TerminateCode::kDdpUntaggedInvalidMo;
    if (error) return in_.fail(*error, QpEvent::kFatal, true);
  }
  auto error = check_header_size(opcode, size);
  if (!error && (size > kTerminateHeaderMax || !in_.segment.last))
    error = TerminateCode::kRdmapOperationUnspecified;
  if (!error) return true;
  return answer ? answers_.fail(*error, WcStatus::kBadRespErr)
                : in_.fail(*error, segment_event(*error), true);
}

// Both kinds share the depth that was negotiated. RFC 5040-5.2.1-b/c/d, 5040-6.1-b/c/f, 7306-5.2-b.
template <typename Header>
void Receiver::take_request(const Header& header) {
  if (is_unreliable(in_.config.transport))
    return void(in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true));
  if (in_.stream.inbound.full())
    return void(in_.fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true));
  request_sequence_.skip();
  InboundRequest request;
  request.header = header;
  const RemoteAccessor peer = in_.stream.peer(in_.config.domain);
  RemoteRange place;
  if constexpr (std::is_same_v<Header, ReadRequestHeader>)
    request.error = check_read_request(header, 0, *in_.config.regions, peer, place);
  else
    request.error =
        check_atomic_request(header, *in_.config.regions, peer, place, in_.config.acknowledged);
  std::memcpy(request.ddp_header, in_.segment.header, sizeof request.ddp_header);
  // Nothing behind a bad request is looked at any more.
  if (request.error) in_.close();
  request.delivered = messages_.delivered();
  in_.stream.inbound.push(request);
  in_.outcome |= kRxTransmitWanted;
}

void Receiver::take_terminate(std::span<const std::byte> rdmap) {
  StreamFailure failure;
  failure.by_peer = true;
  if (const auto terminate = TerminateHeader::decode(rdmap)) failure.terminate = *terminate;
  failure.status = terminate_status(failure.terminate.code);
  if (in_.config.acknowledged && failure.terminate.code == TerminateCode::kDdpUntaggedNoBuffer)
    failure.status = WcStatus::kRnrRetryExcErr;
  // With acknowledgements QueuePair::flush() knows whether a completion tells.
  in_.stream.fail(failure, in_.config.acknowledged ? std::nullopt : std::optional(QpEvent::kFatal));
  in_.close();
  in_.outcome |= kRxTerminated;  // whatever it holds: RFC 5040-5.4-e/f
}

// ---- From outside of a call

void Receiver::flush() {
  assert(in_.stream.mine.receive());
  in_.close();
  messages_.flush();
}

void Receiver::quiesce(const MemoryRegion& region) {
  assert(in_.stream.mine.receive());
  messages_.sink().revoke(region);
  answers_.sink().revoke(region);
}

void Receiver::resolve_again(const MemoryRegion& region) {
  assert(in_.stream.mine.receive());
  if (open_ && in_.segment.opcode == RdmapOpcode::kWrite) writes_.resolve_again(region);
}

}  // namespace uwarp
