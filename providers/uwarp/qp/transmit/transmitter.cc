// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmitter.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "protocol/rdmap/segment_rules.h"
#include "protocol/wire/control_writes.h"

namespace uwarp {

namespace {

RdmapOpcode send_opcode(const SendWqe& wqe) {
  const bool solicited = wqe.flags & kSendSolicited;
  switch (wqe.opcode) {
    case SendOpcode::kSendWithInvalidate:
      return solicited ? RdmapOpcode::kSendSolicitedInvalidate : RdmapOpcode::kSendInvalidate;
    case SendOpcode::kSendWithImm:
      return RdmapOpcode::kSendImmediate;
    default:
      return solicited ? RdmapOpcode::kSendSolicited : RdmapOpcode::kSend;
  }
}

FaultMessage fault_message(SendOpcode opcode) {
  if (is_local(opcode)) return FaultMessage::kLocal;
  if (is_write(opcode)) return FaultMessage::kWrite;
  if (is_atomic(opcode)) return FaultMessage::kAtomic;
  return opcode == SendOpcode::kRead ? FaultMessage::kRead : FaultMessage::kSend;
}

}  // namespace

Transmitter::Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream,
                         QueuePairSlot& slot)
    : config_(config),
      queue_(queue),
      stream_(stream),
      counters_(slot.transmit),
      trace_(config.trace == nullptr
                 ? nullptr
                 : std::make_unique<TransmitTrace>(*config.trace, config.number.value)),
      completer_(config, queue, stream, batch_, slot.transmit, trace_.get()),
      direct_(config, queue, stream, completer_, slot.stream),
      token_state_(random_word()) {}

void Transmitter::restart() {
  assert(stream_.mine.transmit());
  batch_.begin_stream(stream_.config.crc);
  completer_.restart();
  direct_.restart();
  open_ = Open::kNothing;
  fault_.reset();
  send_msn_ = request_msn_ = atomic_msn_ = stream_.config.first_msn;
  request_id_ = 0;
  reported_delivered_ = stream_.config.first_msn.previous();
  gathered_end_ = 0;
  response_turn_ = opened_ = closed_ = flushed_ = switching_ = false;
  wire_told_ = !stream_.config.over_wire;
  peer_read_.reset();
  if (config_.script != nullptr) config_.script->restart();
  finished_.store(false, std::memory_order_release);
  // The opening (an RTR) is due even if nothing has been posted.
  idle_.store(false, std::memory_order_release);
}

// ---- What goes next

std::span<const iovec> Transmitter::next_iovecs() {
  assert(stream_.mine.transmit());
  if (!stream_.running.load(std::memory_order_acquire)) return {};
  completer_.retire();
  if (batch_.empty()) {
    if (!batch_.restart()) [[unlikely]]
      return {};
    direct_.begin_turn();
    fill();
    if (trace_ != nullptr && !batch_.empty()) [[unlikely]]
      trace_->built(queue_, batch_.pending(), batch_.fpdu_ends());
    // rdma_disconnect() goes by way of SQD, and what that holds back still goes out.
    const bool held = queue_.waiting() &&
                      (stream_.drain.paused() || (config_.script && config_.script->send_held()));
    dry_.store(batch_.empty() && !held && !unfinished() && !awaits_placing(),
               std::memory_order_release);
    note_progress();
    batch_.end();
  }
  return batch_.pending();
}

bool Transmitter::sent(size_t bytes) {
  assert(stream_.mine.transmit());
  completer_.note_sent(bytes);
  completer_.retire();
  if (!batch_.empty()) return true;
  counters_.posted.set(queue_.posted());
  note_progress();
  // A batch that went out full had no room for the Read that acknowledges it.
  const bool more = wanted() || acknowledgement_due(false);
  if (!more) dry_.store(true, std::memory_order_release);
  return more;
}

void Transmitter::note_progress() {
  const bool owed = !opened_ && stream_.config.rtr != StreamConfig::Rtr::kNone && !closed_;
  const bool quiet = batch_.empty() && open_ == Open::kNothing && !owed;
  idle_.store(quiet && !queue_.waiting() && stream_.inbound.empty(), std::memory_order_release);
  if (quiet && stream_.failed() && closed_) finished_.store(true, std::memory_order_release);
}

bool Transmitter::wanted() const {
  return !idle() || !stream_.inbound.empty() ||
         stream_.answer_due.load(std::memory_order_relaxed) ||
         stream_.nudge_due.load(std::memory_order_relaxed) ||
         stream_.control_writes_due.load(std::memory_order_relaxed) != 0 ||
         (stream_.failed() && !finished());
}

// All that an ordinary small message needs becomes one function; what is rare, or large by itself,
// is noinline. The calls were a tenth of the time that such a message takes.
[[gnu::flatten]] void Transmitter::fill() {
  completer_.acknowledging().begin_batch();
  for (bool going = true; going;) {
    assert(open_ == Open::kNothing || (!closed_ && !switching_));
    if (open_ >= Open::kRequest)  // messages are not mixed: RFC 5041-5.3-g
      going = batch_.has_space(left()) && append_segment();
    else if (open_ == Open::kAnswer)
      going = batch_.has_space(left()) && append_answer();
    else
      going = batch_.has_space() && begin_next();
  }
}

// What goes next, in order of precedence. Requests and answers alternate, so that neither side of
// the application starves the other. False: nothing may go now.
bool Transmitter::begin_next() {
  if (closed_ || switching_) return false;
  if (stream_.failed()) return emit_terminate();
  if (!opened_) {
    if (!emit_opening()) return begin_local();
    if (!batch_.has_space()) return false;
  }
  if (stream_.answer_due.load(std::memory_order_acquire)) {
    stream_.answer_due.store(false, std::memory_order_relaxed);
    append_empty_write(stream_.config.magic_stag, stream_.config.magic_offset);
    return true;
  }
  if (const uint32_t due = stream_.control_writes_due.load(std::memory_order_acquire);
      due != 0 && !stream_.lost.load(std::memory_order_relaxed)) [[unlikely]]
    return emit_control_write(due);
  const bool response = !stream_.inbound.empty();
  bool request = request_ready();
  if (config_.script != nullptr) [[unlikely]] {
    const AfterFaults after = apply_faults(response, request);
    if (after == AfterFaults::kNothing) return false;
    if (after == AfterFaults::kEmitted) return true;
    request = after == AfterFaults::kGo && request;
  }
  if (stream_.failed()) return true;
  if (acknowledgement_due(request)) {
    // The peer answers a Read only when it has placed all that came before, and checks no key of
    // one without bytes. RFC 5040-B-10.
    completer_.acknowledging().cover(queue_.started());
    emit_empty_read(queue_.started());
  } else if (response && (response_turn_ || !request || stream_.inbound.front()->wants_nothing())) {
    response_turn_ = false;
    begin_answer();
  } else if (request && config_.acknowledged && takes_receive(queue_.at(queue_.started()).opcode) &&
             delivery_due()) [[unlikely]] {
    emit_delivered_write();
  } else if (request) {
    response_turn_ = true;
    if (stream_.remote != nullptr && direct_.worth_trying(batch_.empty())) [[unlikely]] {
      const auto outcome = direct_.copy();
      if (outcome == DirectRequests::Outcome::kDone) return true;
      if (outcome != DirectRequests::Outcome::kSend) return response;  // answers go first
    }
    begin_request();
  } else if (fault_ && queue_.retired() == queue_.started()) {
    // From here on what goes only when nothing else may.
    fail_request(queue_.started(), *std::exchange(fault_, std::nullopt));
  } else if (config_.transport == Transport::kXrcReceive && delivery_due()) {
    // The Read that asks for it has not come yet, and the message is about to complete.
    emit_delivered_write();
  } else if (queue_.waiting() && must_ask_peer()) {
    emit_empty_read(0);
  } else if (stream_.nudge_due.load(std::memory_order_relaxed) && batch_.built_position() != 0) {
    // Only once the first FPDU has gone alone: a second one wakes a responder that missed it.
    stream_.nudge_due.store(false, std::memory_order_relaxed);
    append_empty_write(STag{1}, 0);
  } else {
    return false;
  }
  return true;
}

// Also in front of a Terminate: that the personas differ may be why the stream has failed.
bool Transmitter::emit_persona() {
  if (!stream_.take_control_write(StreamState::kPersonaDue)) return false;
  append_empty_write(PersonaWrite::kStag, PersonaWrite::offset(stream_.config.persona));
  return true;
}

// Behind that of the switch nothing may go before the carrier has been changed.
bool Transmitter::emit_control_write(uint32_t due) {
  const auto take = [&](StreamState::ControlWriteDue bit) {
    return (due & bit) != 0 && stream_.take_control_write(bit);
  };
  if (take(StreamState::kWaitDue)) {
    emit_delivered_write(true);
    return true;
  }
  if (emit_persona()) return true;
  CarrierWrite write{CarrierWrite::Kind::kSwitch};
  if (take(StreamState::kMailboxDue))
    write = {CarrierWrite::Kind::kMailbox, stream_.mailbox};
  else if (take(StreamState::kNumberDue))
    write = {CarrierWrite::Kind::kNumber, stream_.letter_number};
  else
    switching_ = take(StreamState::kSwitchDue);
  append_empty_write(CarrierWrite::kStag, write.offset());
  return true;
}

// Before a message is begun, where faults are asked for. What ends the stream waits until all that
// was begun before has completed.
Transmitter::AfterFaults Transmitter::apply_faults(bool response, bool request) {
  FaultScript& script = *config_.script;
  if (!wire_told_ && (request || response) &&
      stream_.peer_is_uwarp.load(std::memory_order_relaxed)) {
    wire_told_ = true;
    append_empty_write(WireWrite::kStag, WireWrite::kOffset);
    return AfterFaults::kEmitted;
  }
  if (script.send_held() || stream_.failed()) return AfterFaults::kNothing;
  bool corrupt = false;
  if (request) {
    const uint64_t position = queue_.started();
    const SendWqe& wqe = queue_.at(position);
    const FaultVerdict& verdict =
        script.judge_request(position, fault_message(wqe.opcode), wqe.length_bytes);
    if (script.send_held()) return AfterFaults::kNothing;
    corrupt = verdict.act == FaultVerdict::Act::kCorrupt;
    request = apply_fault_verdict(position, verdict);
    if (stream_.failed()) return AfterFaults::kEmitted;
  }
  const AfterFaults go = request ? AfterFaults::kGo : AfterFaults::kNoRequest;
  if (acknowledgement_due(request)) return go;
  if (!response || (request && !response_turn_ && !stream_.inbound.front()->wants_nothing())) {
    if (corrupt) batch_.spoil_next_crc();
    return go;
  }
  const ReadRequestHeader* read = stream_.inbound.front()->read();
  return read != nullptr && !script.admit_answer(read->size) ? AfterFaults::kNothing : go;
}

// False: the request is not begun now, or not at all.
bool Transmitter::apply_fault_verdict(uint64_t position, const FaultVerdict& verdict) {
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
      // As with real errors: those that the peer reports raise an event too.
      if (failure.status != WcStatus::kRemInvReqErr && failure.status != WcStatus::kRemAccessErr &&
          failure.status != WcStatus::kRemOpErr)
        event.reset();
      break;
    default:
      if (is_protection_error(verdict.code)) event = QpEvent::kAccessError;
      break;
  }
  stream_.fail(failure, event);
  return false;
}

bool Transmitter::must_acknowledge(bool request) const {
  const bool pressed = queue_.waiting() || stream_.drain.paused();
  return completer_.acknowledging().due(queue_.started(), stream_.outbound.size(), request,
                                        pressed);
}

// The initiator's first FPDU is the RTR; the responder waits for it. RFC 6581-9.2-d/f.
bool Transmitter::emit_opening() {
  const StreamConfig& config = stream_.config;
  if (stream_.must_be_silent()) return false;
  opened_ = true;
  if (config.rtr == StreamConfig::Rtr::kWrite)
    append_empty_write(config.rtr_stag, config.rtr_offset);
  else if (config.rtr == StreamConfig::Rtr::kRead)
    emit_empty_read(0);
  return true;
}

// Windows change without a word to the peer, so also while a responder must be silent: an
// application may wait for that before it gives the key away by other means.
bool Transmitter::begin_local() {
  if (!queue_.waiting() || !is_local(queue_.at(queue_.started()).opcode) || !request_ready())
    return false;
  begin_request();
  return true;
}

// Once and last of all, when what the failure leaves behind has been flushed. RFC 5040-5.4-h/j.
bool Transmitter::emit_terminate() {
  if (!flushed_) return false;
  const StreamFailure& failure = stream_.failure();
  if (failure.send_terminate && emit_persona()) return true;
  closed_ = true;
  if (!failure.send_terminate) return false;
  UntaggedHeader header;
  header.qn = QueueNumber::kTerminate;
  header.rsvd_ulp = make_rdmap_control(RdmapOpcode::kTerminate);
  const size_t size = failure.terminate.encoded_size();
  const auto encode = [&](std::byte* at) {
    header.encode(at);
    failure.terminate.encode(at + UntaggedHeader::kWireSize);
  };
  if (batch_.append(UntaggedHeader::kWireSize + size, encode) == Built::kNoSpace)
    return closed_ = false;
  counters_.count(MessageKind::kTerminate);
  return true;
}

// ---- Segments

// Another uwarp reads those that follow in one go (docs/wire.md).
uint8_t Transmitter::following(uint32_t payload) const {
  if (!stream_.announces_runs(payload)) return 0;
  return static_cast<uint8_t>(
      std::min<uint64_t>((left() - payload) / payload, DdpControl::kMostFollowing));
}

void Transmitter::append_empty_write(STag stag, TaggedOffset offset) {
  assert(batch_.has_space());
  append(TaggedHeader{.control = DdpControl::make(true, true),
                      .rsvd_ulp = make_rdmap_control(RdmapOpcode::kWrite),
                      .stag = stag,
                      .to = offset});
  counters_.count(MessageKind::kWrite);
}

// ---- Requests

bool Transmitter::request_ready() {
  if (!queue_.waiting() || stream_.drain.paused()) return false;
  if (stream_.lost.load(std::memory_order_acquire)) {
    if (is_unreliable(config_.transport)) return lose_requests();
    // The peer left without a word: to the application it does not answer any more.
    StreamFailure failure;
    failure.oldest_request = true;
    failure.status = WcStatus::kRetryExcErr;
    stream_.fail(failure, std::nullopt);
    return false;
  }
  if (stream_.silent.load(std::memory_order_acquire)) return false;
  const SendWqe& wqe = queue_.at(queue_.started());
  if ((wqe.flags & kSendFence) && !stream_.outbound.empty()) return false;  // RFC 5040-5.5-12c
  if (wqe.opcode == SendOpcode::kSendWithImm && !immediate_ready()) return false;
  // A change of keys takes effect after all that was posted before (verbs-level rule).
  if (is_local(wqe.opcode)) [[unlikely]]
    return queue_.retired() == queue_.started();
  if (!awaits_answer(wqe.opcode)) return true;
  // As many as the peer holds, and none with 0; others wait. RFC 5040-6.1-d/e/g/h, 5040-8.1.1-11.
  const uint16_t ord = stream_.ord.load(std::memory_order_acquire);
  if (ord == 0) {
    fail_in_turn(WcStatus::kLocQpOpErr);
    return false;
  }
  return stream_.outbound.size() < ord;
}

bool Transmitter::lose_requests() {
  if (stream_.drain.paused()) return false;
  fault_.reset();
  completer_.lose();
  // A thread that has posted meanwhile transmits, and loses its request itself.
  return queue_.waiting() && is_local(queue_.at(queue_.started()).opcode);
}

// The peer shows with its first message what it is, unless it cannot know us for a uwarp either.
bool Transmitter::immediate_ready() {
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;
  const bool shown = !stream_.peer_will_show();
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;  // by now
  if (shown) fail_in_turn(WcStatus::kLocQpOpErr);
  return false;
}

// A Send with Immediate waits for a message of the peer, and the peer for one of the application:
// a Read is answered all the same.
bool Transmitter::must_ask_peer() const {
  return !stream_.failed() && queue_.at(queue_.started()).opcode == SendOpcode::kSendWithImm &&
         !stream_.peer_is_uwarp.load(std::memory_order_acquire) &&
         !stream_.first_fpdu.load(std::memory_order_acquire) && stream_.outbound.empty() &&
         (stream_.config.ord != 0 || completer_.acknowledging().on()) && !stream_.drain.paused();
}

void Transmitter::begin_request() {
  direct_.forget_part();
  const uint64_t position = queue_.started();
  SendWqe& wqe = queue_.at(position);
  // InfiniBand adapters look at the place of an answer when the answer has come, so that faults
  // which the peer finds come first: then InboundAnswers does.
  const bool answer = awaits_answer(wqe.opcode);
  if (!(answer && config_.acknowledged) &&
      !queue_.gather(position, *config_.regions, *config_.domain,
                     answer ? uint32_t{kAccessLocalWrite} : 0, payload_))
    return fail_in_turn(WcStatus::kLocProtErr);
  if (is_atomic(wqe.opcode) && wqe.length_bytes != sizeof(uint64_t))
    return fail_in_turn(WcStatus::kLocLenErr);
  queue_.start_one();  // in the order of posting: RFC 5040-5.5-13, 5041-5.3-a, 7306-5.2.1-l
  if (Acknowledging& acknowledging = completer_.acknowledging(); acknowledging.on()) [[unlikely]] {
    if (answer || is_local(wqe.opcode))
      acknowledging.cover(position + 1);  // all before a local one has completed
    else if (queue_.signaled(wqe))
      acknowledging.owe();
  }
  if (is_local(wqe.opcode)) [[unlikely]]
    return change_window(wqe, position);
  if (answer) return emit_request(wqe, position);
  if (wqe.opcode != SendOpcode::kWrite) {
    qn_ = static_cast<QueueNumber>(wqe.msn);
    wqe.msn = send_msn_.value;  // of the Send, or of the Immediate Data behind the Write
    send_msn_ = send_msn_.next();
  }
  counters_.count(is_write(wqe.opcode) ? MessageKind::kWrite : MessageKind::kSend);
  open_ = Open::kRequest;
  message_bytes_ = wqe.length_bytes;
  offset_ = 0;
}

// A Read or atomic is one FPDU: emitted at once. One answer belongs to it. RFC 5040-5.2-a.
void Transmitter::emit_request(SendWqe& wqe, uint64_t position) {
  const uint64_t acknowledges = completer_.acknowledging().on() ? position + 1 : 0;
  if (wqe.opcode == SendOpcode::kRead) {
    emit_read(
        position, acknowledges,
        {.size = wqe.length_bytes, .source_stag = STag{wqe.rkey}, .source_to = wqe.remote_address});
  } else {
    AtomicRequestHeader header{.request_id = request_id_++,
                               .remote_stag = STag{wqe.rkey},
                               .remote_to = wqe.remote_address};
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
                                          .acknowledges = acknowledges});
    append_message(RdmapOpcode::kAtomicRequest, request_msn_, header);
  }
  wqe.end_position.store(batch_.built_position(), std::memory_order_relaxed);
}

// The sink token is fresh, never zero, and not guessable from earlier ones by chance (splitmix64 on
// a random start). Good only for the Read Response at the head of the outstanding Reads.
void Transmitter::emit_read(uint64_t request, uint64_t acknowledges, ReadRequestHeader header) {
  uint64_t z = token_state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  header.sink_stag = STag{std::max(static_cast<uint32_t>(z >> 32), 1u)};
  stream_.outbound.push(OutboundRequest{.request = request,
                                        .token = header.sink_stag.value,
                                        .length_bytes = header.size,
                                        .msn = request_msn_,
                                        .acknowledges = acknowledges});
  append_message(RdmapOpcode::kReadRequest, request_msn_, header);
}

// BIND_MW and LOCAL_INV. All earlier requests have completed, and peers' accesses through the
// window are over when the table returns.
void Transmitter::change_window(SendWqe& wqe, uint64_t position) {
  const RemoteAccessor self{config_.domain, stream_.identity, 0};
  bool done;
  if (wqe.opcode == SendOpcode::kBindWindow) {
    bound_windows_ = true;
    done = config_.regions->bind(wqe.binding(), self);
  } else {
    done = config_.regions->invalidate_window(STag{wqe.imm_or_invalidate}, self);
  }
  if (!done) return fail_request(position, WcStatus::kMwBindErr);
  wqe.end_position.store(batch_.sent_position(), std::memory_order_relaxed);
  completer_.retire();
}

// In each segment only TO or MO differ. RFC 5041-4.2-d/f, 5041-4.3-b/d/h/i, 5041-5.2-e/f/g.
bool Transmitter::append_segment() {
  const uint64_t position = queue_.started() - 1;
  SendWqe& wqe = queue_.at(position);
  if (open_ == Open::kImmediate) [[unlikely]]
    return append_immediate(wqe);
  Built built;
  const bool write = is_write(wqe.opcode);
  const Segment segment = next_segment(write ? TaggedHeader::kWireSize : UntaggedHeader::kWireSize);
  // Of a Write that is refused the receive fails that its Immediate Data would have taken.
  const bool marked =
      wqe.opcode == SendOpcode::kWriteWithImm && stream_.reports_deliveries(config_);
  const uint8_t control =
      make_rdmap_control(RdmapOpcode::kWrite) | RdmapControl::ImmediateBit::flag(marked);
  if (payload_.revoked()) [[unlikely]]
    built = Built::kFault;
  else if (write)
    built = append(TaggedHeader{.control = segment.control(true),
                                .rsvd_ulp = control,
                                .stag = STag{wqe.rkey},
                                .to = wqe.remote_address + offset_},
                   &payload_, offset_, segment.payload);
  else
    built = append_send(wqe, segment);
  if (built == Built::kNoSpace) return false;
  if (built == Built::kFault) [[unlikely]] {
    fail_request(position, WcStatus::kLocProtErr);
    open_ = Open::kNothing;
    return true;
  }
  offset_ += segment.payload;
  if (!segment.last) return true;
  // Nothing goes between a Write and its Immediate Data: the message stays open until both are out.
  // RFC 7306-6-a.
  if (wqe.opcode == SendOpcode::kWriteWithImm) [[unlikely]] {
    open_ = Open::kImmediate;
    return true;
  }
  open_ = Open::kNothing;
  wqe.end_position.store(batch_.built_position(), std::memory_order_relaxed);
  return true;
}

Transmitter::Built Transmitter::append_send(const SendWqe& wqe, const Segment& segment) {
  UntaggedHeader header;
  header.control = segment.control(false);
  header.rsvd_ulp = make_rdmap_control(send_opcode(wqe));
  if (wqe.opcode == SendOpcode::kSendWithInvalidate)
    header.invalidate_stag = STag{wqe.imm_or_invalidate};  // else 0: RFC 5040-4.1-k, 5040-5.3-n
  if (wqe.opcode == SendOpcode::kSendWithImm) {
    header.invalidate_stag = STag{__builtin_bswap32(wqe.imm_or_invalidate)};  // network order as is
    header.rsvd_ulp |= RdmapControl::SolicitedBit::flag((wqe.flags & kSendSolicited) != 0);
  }
  header.qn = qn_;
  header.msn = Msn{wqe.msn};
  header.mo = static_cast<uint32_t>(offset_);
  return append(header, &payload_, offset_, segment.payload);
}

// 8 bytes: verbs' 32 bits and zeros. RFC 7306-6.2-a, 7306-6.3-e, 7306-6.4-e/f.
bool Transmitter::append_immediate(SendWqe& wqe) {
  std::byte value[kImmediateSize]{};
  std::memcpy(value + (config_.immediate_in_last_half ? 4 : 0), &wqe.imm_or_invalidate, 4);
  BufferList data;
  data.append(value, sizeof value);
  const bool solicited = wqe.flags & kSendSolicited;
  UntaggedHeader header;
  header.rsvd_ulp =
      make_rdmap_control(solicited ? RdmapOpcode::kImmediateSolicited : RdmapOpcode::kImmediate);
  header.qn = qn_;
  header.msn = Msn{wqe.msn};
  static_assert(kImmediateSize <= TransmitBatch::kCopyBytes);  // so `value` may go
  if (append(header, &data, 0, sizeof value) == Built::kNoSpace) return false;
  counters_.count(MessageKind::kImmediate);
  open_ = Open::kNothing;
  wqe.end_position.store(batch_.built_position(), std::memory_order_relaxed);
  return true;
}

// The requests before it complete first, as on an adapter: nothing else starts meanwhile.
void Transmitter::fail_in_turn(WcStatus status) {
  fault_ = status;
  stream_.silent.store(true, std::memory_order_relaxed);
}

// An error of our own shows no header. RFC 5040-4.8-k, 5040-7.1-b, 7306-8.1-a.
void Transmitter::fail_request(uint64_t position, WcStatus status) {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.request = position;
  failure.status = status;
  failure.send_terminate = !stream_.must_be_silent();
  stream_.fail(failure, std::nullopt);
}

// ---- Answers

void Transmitter::emit_delivered_write(bool next_waits) {
  reported_delivered_ = Msn{stream_.delivered.load(std::memory_order_acquire)};
  append_empty_write(DeliveredWrite::kStag,
                     DeliveredWrite{reported_delivered_, next_waits}.offset());
}

// In the order of the requests. RFC 5040-5.2.1-h/k/o, 5040-5.5-12/17/20, 7306-5.4-8/9.
void Transmitter::begin_answer() {
  const InboundRequest& request = *stream_.inbound.front();
  offset_ = 0;
  if (request.error) return fail_answer(*request.error);
  if (request.atomic() != nullptr) return answer_atomic(request);
  counters_.count(MessageKind::kReadResponse);
  open_ = Open::kAnswer;
  message_bytes_ = request.read()->size;
}

// Executed when it is its turn among the answers owed, so in the order of the requests;
// begin_answer() is called only when an FPDU has room, so it is executed once. RFC 7306-5.2.1-c,
// 7306-5.4-3/5.
void Transmitter::answer_atomic(const InboundRequest& request) {
  const AtomicRequestHeader header = *request.atomic();
  RemoteRange cell;
  if (const auto error = check_atomic_request(
          header, *config_.regions, stream_.peer(config_.domain), cell, config_.acknowledged))
    return fail_answer(*error);
  // Answers to Reads before it may still lie in the application's memory. Without memory for a
  // copy they go out first, and it is executed for the next batch.
  if (!batch_.detach(cell.address, sizeof(uint64_t))) return;
  std::optional<uint64_t> original;
  if (const RangeGuard guard(cell, header.remote_stag); guard) {
    if (cell.memory == MemoryKind::kPlain) [[likely]]
      original = execute_atomic(cell.address, header);
    else
      original = execute_atomic_on_demand(cell.address, header, config_.regions->on_demand_atomics);
  }
  if (!original) return fail_answer(TerminateCode::kRdmapInvalidSTag);
  note_answered(request);
  append_message(
      RdmapOpcode::kAtomicResponse, atomic_msn_,
      AtomicResponseHeader{.request_id = header.request_id, .original_value = *original});
}

// The source is checked again for each segment: it may be deregistered while the answer is on its
// way. The sink's STag and TO go back as they came. RFC 5040-4.4-b/c/d.
bool Transmitter::append_answer() {
  const Segment segment = next_segment(TaggedHeader::kWireSize);
  const ReadRequestHeader& request = *stream_.inbound.front()->read();
  RemoteRange source;
  if (const auto error = check_read_request(request, offset_, *config_.regions,
                                            stream_.peer(config_.domain), source)) {
    fail_answer(*error);
    return true;
  }
  const TaggedHeader header{.control = segment.control(true),
                            .rsvd_ulp = make_rdmap_control(RdmapOpcode::kReadResponse),
                            .stag = request.sink_stag,
                            .to = request.sink_to + offset_};
  BufferList payload;
  payload.append(source.address, segment.payload, source.region, source.memory);
  Built built = Built::kFault;
  if (!source.through_window()) [[likely]]
    built = append(header, &payload, 0, segment.payload);
  else if (const RangeGuard guard(source, request.source_stag); guard)
    // Copied while the binding holds: unbinding then waits for no send call.
    built = append(header, &payload, 0, segment.payload, true);
  if (built == Built::kNoSpace) return false;
  if (built == Built::kFault) {
    fail_answer(TerminateCode::kRdmapInvalidSTag);
    return true;
  }
  if (segment.payload > TransmitBatch::kCopyBytes) gathered_end_ = batch_.built_position();
  offset_ += segment.payload;
  if (segment.last) {
    note_answered(*stream_.inbound.front());
    open_ = Open::kNothing;
  }
  return true;
}

// Freed before the bytes go out: the peer may ask again once it has them. RFC 5040-5.2.2-c.
void Transmitter::note_answered(const InboundRequest& request) {
  if (request.delivered.after(reported_delivered_)) reported_delivered_ = request.delivered;
  stream_.inbound.pop();
}

// A Read comes back as it was, or as what is left of it; of an atomic the DDP header only.
// RFC 5040-4.8-m/n/q, 5040-5.2.1-e, 5040-7.1-d, 7306-5.1.1-b/d.
void Transmitter::fail_answer(TerminateCode code) {
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
  open_ = Open::kNothing;
}

// ---- The end

// A request's gather list or an answer's source is not readable memory any more. The kernel does
// not say which: where it may have been an answer, no request is blamed, and an event tells.
void Transmitter::fault() {
  assert(stream_.mine.transmit());
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  const uint64_t gone = batch_.sent_position();
  const auto goes_from_its_place = [&](const SendWqe& wqe) {
    return !awaits_answer(wqe.opcode) && wqe.length_bytes > TransmitBatch::kCopyBytes &&
           wqe.end_position.load(std::memory_order_relaxed) > gone;
  };
  if (gathered_end_ <= gone) {  // no answer does
    uint64_t at = queue_.retired();
    while (at != queue_.started() && !goes_from_its_place(queue_.at(at))) ++at;
    if (at != queue_.started()) failure.request = at;
  }
  const bool blamed = failure.request != StreamFailure::kNoRequest;
  if (blamed) failure.status = WcStatus::kLocProtErr;
  stream_.fail(failure, blamed ? std::nullopt : std::optional(QpEvent::kFatal));
  drop_batch();
  open_ = Open::kNothing;
}

// What is built may not go out: with a frame that is cut the stream cannot go on, nor can a
// Terminate follow.
void Transmitter::drop_batch() {
  withdraw();
  batch_.drop();
  closed_ = true;
}

void Transmitter::withdraw() {
  if (stream_.lent != nullptr) [[unlikely]]
    stream_.lent->withdraw();
}

void Transmitter::note_peer_end(uint64_t unread) {
  assert(stream_.mine.transmit());
  if (peer_read_) return;
  peer_read_ = completer_.read_position();
  if (!peer_read_) peer_read_ = batch_.sent_position() - std::min(unread, batch_.sent_position());
}

void Transmitter::settle(bool peer_done, bool cut) {
  assert(stream_.mine.transmit());
  if (peer_done) completer_.acknowledge_before(peer_read_);
  if (cut) {
    withdraw();
    batch_.drop();
  }
  completer_.retire();
}

void Transmitter::lose() {
  assert(stream_.mine.transmit());
  withdraw();
  stream_.control_writes_due.store(0, std::memory_order_relaxed);
  switching_ = false;
  batch_.drop();
  open_ = Open::kNothing;
  while (lose_requests()) begin_request();
  note_progress();
}

bool Transmitter::flush() {
  assert(stream_.mine.transmit());
  completer_.retire();
  // What is built still goes out ahead of our own Terminate; otherwise only the FPDU that is half
  // sent is finished: RFC 5040-5.4-i, 5040-6.2.1-e. From copies: the application has its buffers.
  withdraw();
  const bool whole = stream_.failed() && stream_.failure().send_terminate;
  if (!(whole ? batch_.detach(nullptr, ~uint64_t{0}) : batch_.cut())) drop_batch();
  open_ = Open::kNothing;
  flushed_ = true;
  const bool reported = completer_.flush();
  note_progress();
  return reported;
}

void Transmitter::reset() {
  assert(stream_.mine.transmit());
  withdraw();
  queue_.reset();
  completer_.reset();
  batch_.drop();
  open_ = Open::kNothing;
  closed_ = true;
  idle_.store(true, std::memory_order_release);
  finished_.store(false, std::memory_order_release);
}

// What lies in the region and is on its way goes out of a copy. Without memory for one the stream
// ends: nothing may refer to the region any more.
void Transmitter::quiesce(const MemoryRegion& region, const RegionShape& shape) {
  assert(stream_.mine.transmit());
  const auto* const base = static_cast<const std::byte*>(shape.address);
  if (batch_.refers_to(base, shape.length_bytes)) withdraw();
  if (!batch_.detach(base, shape.length_bytes)) fault();
  payload_.revoke(region);
}

}  // namespace uwarp
