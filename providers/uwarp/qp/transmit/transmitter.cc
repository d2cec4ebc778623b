// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmitter.h"

#include <algorithm>

#include "protocol/wire/carrier_mark.h"
#include "qp/terminate_status.h"

namespace uwarp {
namespace {

bool is_remote(WcStatus status) {
  return status == WcStatus::kRemInvReqErr || status == WcStatus::kRemAccessErr ||
         status == WcStatus::kRemOpErr;
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
                 : std::make_unique<TransmitTrace>(*config.trace, config.number.value)),
      writer_(stream, counters),
      completer_(config, queue, stream, writer_, counters, trace_.get()),
      requester_(config, queue, stream, writer_, completer_, counters),
      responder_(config, stream, writer_, counters) {}

void Transmitter::restart() {
  writer_.restart();
  completer_.restart();
  requester_.restart();
  responder_.restart();
  response_turn_ = opened_ = closed_ = flushed_ = switching_ = false;
  lent_from_.reset();
  peer_read_.reset();
  if (config_.script != nullptr) config_.script->restart();
  finished_.store(false, std::memory_order_release);
  // The opening (an RTR) is due even if nothing has been posted.
  idle_.store(false, std::memory_order_release);
}

std::span<const iovec> Transmitter::window() {
  if (!stream_.running.load(std::memory_order_acquire)) return {};
  completer_.retire();
  if (batch_.empty()) {
    if (!batch_.restart()) [[unlikely]]
      return {};
    trace_ == nullptr ? fill() : fill_traced();
    // rdma_disconnect() goes by way of SQD, and what that holds back still goes out.
    const bool held = queue_.waiting() &&
                      (stream_.drain.paused() || (config_.script && config_.script->send_held()));
    dry_.store(batch_.empty() && !held && !batch_.starved(), std::memory_order_release);
    note_progress();
    batch_.end();
  }
  return batch_.pending();
}

bool Transmitter::sent(size_t bytes) {
  completer_.sent(bytes);
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
  const bool quiet = batch_.empty() && !requester_.open() && !responder_.open() && !owed;
  idle_.store(quiet && !queue_.waiting() && stream_.inbound.empty(), std::memory_order_release);
  if (quiet && stream_.failed() && closed_) finished_.store(true, std::memory_order_release);
}

bool Transmitter::wanted() const {
  return !idle() || !stream_.inbound.empty() ||
         stream_.answer_due.load(std::memory_order_relaxed) ||
         stream_.nudge_due.load(std::memory_order_relaxed) ||
         stream_.marks_due.load(std::memory_order_relaxed) != 0 ||
         (stream_.failed() && !finished());
}

void Transmitter::fill_traced() {
  fill();
  if (!batch_.empty()) trace_->built(queue_, batch_.pending(), batch_.fpdu_ends());
}

// All that an ordinary small message needs becomes one function; what is rare, or large by itself,
// is noinline. The calls were a tenth of the time that such a message takes.
[[gnu::flatten]] void Transmitter::fill() {
  completer_.acknowledging().begin_batch();
  while (!closed_ && !switching_ && (batch_.has_room() || (ends_soon() && batch_.has_place()))) {
    const bool open = requester_.open() || responder_.open();
    if (!(open ? append_segment() : begin_next())) return;
  }
}

// A message of 64 KiB has a second segment of some twenty bytes.
bool Transmitter::ends_soon() const {
  return (requester_.open() && requester_.left() <= TransmitBatch::kCopyBytes) ||
         (responder_.open() && responder_.left() <= TransmitBatch::kCopyBytes);
}

bool Transmitter::append_segment() {
  return requester_.open() ? requester_.append_segment() : responder_.append_segment();
}

// What goes next, in order of precedence. Requests and answers alternate, so that neither side of
// the application starves the other.
bool Transmitter::begin_next() {
  if (stream_.failed()) return emit_terminate();
  if (!opened_) {
    if (!emit_opening()) return begin_local();
    if (!batch_.has_room()) return false;
  }
  if (stream_.answer_due.load(std::memory_order_acquire)) {
    stream_.answer_due.store(false, std::memory_order_relaxed);
    writer_.append_empty_write(stream_.config.magic_stag, stream_.config.magic_offset);
    return true;
  }
  if (const uint32_t due = stream_.marks_due.load(std::memory_order_acquire);
      due != 0 && !stream_.lost.load(std::memory_order_relaxed)) [[unlikely]]
    return emit_mark(due);
  const bool response = !stream_.inbound.empty();
  bool request = requester_.ready();
  if (config_.script != nullptr) [[unlikely]] {
    const AfterFaults after = apply_faults(response, request);
    if (after == AfterFaults::kNothing) return false;
    if (after == AfterFaults::kEmitted) return true;
    request = after == AfterFaults::kGo && request;
  }
  if (stream_.failed()) return true;
  if (acknowledgement_due(request)) {
    emit_acknowledgement();
  } else if (response && (response_turn_ || !request || stream_.inbound.front()->wants_nothing())) {
    response_turn_ = false;
    responder_.begin();
  } else if (!request) {
    return emit_when_idle();
  } else if (takes_receive(queue_.at(queue_.started()).opcode) && responder_.delivery_due())
      [[unlikely]] {
    responder_.emit_delivered_mark();
  } else {
    response_turn_ = true;
    requester_.begin();
  }
  return true;
}

// Behind that of the switch nothing may go before the carrier has been changed.
bool Transmitter::emit_mark(uint32_t due) {
  const auto take = [&](StreamState::MarkDue bit) {
    if ((due & bit) == 0) return false;
    stream_.marks_due.fetch_and(~uint32_t{bit}, std::memory_order_relaxed);
    return true;
  };
  if (take(StreamState::kWaitDue)) {
    responder_.emit_delivered_mark(true);
    return true;
  }
  CarrierMark mark{CarrierMark::Kind::kSwitch};
  if (take(StreamState::kMailboxDue))
    mark = {CarrierMark::Kind::kMailbox, stream_.mailbox};
  else if (take(StreamState::kNumberDue))
    mark = {CarrierMark::Kind::kNumber, stream_.letter_number};
  else
    switching_ = take(StreamState::kSwitchDue);
  writer_.append_empty_write(CarrierMark::kStag, mark.offset());
  return true;
}

// What goes only when nothing else may.
bool Transmitter::emit_when_idle() {
  if (requester_.fail_if_due()) return true;
  // The Read that asks for it has not come yet, and the message is about to complete.
  if (config_.transport == Transport::kXrcReceive && responder_.delivery_due()) {
    responder_.emit_delivered_mark();
    return true;
  }
  if (requester_.must_ask_peer()) {
    requester_.emit_empty_read(0);
    return true;
  }
  // Only once the first FPDU has gone alone: a second one wakes a responder that missed it.
  if (!stream_.nudge_due.load(std::memory_order_relaxed) || writer_.built_position() == 0)
    return false;
  stream_.nudge_due.store(false, std::memory_order_relaxed);
  writer_.append_empty_write(STag{1}, 0);
  return true;
}

// Before a message is begun, where faults are asked for. What ends the stream waits until all that
// was begun before has completed.
Transmitter::AfterFaults Transmitter::apply_faults(bool response, bool request) {
  FaultScript& script = *config_.script;
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
  const Acknowledging& acknowledging = completer_.acknowledging();
  if (!acknowledging.on()) [[likely]]
    return false;
  const bool pressed = queue_.waiting() || stream_.drain.paused();
  return acknowledging.due(queue_.started(), stream_.outbound.size(), request, pressed);
}

// The peer answers a Read only when it has placed all that came before (RFC 5040 5.5), and checks
// no key of one without bytes.
void Transmitter::emit_acknowledgement() {
  completer_.acknowledging().cover(queue_.started());
  requester_.emit_empty_read(queue_.started());
}

// RFC 6581 9.2: the initiator's first FPDU is the RTR; RFC 5044 7.1.2: the responder waits for it.
bool Transmitter::emit_opening() {
  const StreamConfig& config = stream_.config;
  if (stream_.must_be_silent()) return false;
  opened_ = true;
  if (config.rtr == StreamConfig::Rtr::kWrite) {
    writer_.append_empty_write(config.rtr_stag, config.rtr_offset);
  } else if (config.rtr == StreamConfig::Rtr::kRead) {
    requester_.emit_empty_read(0);
  }
  return true;
}

// Windows change without a word to the peer, so also while a responder must be silent: an
// application may wait for that before it gives the key away by other means.
bool Transmitter::begin_local() {
  if (!queue_.waiting() || !is_local(queue_.at(queue_.started()).opcode) || !requester_.ready())
    return false;
  requester_.begin();
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

void Transmitter::drop_messages() {
  requester_.drop_message();
  responder_.drop_message();
}

// A request's gather list or an answer's source is not readable memory any more. The kernel does
// not say which: where it may have been an answer, no request is blamed, and an event tells.
void Transmitter::fault() {
  StreamFailure failure = StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic);
  if (!responder_.gathers()) failure.request = requester_.first_gathered();
  const bool blamed = failure.request != StreamFailure::kNoRequest;
  if (blamed) failure.status = WcStatus::kLocProtErr;
  stream_.fail(failure, blamed ? std::nullopt : std::optional(QpEvent::kFatal));
  drop_batch();
  drop_messages();
}

// What is built may not go out: with a frame that is cut the stream cannot go on, nor can a
// Terminate follow.
void Transmitter::drop_batch() {
  withdraw();
  writer_.drop();
  closed_ = true;
}

void Transmitter::withdraw() {
  if (stream_.lent != nullptr) [[unlikely]]
    stream_.lent->withdraw();
}

void Transmitter::note_peer_end(uint64_t unread) {
  if (peer_read_) return;
  if (lent_from_ && stream_.lent != nullptr) {
    completer_.take_given_back();
    peer_read_ = *lent_from_ + stream_.lent->read_bytes();
  } else {
    peer_read_ = writer_.sent_position() - std::min(unread, writer_.sent_position());
  }
}

void Transmitter::settle(bool peer_done, bool cut) {
  if (peer_done) completer_.acknowledge_before(peer_read_);
  if (cut) {
    withdraw();
    writer_.drop();
  }
  completer_.retire();
}

void Transmitter::lose() {
  withdraw();
  stream_.marks_due.store(0, std::memory_order_relaxed);
  switching_ = false;
  writer_.drop();
  drop_messages();
  while (requester_.lose()) requester_.begin();
  note_progress();
}

bool Transmitter::flush() {
  completer_.retire();
  // What is built still goes out ahead of our own Terminate; otherwise only the FPDU that is half
  // sent is finished. Either way from memory of our own: the buffers are the application's again.
  withdraw();
  const bool whole = stream_.failed() && stream_.failure().send_terminate;
  if (!(whole ? batch_.detach(nullptr, ~uint64_t{0}) : batch_.cut())) drop_batch();
  drop_messages();
  flushed_ = true;
  const bool told = completer_.flush();
  note_progress();
  return told;
}

void Transmitter::reset() {
  withdraw();
  queue_.reset();
  completer_.reset();
  writer_.drop();
  drop_messages();
  closed_ = true;
  idle_.store(true, std::memory_order_release);
  finished_.store(false, std::memory_order_release);
}

// What lies in the region and is on its way goes out of a copy. Without memory for one the stream
// ends: nothing may refer to the region any more.
void Transmitter::quiesce(const MemoryRegion& region, const RegionShape& shape) {
  const auto* const base = static_cast<const std::byte*>(shape.address);
  if (batch_.refers_to(base, shape.length_bytes)) withdraw();
  if (!batch_.detach(base, shape.length_bytes)) fault();
  requester_.revoke(region);
}

}  // namespace uwarp
