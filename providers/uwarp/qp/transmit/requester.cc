// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/requester.h"

#include <cstring>

#include "base/random.h"

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

}  // namespace

Requester::Requester(const QpConfig& config, SendQueue& queue, StreamState& stream,
                     FpduWriter& writer, SendCompleter& completer, TransmitCounters& counters)
    : config_(config),
      queue_(queue),
      stream_(stream),
      writer_(writer),
      completer_(completer),
      counters_(counters),
      token_state_(random_word()) {}

void Requester::restart() {
  drop_message();
  fault_.reset();
  send_msn_ = request_msn_ = stream_.config.first_msn;
  request_id_ = 0;
}

bool Requester::ready() {
  if (!queue_.waiting() || stream_.drain.paused()) return false;
  if (stream_.lost.load(std::memory_order_acquire)) {
    if (is_unreliable(config_.transport)) return lose();
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
    fail_in_turn(WcStatus::kLocQpOpErr);
    return false;
  }
  return stream_.outbound.size() < ord;
}

bool Requester::lose() {
  if (stream_.drain.paused()) return false;
  fault_.reset();
  completer_.lose();
  // A thread that has posted meanwhile transmits, and loses its request itself.
  return queue_.waiting() && is_local(queue_.at(queue_.started()).opcode);
}

// The peer shows with its first message what it is, unless it cannot know us for a uwarp either.
bool Requester::immediate_ready() {
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;
  const bool shown = !stream_.peer_will_show();
  if (stream_.peer_is_uwarp.load(std::memory_order_acquire)) return true;  // by now
  if (shown) fail_in_turn(WcStatus::kLocQpOpErr);
  return false;
}

// A Send with Immediate waits for a message of the peer, and the peer for one of the application:
// a Read is answered all the same.
bool Requester::must_ask_peer() const {
  if (!queue_.waiting() || stream_.failed()) [[likely]]
    return false;
  return queue_.at(queue_.started()).opcode == SendOpcode::kSendWithImm &&
         !stream_.peer_is_uwarp.load(std::memory_order_acquire) &&
         !stream_.first_fpdu.load(std::memory_order_acquire) && stream_.outbound.empty() &&
         (stream_.config.ord != 0 || completer_.acknowledging().on()) && !stream_.drain.paused();
}

// InfiniBand adapters look at the place of an answer when the answer has come, so that faults which
// the peer finds come first: then InboundAnswers does.
inline bool Requester::gather(const SendWqe& wqe, uint64_t position) {
  const bool answer = awaits_answer(wqe.opcode);
  if (answer && config_.acknowledged) return true;
  return queue_.gather(position, *config_.regions, *config_.domain,
                       answer ? uint32_t{kAccessLocalWrite} : 0, payload_);
}

void Requester::begin() {
  const uint64_t position = queue_.started();
  SendWqe& wqe = queue_.at(position);
  if (!gather(wqe, position)) return fail_in_turn(WcStatus::kLocProtErr);
  if (is_atomic(wqe.opcode) && wqe.length_bytes != sizeof(uint64_t))
    return fail_in_turn(WcStatus::kLocLenErr);
  queue_.start_one();
  if (Acknowledging& acknowledging = completer_.acknowledging(); acknowledging.on()) [[unlikely]] {
    if (awaits_answer(wqe.opcode) || is_local(wqe.opcode))
      acknowledging.cover(position + 1);  // all before a local one has completed
    else if (queue_.signaled(wqe))
      acknowledging.owe();
  }
  if (is_local(wqe.opcode)) [[unlikely]]
    return change_window(wqe, position);
  if (awaits_answer(wqe.opcode)) {
    wqe.opcode == SendOpcode::kRead ? emit_read(wqe, position) : emit_atomic(wqe, position);
    wqe.end_position.store(writer_.built_position(), std::memory_order_relaxed);
    return;
  }
  if (wqe.opcode != SendOpcode::kWrite) {
    qn_ = static_cast<QueueNumber>(wqe.msn);
    wqe.msn = send_msn_.value;  // of the Send, or of the Immediate Data behind the Write
    send_msn_ = send_msn_.next();
  }
  counters_.count(is_write(wqe.opcode) ? MessageKind::kWrite : MessageKind::kSend);
  open_ = true;
  message_bytes_ = wqe.length_bytes;
  offset_ = 0;
}

// Requests are one FPDU: emitted at once. RFC 5040 5.2.1, RFC 7306 5.2.1.
void Requester::emit_read(const SendWqe& wqe, uint64_t position) {
  const STag token = draw_token();
  stream_.outbound.push(
      OutboundRequest{.request = position,
                      .token = token.value,
                      .length_bytes = wqe.length_bytes,
                      .msn = request_msn_,
                      .acknowledges = completer_.acknowledging().on() ? position + 1 : 0});
  writer_.append_message(RdmapOpcode::kReadRequest, request_msn_,
                         ReadRequestHeader{.sink_stag = token,
                                           .size = wqe.length_bytes,
                                           .source_stag = STag{wqe.rkey},
                                           .source_to = wqe.remote_address});
}

void Requester::emit_empty_read(uint64_t acknowledges) {
  const STag token = draw_token();
  stream_.outbound.push(
      OutboundRequest{.token = token.value, .msn = request_msn_, .acknowledges = acknowledges});
  writer_.append_message(RdmapOpcode::kReadRequest, request_msn_,
                         ReadRequestHeader{.sink_stag = token, .source_stag = STag{1}});
}

void Requester::emit_atomic(const SendWqe& wqe, uint64_t position) {
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
  stream_.outbound.push(
      OutboundRequest{.request = position,
                      .token = header.request_id,
                      .length_bytes = wqe.length_bytes,
                      .msn = request_msn_,
                      .atomic = true,
                      .acknowledges = completer_.acknowledging().on() ? position + 1 : 0});
  writer_.append_message(RdmapOpcode::kAtomicRequest, request_msn_, header);
}

// BIND_MW and LOCAL_INV. All earlier requests have completed, and peers' accesses through the
// window are over when the table returns.
void Requester::change_window(SendWqe& wqe, uint64_t position) {
  const RemoteAccessor self{config_.domain, stream_.identity, 0};
  bool done;
  if (wqe.opcode == SendOpcode::kBindWindow) {
    bound_windows_ = true;
    done = config_.regions->bind(wqe.binding(), self);
  } else {
    done = config_.regions->invalidate_window(STag{wqe.imm_or_invalidate}, self);
  }
  if (!done) return fail(position, WcStatus::kMwBindErr);
  wqe.end_position.store(writer_.sent_position(), std::memory_order_relaxed);
  completer_.retire();
}

bool Requester::append_segment() {
  using Built = FpduWriter::Built;
  const uint64_t position = queue_.started() - 1;
  SendWqe& wqe = queue_.at(position);
  if (immediate_due_) [[unlikely]]
    return append_immediate(wqe);
  Built built = Built::kFault;
  const bool write = is_write(wqe.opcode);
  const FpduWriter::Segment segment =
      writer_.next_segment(left(), write ? TaggedHeader::kWireSize : UntaggedHeader::kWireSize);
  if (!payload_.revoked()) [[likely]]
    built = write ? append_write(wqe, segment) : append_send(wqe, segment);
  if (built == Built::kNoRoom) return false;
  if (built == Built::kFault) [[unlikely]] {
    fail(position, WcStatus::kLocProtErr);
    open_ = false;
    return true;
  }
  offset_ += segment.payload;
  if (!segment.last) return true;
  if (wqe.opcode == SendOpcode::kWriteWithImm)
    immediate_due_ = true;
  else
    end(wqe);
  return true;
}

// If it is refused, the receive that its Immediate Data would have taken fails there.
uint8_t Requester::marked_write_control() const {
  return make_rdmap_control(RdmapOpcode::kWrite) |
         RdmapControl::ImmediateBit::flag(stream_.marks_deliveries(config_));
}

FpduWriter::Built Requester::append_write(const SendWqe& wqe, const FpduWriter::Segment& segment) {
  uint8_t control = make_rdmap_control(RdmapOpcode::kWrite);
  if (wqe.opcode == SendOpcode::kWriteWithImm) [[unlikely]]
    control = marked_write_control();
  return writer_.append(TaggedHeader{.control = segment.control(true),
                                     .rsvd_ulp = control,
                                     .stag = STag{wqe.rkey},
                                     .to = wqe.remote_address + offset_},
                        &payload_, offset_, segment.payload);
}

FpduWriter::Built Requester::append_send(const SendWqe& wqe, const FpduWriter::Segment& segment) {
  UntaggedHeader header;
  header.control = segment.control(false);
  header.rsvd_ulp = make_rdmap_control(send_opcode(wqe));
  if (wqe.opcode == SendOpcode::kSendWithInvalidate)
    header.invalidate_stag = STag{wqe.imm_or_invalidate};
  if (wqe.opcode == SendOpcode::kSendWithImm) {
    header.invalidate_stag = STag{__builtin_bswap32(wqe.imm_or_invalidate)};  // network order as is
    header.rsvd_ulp |= RdmapControl::SolicitedBit::flag((wqe.flags & kSendSolicited) != 0);
  }
  header.qn = qn_;
  header.msn = Msn{wqe.msn};
  header.mo = static_cast<uint32_t>(offset_);
  return writer_.append(header, &payload_, offset_, segment.payload);
}

// Nothing goes between a Write and its Immediate Data: the message stays open until both are out.
// RFC 7306 6.
bool Requester::append_immediate(SendWqe& wqe) {
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
  if (writer_.append(header, &data, 0, sizeof value) == FpduWriter::Built::kNoRoom) return false;
  counters_.count(MessageKind::kImmediate);
  immediate_due_ = false;
  end(wqe);
  return true;
}

void Requester::end(SendWqe& wqe) {
  wqe.end_position.store(writer_.built_position(), std::memory_order_relaxed);
  open_ = false;
}

// The requests before it complete first, as on an adapter: nothing else starts meanwhile.
void Requester::fail_in_turn(WcStatus status) {
  fault_ = status;
  stream_.silent.store(true, std::memory_order_relaxed);
}

bool Requester::fail_if_due() {
  if (!fault_ || queue_.retired() != queue_.started()) [[likely]]
    return false;
  fail(queue_.started(), *fault_);
  fault_.reset();
  return true;
}

void Requester::fail(uint64_t position, WcStatus status) {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  failure.request = position;
  failure.status = status;
  failure.send_terminate = !stream_.must_be_silent();
  stream_.fail(failure, std::nullopt);
}

uint64_t Requester::first_gathered() const {
  for (uint64_t i = queue_.retired(); i != queue_.started(); ++i) {
    const SendWqe& wqe = queue_.at(i);
    if (!awaits_answer(wqe.opcode) && wqe.length_bytes > TransmitBatch::kCopyBytes &&
        wqe.end_position.load(std::memory_order_relaxed) > writer_.sent_position())
      return i;
  }
  return StreamFailure::kNoRequest;
}

// Sink tokens: fresh, never zero, not guessable from earlier ones by chance (splitmix64 on a random
// start). Good only for the Read Response at the head of the outstanding Reads.
STag Requester::draw_token() {
  uint64_t z = token_state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  const auto token = static_cast<uint32_t>(z >> 32);
  return STag{token == 0 ? 1 : token};
}

}  // namespace uwarp
