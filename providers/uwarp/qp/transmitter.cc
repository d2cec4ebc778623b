// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmitter.h"

#include <sys/random.h>

#include "ddp/segment.h"

namespace uwarp {
namespace {

RdmapOpcode wire_opcode(const SendWqe& wqe) {
  const bool solicited = wqe.flags & kSendSolicited;
  switch (wqe.opcode) {
    case SendOpcode::kWrite:
      return RdmapOpcode::kWrite;
    case SendOpcode::kSendWithInvalidate:
      return solicited ? RdmapOpcode::kSendSolicitedInvalidate : RdmapOpcode::kSendInvalidate;
    default:
      return solicited ? RdmapOpcode::kSendSolicited : RdmapOpcode::kSend;
  }
}

bool awaits_answer(const SendWqe& wqe) { return wqe.opcode == SendOpcode::kRead; }

// RFC 5040 7.2: faults of a Read Request's source, as layer 0 reports them.
TerminateCode read_fault_code(RegionFault fault) {
  switch (fault) {
    case RegionFault::kBounds:
      return TerminateCode::kRdmapBounds;
    case RegionFault::kWrap:
      return TerminateCode::kRdmapToWrap;
    case RegionFault::kRights:
      return TerminateCode::kRdmapAccess;
    case RegionFault::kWrongDomain:
      return TerminateCode::kRdmapSTagNotOfStream;
    default:
      return TerminateCode::kRdmapInvalidSTag;
  }
}

}  // namespace

Transmitter::Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream)
    : config_(config), queue_(queue), stream_(stream) {
  while (getrandom(&token_state_, sizeof token_state_, 0) != sizeof token_state_) {
  }
}

void Transmitter::restart() {
  batch_.configure(stream_.config.crc);
  message_ = Message::kNone;
  response_turn_ = revoked_ = opened_ = closed_ = flushed_ = false;
  chase_due_ = stream_.config.chase_first_fpdu;
  built_position_ = sent_position_ = 0;
  send_msn_ = read_msn_ = Msn{};
  finished_.store(false, std::memory_order_release);
  // The opening (an RTR) is due even if nothing has been posted.
  idle_.store(false, std::memory_order_release);
}

std::span<const iovec> Transmitter::window() {
  retire();
  if (batch_.empty()) {
    batch_.restart();
    fill();
    note_progress();
  }
  return batch_.pending();
}

void Transmitter::sent(size_t bytes) {
  batch_.consume(bytes);
  sent_position_ += bytes;
  retire();
  if (batch_.empty()) note_progress();
}

void Transmitter::note_progress() {
  const bool owed = !opened_ && stream_.config.rtr != StreamConfig::Rtr::kNone && !closed_;
  const bool quiet = batch_.empty() && message_ == Message::kNone && !owed;
  idle_.store(quiet && !queue_.waiting() && stream_.inbound.empty(), std::memory_order_release);
  if (quiet && stream_.failed() && closed_) finished_.store(true, std::memory_order_release);
}

bool Transmitter::wanted() const {
  return queue_.waiting() || !stream_.inbound.empty() || !idle() ||
         stream_.answer_due.load(std::memory_order_relaxed) || (stream_.failed() && !finished());
}

void Transmitter::fill() {
  while (!closed_ && batch_.has_room()) {
    if (message_ == Message::kNone) {
      const Next next = begin_next();
      if (next == Next::kNothing) return;
      if (next == Next::kEmitted) continue;
    }
    if (!append_segment()) return;
  }
}

// What goes next, in order of precedence. Requests and answers alternate, so that neither side of
// the application starves the other.
Transmitter::Next Transmitter::begin_next() {
  if (stream_.failed()) return emit_terminate() ? Next::kEmitted : Next::kNothing;
  if (!opened_) {
    if (!emit_opening()) return Next::kNothing;
    if (!batch_.has_room()) return Next::kNothing;
  }
  if (stream_.answer_due.load(std::memory_order_acquire)) {
    stream_.answer_due.store(false, std::memory_order_relaxed);
    append_empty_write(stream_.config.magic_stag, stream_.config.magic_offset);
    return Next::kEmitted;
  }
  const bool response = !stream_.inbound.empty();
  const bool request = request_ready();
  if (stream_.failed()) return Next::kEmitted;
  if (response && (response_turn_ || !request)) {
    response_turn_ = false;
    return begin_response() ? Next::kOpened : Next::kEmitted;
  }
  if (!request) {
    // Only once the first FPDU has gone alone: a second one wakes a responder that missed it.
    if (!chase_due_ || built_position_ == 0) return Next::kNothing;
    chase_due_ = false;
    append_empty_write(STag{1}, 0);
    return Next::kEmitted;
  }
  response_turn_ = true;
  return begin_request() ? Next::kOpened : Next::kEmitted;
}

// RFC 6581 9.2: the initiator's first FPDU is the RTR; RFC 5044 7.1.2: the responder waits for it.
bool Transmitter::emit_opening() {
  const StreamConfig& config = stream_.config;
  if (config.wait_for_first_fpdu && !stream_.first_fpdu.load(std::memory_order_acquire))
    return false;
  opened_ = true;
  if (config.rtr == StreamConfig::Rtr::kWrite) {
    append_empty_write(config.rtr_stag, config.rtr_offset);
  } else if (config.rtr == StreamConfig::Rtr::kRead) {
    const STag token = draw_token();
    OutboundRead read;
    read.sink = token;
    read.msn = read_msn_;
    stream_.outbound.push(read);
    append_read_request(ReadRequestHeader{.sink_stag = token, .source_stag = STag{1}});
  }
  return true;
}

// Last of all, and only once what the failure leaves behind has been flushed. RFC 5040 5.4.
bool Transmitter::emit_terminate() {
  if (!flushed_) return false;
  closed_ = true;
  const StreamFailure& failure = stream_.failure();
  if (!failure.send_terminate) return false;
  UntaggedHeader header;
  header.qn = QueueNumber::kTerminate;
  header.rsvd_ulp = make_rdmap_control(RdmapOpcode::kTerminate);
  const size_t size = failure.terminate.encoded_size();
  std::byte* at = batch_.begin_fpdu(UntaggedHeader::kWireSize + size, 0);
  if (at == nullptr) return closed_ = false;
  header.encode(at);
  failure.terminate.encode(at + UntaggedHeader::kWireSize);
  batch_.end_fpdu(nullptr, 0);
  return true;
}

bool Transmitter::request_ready() {
  if (!queue_.waiting() || stream_.paused.load(std::memory_order_acquire)) return false;
  if (stream_.lost.load(std::memory_order_acquire)) {
    // The peer left without a word: to the application it does not answer any more.
    StreamFailure failure;
    failure.oldest_request = true;
    failure.status = WcStatus::kRetryExcErr;
    stream_.fail(failure, std::nullopt);
    return false;
  }
  const SendWqe& wqe = queue_.at(queue_.started());
  if ((wqe.flags & kSendFence) && !stream_.outbound.empty()) return false;
  if (!awaits_answer(wqe)) return true;
  const uint16_t ord = stream_.ord.load(std::memory_order_acquire);
  if (ord == 0) {
    fail_request(queue_.started(), WcStatus::kLocQpOpErr);
    return false;
  }
  return stream_.outbound.size() < ord;
}

bool Transmitter::begin_request() {
  const uint64_t position = queue_.started();
  SendWqe& wqe = queue_.at(position);
  const uint32_t needed = awaits_answer(wqe) ? uint32_t{kAccessLocalWrite} : 0;
  if (!queue_.gather(position, *config_.regions, *config_.domain, needed, payload_)) {
    fail_request(position, WcStatus::kLocProtErr);
    return false;
  }
  queue_.start_one();
  if (wqe.opcode == SendOpcode::kRead) return begin_read(wqe, position);
  if (wqe.opcode != SendOpcode::kWrite) {
    wqe.msn = send_msn_.value;
    send_msn_ = send_msn_.next();
  }
  message_ = Message::kRequest;
  message_bytes_ = wqe.length_bytes;
  offset_ = 0;
  return true;
}

// A Read Request is one FPDU: emitted at once. RFC 5040 5.2.1.
bool Transmitter::begin_read(SendWqe& wqe, uint64_t position) {
  OutboundRead read;
  read.request = position;
  read.sink = draw_token();
  read.length_bytes = static_cast<uint32_t>(wqe.length_bytes);
  read.msn = read_msn_;
  stream_.outbound.push(read);
  append_read_request(ReadRequestHeader{.sink_stag = read.sink,
                                        .size = read.length_bytes,
                                        .source_stag = STag{wqe.rkey},
                                        .source_to = wqe.remote_address});
  wqe.end_position = built_position_;
  return false;
}

bool Transmitter::begin_response() {
  offset_ = 0;
  if (const RegionFault fault = stream_.inbound.front()->fault; fault != RegionFault::kNone) {
    fail_response(fault);
    return false;
  }
  message_ = Message::kResponse;
  message_bytes_ = stream_.inbound.front()->header.size;
  return true;
}

bool Transmitter::append_segment() {
  const bool request = message_ == Message::kRequest;
  const bool untagged = request && queue_.at(queue_.started() - 1).opcode != SendOpcode::kWrite;
  const size_t header = untagged ? UntaggedHeader::kWireSize : TaggedHeader::kWireSize;
  const uint64_t left = message_bytes_ - offset_;
  const uint32_t payload = segment_payload(left, stream_.config.mulpdu, header);
  const bool last = payload == left;
  return request ? append_request_segment(payload, last) : append_response_segment(payload, last);
}

bool Transmitter::append_request_segment(uint32_t payload, bool last) {
  const uint64_t position = queue_.started() - 1;
  SendWqe& wqe = queue_.at(position);
  if (revoked_) {
    fail_request(position, WcStatus::kLocProtErr);
    message_ = Message::kNone;
    return true;
  }
  const RdmapOpcode opcode = wire_opcode(wqe);
  bool fits;
  if (wqe.opcode == SendOpcode::kWrite) {
    fits =
        append_tagged(opcode, STag{wqe.rkey}, wqe.remote_address + offset_, payload, last, offset_);
  } else {
    UntaggedHeader header;
    header.control = DdpControl::make(false, last);
    if (wqe.opcode == SendOpcode::kSendWithInvalidate)
      header.invalidate_stag = STag{wqe.imm_or_invalidate};
    header.msn = Msn{wqe.msn};
    header.mo = static_cast<uint32_t>(offset_);
    fits = append_untagged(opcode, header, payload);
  }
  if (!fits) return false;
  offset_ += payload;
  if (last) {
    wqe.end_position = built_position_;
    close_message();
  }
  return true;
}

// The source is checked again for each segment: it may be deregistered while the answer is on its
// way, and then the Terminate reports what is left of the request (RFC 5040 4.8).
bool Transmitter::append_response_segment(uint32_t payload, bool last) {
  InboundRead& read = *stream_.inbound.front();
  if (message_bytes_ > 0) {
    RegionFault fault;
    const uint64_t left = message_bytes_ - offset_;
    const MemoryRegion* region =
        config_.regions->remote(read.header.source_stag, read.header.source_to + offset_, left,
                                kAccessRemoteRead, *config_.domain, fault);
    if (region != nullptr && !(stream_.remote_access.load() & kAccessRemoteRead)) {
      region = nullptr;
      fault = RegionFault::kRights;
    }
    if (region == nullptr) {
      fail_response(fault);
      return true;
    }
    RegionFault ignored;
    payload_.clear();
    payload_.append(region->range(read.header.source_to + offset_, payload, ignored), payload);
  }
  // The list holds just this segment, so its payload starts at 0 there.
  if (!append_tagged(RdmapOpcode::kReadResponse, read.header.sink_stag,
                     read.header.sink_to + offset_, payload, last, 0))
    return false;
  offset_ += payload;
  if (last) {
    // Freed before the octets go out: the peer may ask again as soon as it has the last one.
    stream_.inbound.pop();
    close_message();
  }
  return true;
}

void Transmitter::close_message() {
  message_ = Message::kNone;
  revoked_ = false;
}

bool Transmitter::append_tagged(RdmapOpcode opcode, STag stag, TaggedOffset to, uint32_t payload,
                                bool last, uint64_t list_offset) {
  std::byte* at = batch_.begin_fpdu(TaggedHeader::kWireSize, payload);
  if (at == nullptr) return false;
  TaggedHeader{.control = DdpControl::make(true, last),
               .rsvd_ulp = make_rdmap_control(opcode),
               .stag = stag,
               .to = to}
      .encode(at);
  batch_.end_fpdu(&payload_, list_offset);
  built_position_ += fpdu_size(TaggedHeader::kWireSize + payload);
  return true;
}

bool Transmitter::append_untagged(RdmapOpcode opcode, const UntaggedHeader& header,
                                  uint32_t payload) {
  std::byte* at = batch_.begin_fpdu(UntaggedHeader::kWireSize, payload);
  if (at == nullptr) return false;
  UntaggedHeader filled = header;
  filled.rsvd_ulp = make_rdmap_control(opcode);
  filled.encode(at);
  batch_.end_fpdu(&payload_, offset_);
  built_position_ += fpdu_size(UntaggedHeader::kWireSize + payload);
  return true;
}

void Transmitter::append_read_request(const ReadRequestHeader& request) {
  constexpr size_t kSize = UntaggedHeader::kWireSize + ReadRequestHeader::kWireSize;
  UntaggedHeader header;
  header.rsvd_ulp = make_rdmap_control(RdmapOpcode::kReadRequest);
  header.qn = QueueNumber::kReadRequest;
  header.msn = read_msn_;
  read_msn_ = read_msn_.next();
  std::byte* at = batch_.begin_fpdu(kSize, 0);  // has_room() was checked
  header.encode(at);
  request.encode(at + UntaggedHeader::kWireSize);
  batch_.end_fpdu(nullptr, 0);
  built_position_ += fpdu_size(kSize);
}

void Transmitter::append_empty_write(STag stag, TaggedOffset offset) {
  std::byte* at = batch_.begin_fpdu(TaggedHeader::kWireSize, 0);  // has_room() was checked
  TaggedHeader{.control = DdpControl::make(true, true),
               .rsvd_ulp = make_rdmap_control(RdmapOpcode::kWrite),
               .stag = stag,
               .to = offset}
      .encode(at);
  batch_.end_fpdu(nullptr, 0);
  built_position_ += fpdu_size(TaggedHeader::kWireSize);
}

// Completes, in posting order, all requests whose octets have gone and whose answers have come.
void Transmitter::retire() {
  while (queue_.retired() != queue_.started()) {
    const SendWqe& wqe = queue_.at(queue_.retired());
    if (wqe.end_position > sent_position_) break;
    if (awaits_answer(wqe) && !wqe.answered.load(std::memory_order_acquire)) break;
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  look_for_drain();
}

void Transmitter::look_for_drain() {
  if (stream_.drain_event.load(std::memory_order_relaxed) && batch_.empty() &&
      queue_.retired() == queue_.started() && stream_.drain_event.exchange(false))
    stream_.raise(QpEvent::kSqDrained);
}

void Transmitter::complete(uint64_t position, WcStatus status, uint32_t vendor_err) {
  const SendWqe& wqe = queue_.at(position);
  const bool wanted = status != WcStatus::kSuccess || queue_.signaled(wqe);
  WorkCompletion completion{};
  completion.wr_id = wqe.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(wqe.opcode);
  completion.vendor_err = vendor_err;
  completion.byte_len = static_cast<uint32_t>(wqe.length_bytes);
  completion.qp_num = config_.number.value;
  // The slot first: whoever polls the completion may post again at once.
  queue_.retire_one();
  if (wanted && !config_.send_cq->push(completion, false))
    stream_.fail(StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic),
                 QpEvent::kFatal);
}

void Transmitter::fail_request(uint64_t position, WcStatus status) {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.request = position;
  failure.status = status;
  stream_.fail(failure, std::nullopt);
}

void Transmitter::fail_response(RegionFault fault) {
  const InboundRead& read = *stream_.inbound.front();
  StreamFailure failure = StreamFailure::terminated_by_us(read_fault_code(fault));
  constexpr size_t kSegment = UntaggedHeader::kWireSize + ReadRequestHeader::kWireSize;
  failure.terminate.copy_ddp_header(read.ddp_header, kSegment);
  ReadRequestHeader rest = read.header;
  rest.sink_to += offset_;
  rest.source_to += offset_;
  rest.size -= static_cast<uint32_t>(offset_);
  std::byte encoded[ReadRequestHeader::kWireSize];
  rest.encode(encoded);
  failure.terminate.copy_read_request(encoded);
  stream_.fail(failure, QpEvent::kAccessError);
  message_ = Message::kNone;
}

void Transmitter::fault() {
  // An answer's source or a request's gather list is not readable memory any more.
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.oldest_request = true;
  failure.status = WcStatus::kLocProtErr;
  stream_.fail(failure, std::nullopt);
  batch_.configure(stream_.config.crc);
  closed_ = true;
  message_ = Message::kNone;
}

// Which send request a failure names. Its header is peer input when the peer sent it.
uint64_t Transmitter::failed_request() const {
  const StreamFailure& failure = stream_.failure();
  if (failure.oldest_request) return queue_.retired();
  if (!failure.by_peer || !failure.terminate.has_ddp_header) return failure.request;
  const std::byte* header = failure.terminate.ddp_header.data();
  const RdmapControl control{static_cast<uint8_t>(header[1])};
  const bool tagged = failure.terminate.ddp_header_size == TaggedHeader::kWireSize;
  if (tagged && control.opcode() != RdmapOpcode::kWrite) return StreamFailure::kNoRequest;
  const UntaggedHeader untagged = tagged ? UntaggedHeader{} : UntaggedHeader::decode(header);
  if (!tagged && untagged.qn == QueueNumber::kReadRequest) {
    const OutboundRead* read = stream_.outbound.find(
        [&](const OutboundRead& candidate) { return candidate.msn == untagged.msn; });
    return read != nullptr ? read->request : StreamFailure::kNoRequest;
  }
  for (uint64_t i = queue_.retired(); i != queue_.started(); ++i) {
    const SendWqe& wqe = queue_.at(i);
    if (awaits_answer(wqe)) continue;
    const bool write = wqe.opcode == SendOpcode::kWrite;
    if (tagged && write && wqe.rkey == TaggedHeader::decode(header).stag.value) return i;
    if (!tagged && !write && untagged.qn == QueueNumber::kSend && wqe.msn == untagged.msn.value)
      return i;
  }
  return StreamFailure::kNoRequest;
}

void Transmitter::flush() {
  retire();
  // What is built still goes out ahead of our own Terminate; otherwise only the FPDU that is half
  // sent is finished. Either way from memory of our own: the buffers are the application's again.
  if (stream_.failed() && stream_.failure().send_terminate) {
    batch_.detach(nullptr, ~uint64_t{0});
  } else {
    batch_.cut();
  }
  message_ = Message::kNone;
  flushed_ = true;
  const uint64_t own = failed_request();
  const StreamFailure& failure = stream_.failure();
  std::lock_guard lock(queue_.post_lock());
  while (queue_.retired() != queue_.posted()) {
    const uint64_t position = queue_.retired();
    if (queue_.started() == position) queue_.start_one();
    const bool named = position == own && stream_.failed();
    complete(position, named ? failure.status : WcStatus::kWrFlushErr,
             named ? failure.vendor_err() : 0);
  }
  note_progress();
}

void Transmitter::flush_late() {
  std::lock_guard lock(queue_.post_lock());
  while (queue_.retired() != queue_.posted()) {
    if (queue_.started() == queue_.retired()) queue_.start_one();
    complete(queue_.retired(), WcStatus::kWrFlushErr, 0);
  }
}

void Transmitter::reset() {
  queue_.reset();
  batch_.configure(false);
  message_ = Message::kNone;
  closed_ = true;
  idle_.store(true, std::memory_order_release);
  finished_.store(false, std::memory_order_release);
}

void Transmitter::quiesce(const std::byte* base, uint64_t length) {
  batch_.detach(base, length);
  if (message_ == Message::kRequest && payload_.overlaps(base, length)) revoked_ = true;
}

// Sink tokens: fresh, never zero, not guessable from earlier ones by chance (splitmix64 on a random
// start). Good only for the Read Response at the head of the outstanding Reads.
STag Transmitter::draw_token() {
  uint64_t z = token_state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  const auto token = static_cast<uint32_t>(z >> 32);
  return STag{token == 0 ? 1 : token};
}

}  // namespace uwarp
