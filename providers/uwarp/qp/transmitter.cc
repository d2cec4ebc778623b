// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmitter.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "ddp/segment.h"
#include "mr/fault_safe_copy.h"
#include "qp/failed_request.h"
#include "qp/message_kind.h"
#include "rdmap/atomic_operation.h"
#include "rdmap/responder_rules.h"
#include "wire/delivered_mark.h"

namespace uwarp {
namespace {

RdmapOpcode wire_opcode(const SendWqe& wqe) {
  const bool solicited = wqe.flags & kSendSolicited;
  switch (wqe.opcode) {
    case SendOpcode::kWrite:
    case SendOpcode::kWriteWithImm:
      return RdmapOpcode::kWrite;
    case SendOpcode::kSendWithInvalidate:
      return solicited ? RdmapOpcode::kSendSolicitedInvalidate : RdmapOpcode::kSendInvalidate;
    case SendOpcode::kSendWithImm:
      return RdmapOpcode::kSendImmediate;
    default:
      return solicited ? RdmapOpcode::kSendSolicited : RdmapOpcode::kSend;
  }
}

// Remote protection errors name memory that the peer may not touch.
bool is_protection_error(TerminateCode code) { return layer(code) == 0 && etype(code) == 1; }

bool is_remote(WcStatus status) {
  return status == WcStatus::kRemInvReqErr || status == WcStatus::kRemAccessErr ||
         status == WcStatus::kRemOpErr;
}

/// The peer completes a receive for it.
bool takes_receive(SendOpcode opcode) {
  return opcode == SendOpcode::kSend || opcode == SendOpcode::kSendWithInvalidate ||
         opcode == SendOpcode::kSendWithImm || opcode == SendOpcode::kWriteWithImm;
}

FaultMessage fault_message(SendOpcode opcode) {
  if (is_local(opcode)) return FaultMessage::kLocal;
  if (is_write(opcode)) return FaultMessage::kWrite;
  if (is_atomic(opcode)) return FaultMessage::kAtomic;
  return opcode == SendOpcode::kRead ? FaultMessage::kRead : FaultMessage::kSend;
}

}  // namespace

Transmitter::Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream,
                         TransmitCounters& counters)
    : config_(config),
      queue_(queue),
      stream_(stream),
      counters_(counters),
      trace_(config.trace == nullptr
                 ? nullptr
                 : std::make_unique<TransmitTrace>(*config.trace, config.number.value)) {
  while (getrandom(&token_state_, sizeof token_state_, 0) != sizeof token_state_) {
  }
}

void Transmitter::restart() {
  batch_.configure(stream_.config.crc);
  message_ = Message::kNone;
  response_turn_ = immediate_due_ = revoked_ = opened_ = closed_ = flushed_ = false;
  if (config_.script != nullptr) config_.script->restart();
  built_position_ = sent_position_ = gathered_answer_end_ = 0;
  send_msn_ = request_msn_ = atomic_response_msn_ = stream_.config.first_msn;
  request_id_ = 0;
  acknowledging_.restart(config_.acknowledged,
                         std::max(stream_.config.ord, stream_.config.read_depth), queue_.started());
  stream_.acknowledged.store(queue_.started(), std::memory_order_relaxed);
  delivered_position_ = queue_.started();
  told_delivered_ = peer_delivered_ = stream_.config.first_msn.previous();
  finished_.store(false, std::memory_order_release);
  // The opening (an RTR) is due even if nothing has been posted.
  idle_.store(false, std::memory_order_release);
}

std::span<const iovec> Transmitter::window() {
  retire();
  if (batch_.empty()) {
    if (!batch_.restart()) [[unlikely]]
      return {};
    trace_ == nullptr ? fill() : fill_traced();
    // rdma_disconnect() goes by way of SQD, and what that holds back still goes out.
    const bool held = queue_.waiting() && (stream_.paused.load(std::memory_order_acquire) ||
                                           (config_.script && config_.script->send_held()));
    dry_.store(batch_.empty() && !held && !starved(), std::memory_order_release);
    note_progress();
    batch_.end();
  }
  return batch_.pending();
}

void Transmitter::sent(size_t bytes) {
  batch_.consume(bytes);
  sent_position_ += bytes;
  if (trace_ != nullptr) [[unlikely]]
    trace_->sent(queue_, batch_.sent_bytes(), sent_position_);
  retire();
  if (!batch_.empty()) return;
  counters_.octets.add(batch_.bytes());
  counters_.fpdus.add(batch_.fpdus());
  counters_.posted.set(queue_.posted());
  note_progress();
}

void Transmitter::note_progress() {
  const bool owed = !opened_ && stream_.config.rtr != StreamConfig::Rtr::kNone && !closed_;
  const bool quiet = batch_.empty() && message_ == Message::kNone && !owed;
  idle_.store(quiet && !queue_.waiting() && stream_.inbound.empty(), std::memory_order_release);
  if (quiet && stream_.failed() && closed_) finished_.store(true, std::memory_order_release);
}

bool Transmitter::wanted() const {
  return queue_.waiting() || !stream_.inbound.empty() || !idle() ||
         stream_.answer_due.load(std::memory_order_relaxed) ||
         stream_.chase_due.load(std::memory_order_relaxed) || (stream_.failed() && !finished());
}

void Transmitter::fill_traced() {
  fill();
  if (!batch_.empty()) trace_->built(queue_, batch_.pending(), batch_.fpdu_ends());
}

// All that an ordinary small message needs becomes one function; what is rare, or large by itself,
// is noinline. The calls were a tenth of the time that such a message takes.
[[gnu::flatten]] void Transmitter::fill() {
  acknowledging_.begin_batch();
  while (!closed_ && (batch_.has_room() || (ends_soon() && batch_.has_place()))) {
    if (message_ == Message::kNone) {
      const Next next = begin_next();
      if (next == Next::kNothing) return;
      if (next == Next::kEmitted) continue;
    }
    if (!append_segment()) return;
  }
}

// A message of 64 KiB has a second segment of some twenty octets.
bool Transmitter::ends_soon() const {
  return message_ != Message::kNone && message_bytes_ - offset_ <= TransmitBatch::kCopyBytes;
}

// What goes next, in order of precedence. Requests and answers alternate, so that neither side of
// the application starves the other.
Transmitter::Next Transmitter::begin_next() {
  if (stream_.failed()) return emit_terminate() ? Next::kEmitted : Next::kNothing;
  if (!opened_) {
    if (!emit_opening()) return begin_local() ? Next::kEmitted : Next::kNothing;
    if (!batch_.has_room()) return Next::kNothing;
  }
  if (stream_.answer_due.load(std::memory_order_acquire)) {
    stream_.answer_due.store(false, std::memory_order_relaxed);
    append_empty_write(stream_.config.magic_stag, stream_.config.magic_offset);
    return Next::kEmitted;
  }
  const bool response = !stream_.inbound.empty();
  bool request = request_ready();
  if (config_.script != nullptr) [[unlikely]] {
    const Obeyed obeyed = obey_script(response, request);
    if (obeyed == Obeyed::kNothing) return Next::kNothing;
    if (obeyed == Obeyed::kEmitted) return Next::kEmitted;
    request = obeyed == Obeyed::kGo && request;
  }
  if (stream_.failed()) return Next::kEmitted;
  if (acknowledgement_due(request)) {
    emit_acknowledgement();
    return Next::kEmitted;
  }
  if (response && (response_turn_ || !request || stream_.inbound.front()->wants_nothing())) {
    response_turn_ = false;
    return begin_response() ? Next::kOpened : Next::kEmitted;
  }
  if (!request) {
    if (must_ask_peer()) {
      emit_empty_read(0);
      return Next::kEmitted;
    }
    // Only once the first FPDU has gone alone: a second one wakes a responder that missed it.
    if (!stream_.chase_due.load(std::memory_order_relaxed) || built_position_ == 0)
      return Next::kNothing;
    stream_.chase_due.store(false, std::memory_order_relaxed);
    append_empty_write(STag{1}, 0);
    return Next::kEmitted;
  }
  if (delivery_due()) [[unlikely]] {
    emit_delivered_mark();
    return Next::kEmitted;
  }
  response_turn_ = true;
  return begin_request() ? Next::kOpened : Next::kEmitted;
}

// Before a message is begun, where faults are asked for. What ends the stream waits until all that
// was begun before has completed.
Transmitter::Obeyed Transmitter::obey_script(bool response, bool request) {
  FaultScript& script = *config_.script;
  if (script.send_held() || stream_.failed()) return Obeyed::kNothing;
  bool corrupt = false;
  if (request) {
    const uint64_t position = queue_.started();
    const SendWqe& wqe = queue_.at(position);
    const FaultVerdict& verdict =
        script.judge_request(position, fault_message(wqe.opcode), wqe.length_bytes);
    if (script.send_held()) return Obeyed::kNothing;
    corrupt = verdict.act == FaultVerdict::Act::kCorrupt;
    request = obey_verdict(position, verdict);
    if (stream_.failed()) return Obeyed::kEmitted;
  }
  const Obeyed go = request ? Obeyed::kGo : Obeyed::kNoRequest;
  if (acknowledgement_due(request)) return go;
  if (!response || (request && !response_turn_ && !stream_.inbound.front()->wants_nothing())) {
    if (corrupt) batch_.spoil_next_crc();
    return go;
  }
  const ReadRequestHeader* read = stream_.inbound.front()->read();
  return read != nullptr && !script.admit_answer(read->size) ? Obeyed::kNothing : go;
}

// False: the request is not begun now, or not at all.
bool Transmitter::obey_verdict(uint64_t position, const FaultVerdict& verdict) {
  if (verdict.act == FaultVerdict::Act::kGo || verdict.act == FaultVerdict::Act::kCorrupt)
    return true;
  if (queue_.retired() != position || !batch_.empty()) return false;
  StreamFailure failure = StreamFailure::terminated_by_us(verdict.code);
  std::optional<QpEvent> event = QpEvent::kFatal;
  switch (verdict.act) {
    case FaultVerdict::Act::kReset:
      config_.script->want_reset();
      return false;
    case FaultVerdict::Act::kFail:
      failure.request = position;
      failure.status = static_cast<WcStatus>(verdict.status);
      // As where the error is real: the peer's are told of by an event too.
      if (!is_remote(failure.status)) event.reset();
      break;
    default:
      if (is_protection_error(verdict.code)) event = QpEvent::kAccessError;
      break;
  }
  stream_.fail(failure, event);
  return false;
}

bool Transmitter::acknowledgement_due(bool request) const {
  if (!acknowledging_.on()) [[likely]]
    return false;
  const bool pressed = queue_.waiting() || stream_.paused.load(std::memory_order_relaxed);
  return acknowledging_.due(queue_.started(), stream_.outbound.size(), request, pressed);
}

// The peer answers a Read only when it has placed all that came before (RFC 5040 5.5), and checks
// no key of one without octets.
void Transmitter::emit_acknowledgement() {
  acknowledging_.cover(queue_.started());
  emit_empty_read(queue_.started());
}

// The next request may be the answer to what has been delivered, and the peer's application may
// rely on it that its own Sends complete before their answer comes.
bool Transmitter::delivery_due() const {
  return stream_.marks_deliveries(config_) && takes_receive(queue_.at(queue_.started()).opcode) &&
         stream_.delivered.load(std::memory_order_acquire) != told_delivered_.value;
}

void Transmitter::emit_delivered_mark() {
  told_delivered_ = Msn{stream_.delivered.load(std::memory_order_acquire)};
  append_empty_write(DeliveredMark::kStag, DeliveredMark{told_delivered_}.offset());
}

// A number that the peer makes up finds no request, or one of its own that it loses.
void Transmitter::note_peer_delivered() {
  const Msn delivered{stream_.peer_delivered.load(std::memory_order_acquire)};
  if (!delivered.after(peer_delivered_) || !send_msn_.after(delivered)) return;
  peer_delivered_ = delivered;
  for (uint64_t at = std::max(delivered_position_, queue_.retired()); at != queue_.started();
       ++at) {
    const SendWqe& wqe = queue_.at(at);
    if (!takes_receive(wqe.opcode) || wqe.msn != delivered.value) continue;
    delivered_position_ = at + 1;
    return;
  }
}

void Transmitter::emit_empty_read(uint64_t acknowledges) {
  const STag token = draw_token();
  stream_.outbound.push(
      OutboundRequest{.token = token.value, .msn = request_msn_, .acknowledges = acknowledges});
  append_request(RdmapOpcode::kReadRequest,
                 ReadRequestHeader{.sink_stag = token, .source_stag = STag{1}});
}

// RFC 6581 9.2: the initiator's first FPDU is the RTR; RFC 5044 7.1.2: the responder waits for it.
bool Transmitter::emit_opening() {
  const StreamConfig& config = stream_.config;
  if (must_be_silent()) return false;
  opened_ = true;
  if (config.rtr == StreamConfig::Rtr::kWrite) {
    append_empty_write(config.rtr_stag, config.rtr_offset);
  } else if (config.rtr == StreamConfig::Rtr::kRead) {
    emit_empty_read(0);
  }
  return true;
}

bool Transmitter::must_be_silent() const {
  return stream_.config.wait_for_first_fpdu && !stream_.first_fpdu.load(std::memory_order_acquire);
}

// Windows change without a word to the peer, so also while a responder must be silent: an
// application may wait for that before it gives the key away by other means.
bool Transmitter::begin_local() {
  if (!queue_.waiting() || !is_local(queue_.at(queue_.started()).opcode) || !request_ready())
    return false;
  begin_request();
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
  counters_.count(MessageKind::kTerminate);
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
  if (stream_.silent.load(std::memory_order_acquire)) return false;
  const SendWqe& wqe = queue_.at(queue_.started());
  if ((wqe.flags & kSendFence) && !stream_.outbound.empty()) return false;
  if (wqe.opcode == SendOpcode::kSendWithImm && !immediate_ready()) return false;
  // A change of keys takes effect after all that was posted before (verbs-level rule).
  if (is_local(wqe.opcode)) [[unlikely]]
    return queue_.retired() == queue_.started();
  if (!awaits_answer(wqe.opcode)) return true;
  const uint16_t ord = stream_.ord.load(std::memory_order_acquire);
  if (ord == 0) {
    fail_request(queue_.started(), WcStatus::kLocQpOpErr);
    return false;
  }
  return stream_.outbound.size() < ord;
}

// The peer shows with its first message what it is, unless it cannot know us for a uwarp either.
bool Transmitter::immediate_ready() {
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;
  const bool shown = !stream_.peer_will_show();
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;  // by now
  if (shown) fail_request(queue_.started(), WcStatus::kLocQpOpErr);
  return false;
}

// A Send with Immediate waits for a message of the peer, and the peer for one of the application:
// a Read is answered all the same.
bool Transmitter::must_ask_peer() const {
  if (!queue_.waiting() || stream_.failed()) [[likely]]
    return false;
  return queue_.at(queue_.started()).opcode == SendOpcode::kSendWithImm &&
         !stream_.peer_is_uwarp.load(std::memory_order_acquire) &&
         !stream_.first_fpdu.load(std::memory_order_acquire) && stream_.outbound.empty() &&
         (stream_.config.ord != 0 || acknowledging_.on()) &&
         !stream_.paused.load(std::memory_order_acquire);
}

bool Transmitter::begin_request() {
  const uint64_t position = queue_.started();
  SendWqe& wqe = queue_.at(position);
  const uint32_t needed = awaits_answer(wqe.opcode) ? uint32_t{kAccessLocalWrite} : 0;
  if (!queue_.gather(position, *config_.regions, *config_.domain, needed, payload_)) {
    fail_request(position, WcStatus::kLocProtErr);
    return false;
  }
  if (is_atomic(wqe.opcode) && wqe.length_bytes != sizeof(uint64_t)) {
    fail_request(position, WcStatus::kLocLenErr);
    return false;
  }
  queue_.start_one();
  if (acknowledging_.on()) [[unlikely]] {
    if (awaits_answer(wqe.opcode) || is_local(wqe.opcode))
      acknowledging_.cover(position + 1);  // all before a local one has completed
    else if (queue_.signaled(wqe))
      acknowledging_.owe();
  }
  if (is_local(wqe.opcode)) [[unlikely]] {
    change_window(wqe, position);
    return false;
  }
  if (awaits_answer(wqe.opcode)) {
    wqe.opcode == SendOpcode::kRead ? emit_read(wqe, position) : emit_atomic(wqe, position);
    wqe.end_position.store(built_position_, std::memory_order_relaxed);
    return false;
  }
  if (wqe.opcode != SendOpcode::kWrite) {
    wqe.msn = send_msn_.value;  // of the Send, or of the Immediate Data behind the Write
    send_msn_ = send_msn_.next();
  }
  counters_.count(is_write(wqe.opcode) ? MessageKind::kWrite : MessageKind::kSend);
  message_ = Message::kRequest;
  message_bytes_ = wqe.length_bytes;
  offset_ = 0;
  return true;
}

// Requests are one FPDU: emitted at once. RFC 5040 5.2.1, RFC 7306 5.2.1.
void Transmitter::emit_read(const SendWqe& wqe, uint64_t position) {
  const STag token = draw_token();
  stream_.outbound.push(OutboundRequest{.request = position,
                                        .token = token.value,
                                        .length_bytes = wqe.length_bytes,
                                        .msn = request_msn_,
                                        .acknowledges = acknowledging_.on() ? position + 1 : 0});
  append_request(RdmapOpcode::kReadRequest, ReadRequestHeader{.sink_stag = token,
                                                              .size = wqe.length_bytes,
                                                              .source_stag = STag{wqe.rkey},
                                                              .source_to = wqe.remote_address});
}

void Transmitter::emit_atomic(const SendWqe& wqe, uint64_t position) {
  AtomicRequestHeader header{
      .request_id = request_id_++, .remote_stag = STag{wqe.rkey}, .remote_to = wqe.remote_address};
  const AtomicOperands& operands = queue_.operands(position);
  const bool masked = wqe.opcode >= SendOpcode::kFirstInternal;
  if (wqe.opcode == SendOpcode::kFetchAdd || wqe.opcode == SendOpcode::kMaskedFetchAdd) {
    header.add_or_swap = operands.compare_add;
    if (masked) header.add_or_swap_mask = operands.add_or_swap_mask;
  } else {
    header.opcode = AtomicOpcode::kCmpSwap;
    header.add_or_swap = operands.swap;
    header.add_or_swap_mask = masked ? operands.add_or_swap_mask : ~uint64_t{0};
    header.compare = operands.compare_add;
    header.compare_mask = masked ? operands.compare_mask : ~uint64_t{0};
  }
  stream_.outbound.push(OutboundRequest{.request = position,
                                        .token = header.request_id,
                                        .length_bytes = wqe.length_bytes,
                                        .msn = request_msn_,
                                        .atomic = true,
                                        .acknowledges = acknowledging_.on() ? position + 1 : 0});
  append_request(RdmapOpcode::kAtomicRequest, header);
}

// BIND_MW and LOCAL_INV. All earlier requests have completed, and whatever peers do through the
// window is over when the table returns.
void Transmitter::change_window(SendWqe& wqe, uint64_t position) {
  const RemoteAccessor self{config_.domain, stream_.identity, 0};
  bool done;
  if (wqe.opcode == SendOpcode::kBindWindow) {
    bound_windows_ = true;
    done = config_.regions->bind(wqe.binding(), self);
  } else {
    done = config_.regions->invalidate_window(STag{wqe.imm_or_invalidate}, self);
  }
  if (!done) {
    fail_request(position, WcStatus::kMwBindErr);
    return;
  }
  wqe.end_position.store(sent_position_, std::memory_order_relaxed);
  retire();
}

bool Transmitter::begin_response() {
  const InboundRequest& request = *stream_.inbound.front();
  offset_ = 0;
  if (request.error) {
    fail_response(*request.error);
    return false;
  }
  if (request.atomic() != nullptr) {
    emit_atomic_response(request);
    return false;
  }
  counters_.count(MessageKind::kReadResponse);
  message_ = Message::kResponse;
  message_bytes_ = request.read()->size;
  return true;
}

// Executed when it is its turn among the answers owed, so in the order of the requests;
// begin_next() is called only when an FPDU has room, so it is executed once. RFC 7306 5.4.
void Transmitter::emit_atomic_response(const InboundRequest& request) {
  const AtomicRequestHeader header = *request.atomic();
  AtomicResponseHeader response{.request_id = header.request_id};
  RemotePlace cell;
  auto error = check_atomic_request(header, *config_.regions, stream_.peer(config_.domain), cell);
  if (!error) {
    const PlaceGuard guard(cell, header.remote_stag);
    if (guard && (cell.memory == MemoryKind::kPlain || fault_safe_probe(cell.address))) {
      // Answers to Reads before it may still lie in the application's memory. Without memory for a
      // copy they go out first, and it is executed for the next batch.
      if (!batch_.detach(cell.address, sizeof(uint64_t))) return;
      response.original_value = execute_atomic(cell.address, header);
    } else {
      error = TerminateCode::kRdmapInvalidSTag;
    }
  }
  if (error) {
    fail_response(*error);
    return;
  }
  note_answered(request);
  append_control(RdmapOpcode::kAtomicResponse, atomic_response_msn_, response);
}

// Nothing goes between a Write and its Immediate Data: the message stays open until both are out.
// RFC 7306 6.
bool Transmitter::append_immediate(SendWqe& wqe) {
  UntaggedHeader header;
  const bool solicited = wqe.flags & kSendSolicited;
  header.rsvd_ulp =
      make_rdmap_control(solicited ? RdmapOpcode::kImmediateSolicited : RdmapOpcode::kImmediate);
  header.msn = Msn{wqe.msn};
  constexpr size_t kSize = UntaggedHeader::kWireSize + kImmediateSize;
  std::byte* at = batch_.begin_fpdu(kSize, 0);
  if (at == nullptr) return false;
  header.encode(at);
  std::byte* value = at + UntaggedHeader::kWireSize;
  std::memset(value, 0, kImmediateSize);
  std::memcpy(value + (config_.immediate_in_last_half ? 4 : 0), &wqe.imm_or_invalidate, 4);
  batch_.end_fpdu(nullptr, 0);
  counters_.count(MessageKind::kImmediate);
  built_position_ += fpdu_size(kSize);
  wqe.end_position.store(built_position_, std::memory_order_relaxed);
  immediate_due_ = false;
  close_message();
  return true;
}

bool Transmitter::append_segment() {
  const bool request = message_ == Message::kRequest;
  if (immediate_due_) [[unlikely]]
    return append_immediate(queue_.at(queue_.started() - 1));
  const bool untagged = request && !is_write(queue_.at(queue_.started() - 1).opcode);
  const size_t header = untagged ? UntaggedHeader::kWireSize : TaggedHeader::kWireSize;
  const uint64_t left = message_bytes_ - offset_;
  const uint32_t payload = segment_payload(left, stream_.config.mulpdu, header);
  const Segment segment{payload, payload == left, following(payload, left)};
  return request ? append_request_segment(segment) : append_response_segment(segment);
}

// Another uwarp reads them in one go (docs/wire.md).
uint8_t Transmitter::following(uint32_t payload, uint64_t left) const {
  if (payload == left || !stream_.announces_runs(payload)) return 0;
  return static_cast<uint8_t>(
      std::min<uint64_t>((left - payload) / payload, DdpControl::kMostFollowing));
}

bool Transmitter::append_request_segment(const Segment& segment) {
  const uint64_t position = queue_.started() - 1;
  SendWqe& wqe = queue_.at(position);
  if (revoked_) {
    fail_request(position, WcStatus::kLocProtErr);
    message_ = Message::kNone;
    return true;
  }
  const RdmapOpcode opcode = wire_opcode(wqe);
  Built built;
  if (is_write(wqe.opcode)) {
    built = append_tagged(opcode, STag{wqe.rkey}, wqe.remote_address + offset_, segment);
  } else {
    UntaggedHeader header;
    header.control = DdpControl::make(false, segment.last, segment.following);
    if (wqe.opcode == SendOpcode::kSendWithInvalidate)
      header.invalidate_stag = STag{wqe.imm_or_invalidate};
    if (wqe.opcode == SendOpcode::kSendWithImm)  // network order as it is
      header.invalidate_stag = STag{__builtin_bswap32(wqe.imm_or_invalidate)};
    header.msn = Msn{wqe.msn};
    header.mo = static_cast<uint32_t>(offset_);
    if (opcode == RdmapOpcode::kSendImmediate)
      header.rsvd_ulp = RdmapControl::SolicitedBit::flag((wqe.flags & kSendSolicited) != 0);
    built = append_untagged(opcode, header, segment.payload);
  }
  if (built == Built::kNoRoom) return false;
  if (built == Built::kFault) [[unlikely]] {
    fail_request(position, WcStatus::kLocProtErr);
    message_ = Message::kNone;
    return true;
  }
  offset_ += segment.payload;
  if (segment.last && wqe.opcode == SendOpcode::kWriteWithImm) {
    immediate_due_ = true;
  } else if (segment.last) {
    wqe.end_position.store(built_position_, std::memory_order_relaxed);
    close_message();
  }
  return true;
}

// The source is checked again for each segment: it may be deregistered while the answer is on its
// way, and then the Terminate reports what is left of the request (RFC 5040 4.8).
bool Transmitter::append_response_segment(const Segment& segment) {
  const uint32_t payload = segment.payload;
  const ReadRequestHeader& request = *stream_.inbound.front()->read();
  RemotePlace source;
  if (const auto error = check_read_request(request, offset_, *config_.regions,
                                            stream_.peer(config_.domain), source)) {
    fail_response(*error);
    return true;
  }
  payload_.clear();
  payload_.append(source.address, payload, source.region, source.memory);
  if (!begin_tagged(RdmapOpcode::kReadResponse, request.sink_stag, request.sink_to + offset_,
                    segment))
    return false;
  if (!end_response_segment(source, request.source_stag)) {
    if (batch_.starved()) return false;
    fail_response(TerminateCode::kRdmapInvalidSTag);
    return true;
  }
  built_position_ += fpdu_size(TaggedHeader::kWireSize + payload);
  if (payload > TransmitBatch::kCopyBytes) gathered_answer_end_ = built_position_;
  offset_ += payload;
  if (segment.last) {
    note_answered(*stream_.inbound.front());
    close_message();
  }
  return true;
}

// What a window shows is copied while the binding holds: unbinding then waits for no send call.
bool Transmitter::end_response_segment(const RemotePlace& source, STag stag) {
  if (!source.through_window()) [[likely]]
    return batch_.end_fpdu(&payload_, 0);
  const PlaceGuard guard(source, stag);
  return guard && batch_.end_fpdu(&payload_, 0, true);  // else the FPDU that was begun is dropped
}

// Freed before the bytes go out: the peer may ask again as soon as it has the last one.
void Transmitter::note_answered(const InboundRequest& request) {
  if (request.delivered.after(told_delivered_)) told_delivered_ = request.delivered;
  stream_.inbound.pop();
}

void Transmitter::close_message() {
  message_ = Message::kNone;
  revoked_ = false;
}

bool Transmitter::begin_tagged(RdmapOpcode opcode, STag stag, TaggedOffset to,
                               const Segment& segment) {
  std::byte* at = batch_.begin_fpdu(TaggedHeader::kWireSize, segment.payload);
  if (at == nullptr) return false;
  TaggedHeader{.control = DdpControl::make(true, segment.last, segment.following),
               .rsvd_ulp = make_rdmap_control(opcode),
               .stag = stag,
               .to = to}
      .encode(at);
  return true;
}

Transmitter::Built Transmitter::append_tagged(RdmapOpcode opcode, STag stag, TaggedOffset to,
                                              const Segment& segment) {
  if (!begin_tagged(opcode, stag, to, segment)) return Built::kNoRoom;
  return end_payload(TaggedHeader::kWireSize, segment.payload);
}

Transmitter::Built Transmitter::append_untagged(RdmapOpcode opcode, const UntaggedHeader& header,
                                                uint32_t payload) {
  std::byte* at = batch_.begin_fpdu(UntaggedHeader::kWireSize, payload);
  if (at == nullptr) return Built::kNoRoom;
  UntaggedHeader filled = header;
  filled.rsvd_ulp |= make_rdmap_control(opcode);
  filled.encode(at);
  return end_payload(UntaggedHeader::kWireSize, payload);
}

Transmitter::Built Transmitter::end_payload(size_t header_bytes, uint32_t payload) {
  if (!batch_.end_fpdu(&payload_, offset_)) [[unlikely]]
    return batch_.starved() ? Built::kNoRoom : Built::kFault;
  built_position_ += fpdu_size(header_bytes + payload);
  return Built::kDone;
}

// A message that is all header: one FPDU, for which has_room() was checked.
template <typename Header>
void Transmitter::append_control(RdmapOpcode opcode, Msn& msn, const Header& header) {
  constexpr size_t kSize = UntaggedHeader::kWireSize + Header::kWireSize;
  UntaggedHeader untagged;
  untagged.rsvd_ulp = make_rdmap_control(opcode);
  untagged.qn = traits(opcode).queue;
  untagged.msn = msn;
  msn = msn.next();
  std::byte* at = batch_.begin_fpdu(kSize, 0);
  untagged.encode(at);
  header.encode(at + UntaggedHeader::kWireSize);
  batch_.end_fpdu(nullptr, 0);
  counters_.count(message_kind(opcode));
  built_position_ += fpdu_size(kSize);
}

template <typename Header>
void Transmitter::append_request(RdmapOpcode opcode, const Header& header) {
  append_control(opcode, request_msn_, header);
}

void Transmitter::append_empty_write(STag stag, TaggedOffset offset) {
  std::byte* at = batch_.begin_fpdu(TaggedHeader::kWireSize, 0);  // has_room() was checked
  TaggedHeader{.control = DdpControl::make(true, true),
               .rsvd_ulp = make_rdmap_control(RdmapOpcode::kWrite),
               .stag = stag,
               .to = offset}
      .encode(at);
  batch_.end_fpdu(nullptr, 0);
  counters_.count(MessageKind::kWrite);
  built_position_ += fpdu_size(TaggedHeader::kWireSize);
}

// Completes, in posting order, all requests whose octets have gone and whose answers (also those
// that only acknowledge) have come. In one piece, like fill().
[[gnu::flatten]] void Transmitter::retire(uint64_t sent_position) {
  const uint32_t wish = wish_.load(std::memory_order_acquire);
  if (acknowledging_.on()) [[unlikely]]
    note_peer_delivered();
  while (queue_.retired() != queue_.started()) {
    const SendWqe& wqe = queue_.at(queue_.retired());
    if (wqe.end_position.load(std::memory_order_relaxed) > sent_position) break;
    if (awaits_answer(wqe.opcode) && !wqe.answered.load(std::memory_order_acquire)) break;
    if (acknowledging_.on() && !awaits_answer(wqe.opcode) && !is_local(wqe.opcode) &&
        queue_.retired() >= stream_.acknowledged.load(std::memory_order_acquire) &&
        queue_.retired() >= delivered_position_)
      break;
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  if (wish != granted_.load(std::memory_order_relaxed)) [[unlikely]]
    granted_.store(wish, std::memory_order_release);
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
  if (trace_ != nullptr) [[unlikely]] {
    completion.src_qp = static_cast<uint32_t>(position);
    trace_->completed(position, completion, wanted);
  }
  // Retired first: a thread that polls the completion may post again at once.
  std::atomic<uint64_t>* const index = queue_.retire_one(wanted);
  counters_.retired.set(position + 1);
  if (wanted && !config_.send_cq->push(completion, false, index))
    stream_.fail(StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic),
                 QpEvent::kFatal);
  queue_.note_completed();
}

void Transmitter::fail_request(uint64_t position, WcStatus status) {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.request = position;
  failure.status = status;
  if (must_be_silent()) failure.send_terminate = false;
  stream_.fail(failure, std::nullopt);
}

// A Read that fails half way is reported as what is left of it (RFC 5040 4.8); of an atomic only
// the DDP header is given (RFC 7306 8.1).
void Transmitter::fail_response(TerminateCode code) {
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
  message_ = Message::kNone;
}

// The oldest request with octets that go from where they lie and have not gone; kNoRequest if there
// is none.
uint64_t Transmitter::first_gathered() const {
  for (uint64_t i = queue_.retired(); i != queue_.started(); ++i) {
    const SendWqe& wqe = queue_.at(i);
    if (!awaits_answer(wqe.opcode) && wqe.length_bytes > TransmitBatch::kCopyBytes &&
        wqe.end_position.load(std::memory_order_relaxed) > sent_position_)
      return i;
  }
  return StreamFailure::kNoRequest;
}

// A request's gather list or an answer's source is not readable memory any more. The kernel does
// not say which: where it may have been an answer, no request is blamed, and an event tells.
void Transmitter::fault() {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.status = WcStatus::kLocProtErr;
  if (gathered_answer_end_ <= sent_position_) failure.request = first_gathered();
  const bool blamed = failure.request != StreamFailure::kNoRequest;
  stream_.fail(failure, blamed ? std::nullopt : std::optional(QpEvent::kFatal));
  drop_batch();
  message_ = Message::kNone;
  immediate_due_ = false;
}

// What is built may not go out: with a frame that is cut the stream cannot go on, nor can a
// Terminate follow.
void Transmitter::drop_batch() {
  batch_.configure(stream_.config.crc);
  built_position_ = sent_position_;
  closed_ = true;
}

// What comes before a request that fails by itself has been placed, is on its way there, or still
// goes out ahead of our own Terminate.
void Transmitter::complete_before(uint64_t failed) {
  const StreamFailure& failure = stream_.failure();
  if (failed == StreamFailure::kNoRequest || failure.oldest_request) return;
  if (acknowledging_.on() && failed > stream_.acknowledged.load(std::memory_order_acquire))
    stream_.acknowledged.store(failed, std::memory_order_release);
  retire(failure.send_terminate ? built_position_ : sent_position_);
}

void Transmitter::flush() {
  retire();
  // What is built still goes out ahead of our own Terminate; otherwise only the FPDU that is half
  // sent is finished. Either way from memory of our own: the buffers are the application's again.
  const bool whole = stream_.failed() && stream_.failure().send_terminate;
  if (!(whole ? batch_.detach(nullptr, ~uint64_t{0}) : batch_.cut())) drop_batch();
  message_ = Message::kNone;
  immediate_due_ = false;
  flushed_ = true;
  const uint64_t own =
      failed_request(stream_.failure(), stream_.outbound, queue_, acknowledging_.on());
  complete_before(own);
  flush_requests(stream_.failed() ? own : StreamFailure::kNoRequest);
  note_progress();
}

void Transmitter::flush_late() { flush_requests(StreamFailure::kNoRequest); }

void Transmitter::flush_requests(uint64_t own) {
  std::lock_guard lock(queue_.post_lock());
  while (queue_.retired() != queue_.posted()) {
    const uint64_t position = queue_.retired();
    if (queue_.started() == position) queue_.start_one();
    const bool named = position == own;
    if (!named) counters_.flushed.add(1);
    complete(position, named ? stream_.failure().status : WcStatus::kWrFlushErr,
             named ? stream_.failure().vendor_err() : 0);
  }
}

void Transmitter::reset() {
  queue_.reset();
  batch_.configure(false);
  message_ = Message::kNone;
  immediate_due_ = false;
  closed_ = true;
  idle_.store(true, std::memory_order_release);
  finished_.store(false, std::memory_order_release);
}

// What lies in the region and is on its way goes out of a copy. Without memory for one the stream
// ends: nothing may refer to the region any more.
void Transmitter::quiesce(const MemoryRegion& region, const std::byte* base, uint64_t length) {
  if (!batch_.detach(base, length)) fault();
  if (message_ == Message::kRequest && payload_.uses(region)) revoked_ = true;
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
