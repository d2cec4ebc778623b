// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/inbound_messages.h"

#include <cstring>

#include "qp/local_memory.h"

namespace uwarp {
namespace {

bool is_immediate(RdmapOpcode opcode) {
  return opcode == RdmapOpcode::kImmediate || opcode == RdmapOpcode::kImmediateSolicited;
}

// RFC 5040 4.8: what is wrong with the end itself, or below DDP, shows no header.
bool names_message(TerminateCode code) {
  return layer(code) <= 1 && etype(code) != 0 && !is_version_error(code);
}

}  // namespace

InboundMessages::InboundMessages(InboundStream& in, ReceiveQueue& receives, InboundWrites& writes,
                                 CompletionOrder& order)
    : in_(in),
      receives_(receives),
      place_in_line_(receives, in.config.receive_waiter),
      writes_(writes),
      order_(order) {}

void InboundMessages::reset() {
  place_in_line_.leave();
  taken_ = false;
}

bool InboundMessages::open(const UntaggedHeader& header) {
  InboundSegment& segment = in_.segment;
  if (const auto error = sequence_.check_msn(header)) {
    in_.fail(*error, QpEvent::kFatal, true);
    return false;
  }
  if (!sequence_.open()) {
    if (!take_receive(header)) return false;
  } else if (segment.opcode != opcode_) {
    in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return false;
  }
  if (const auto error =
          sequence_.check_range(header.mo, segment.payload_left, sink_.length_bytes())) {
    fail_range(*error);
    return false;
  }
  segment.payload_offset = header.mo;
  invalidate_ = header.invalidate_stag.value;  // means something for some opcodes only
  return true;
}

bool InboundMessages::take_receive(const UntaggedHeader& header) {
  if (in_.config.script != nullptr && !apply_faults(header)) [[unlikely]]
    return false;
  if (in_.config.sink != nullptr) [[unlikely]]
    return take_room();
  if (!place_in_line_.take(receive_)) return hold();
  opcode_ = in_.segment.opcode;
  taken_ = true;
  if (in_.config.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveTaken, WcStatus::kSuccess);
  if (!resolve_sink()) {
    fail_receive();
    return false;
  }
  sequence_.begin();
  return true;
}

bool InboundMessages::take_room() {
  opcode_ = in_.segment.opcode;
  if (opcode_ != RdmapOpcode::kSend) {
    in_.fail(TerminateCode::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true);
    return false;
  }
  const std::span<std::byte> room = in_.config.sink->room();
  if (room.empty()) return hold();
  sink_.clear();
  sink_.append(room.data(), static_cast<uint32_t>(room.size()));
  sequence_.begin();
  return true;
}

bool InboundMessages::hold() {
  place_in_line_.hold();
  in_.counters.held.add(1);
  in_.outcome |= kRxHeld;
  return false;
}

// Before a message takes its receive, where faults are asked for. False: it does not, or not now.
bool InboundMessages::apply_faults(const UntaggedHeader& header) {
  FaultScript& script = *in_.config.script;
  const FaultVerdict& verdict = script.judge_arrival(header.msn.value);
  if (script.receive_held()) return hold();
  switch (verdict.act) {
    case FaultVerdict::Act::kReset:
      script.want_reset();
      return hold();
    case FaultVerdict::Act::kNoReceive:
      in_.fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
      return false;
    case FaultVerdict::Act::kTerminate:
      in_.fail(verdict.code, segment_event(verdict.code), names_message(verdict.code));
      return false;
    case FaultVerdict::Act::kFail:
      if (!place_in_line_.take(receive_)) return hold();
      taken_ = true;
      opcode_ = in_.segment.opcode;
      in_.segment.payload_offset = 0;
      fail_receive(static_cast<WcStatus>(verdict.status));
      return false;
    default:
      return true;
  }
}

// False: the receive names memory that it may not.
bool InboundMessages::resolve_sink() {
  sink_.clear();
  if (is_immediate(opcode_)) {
    // To the completion only: the memory of the receive is not touched (rule A23).
    sink_.append(immediate_, sizeof immediate_);
    return true;
  }
  for (const Sge& sge : std::span(receive_.sges, receive_.sge_count))
    if (!append_local(sink_, sge, *in_.config.regions, *in_.config.domain, kAccessLocalWrite))
      return false;
  return true;
}

void InboundMessages::finish_segment() {
  sequence_.placed(in_.segment.ulpdu_length - UntaggedHeader::kWireSize);
  if (in_.segment.last) finish();
}

void InboundMessages::finish() {
  sequence_.finish();
  if (in_.config.sink != nullptr) [[unlikely]]
    return in_.config.sink->arrived(in_.segment.payload_offset);
  WorkCompletion done = completion(WcStatus::kSuccess, 0);
  bool solicited = traits(opcode_).solicited;
  if (opcode_ != RdmapOpcode::kSend && !describe(done, solicited)) return;
  writes_.forget_length();
  if (order_.complete_sent() == AfterTurn::kLookAgain) in_.outcome |= kRxTransmitWanted;
  if (in_.config.acknowledged) [[unlikely]]
    in_.stream.delivered.store(delivered().value, std::memory_order_release);
  push(done, solicited);
}

// What a message that is more than a Send adds to its completion. False: it has failed the stream.
bool InboundMessages::describe(WorkCompletion& done, bool& solicited) {
  if (traits(opcode_).invalidates) {
    const STag stag{invalidate_};
    if (!in_.config.regions->invalidate_window(stag, in_.stream.peer(in_.config.domain))) {
      fail(TerminateCode::kRdmapCannotInvalidate, QpEvent::kAccessError, WcStatus::kRemInvReqErr);
      return false;
    }
    done.wc_flags = kWcWithInvalidate;
    done.imm_or_invalidated = stag.value;
  } else if (opcode_ == RdmapOpcode::kSendImmediate) {
    solicited = RdmapControl::SolicitedBit::test(static_cast<uint8_t>(in_.segment.header[1]));
    done.wc_flags = kWcWithImm;
    done.imm_or_invalidated = __builtin_bswap32(invalidate_);
  } else if (is_immediate(opcode_)) {
    if (in_.segment.payload_offset != kImmediateSize) {
      fail_range(TerminateCode::kRdmapOperationUnspecified);
      return false;
    }
    // Verbs has 32 of the 64 bits, in network order as they came. The Write that the length belongs
    // to is not marked on the wire: it is the last one that nothing on queue 0 has followed (rule
    // A25).
    done.opcode = WcOpcode::kRecvWriteWithImm;
    done.wc_flags = kWcWithImm;
    std::memcpy(&done.imm_or_invalidated, immediate_ + (in_.config.immediate_in_last_half ? 4 : 0),
                4);
    done.byte_len = writes_.last_length();
  }
  return true;
}

// For Immediate Data it is not the buffer's fault: it has exactly 8 bytes (7306-6.3-g).
void InboundMessages::fail_range(TerminateCode code) {
  if (is_immediate(opcode_))
    in_.fail(TerminateCode::kRdmapOperationUnspecified, QpEvent::kRequestError, true);
  else
    fail(code, QpEvent::kFatal, WcStatus::kLocLenErr);
}

void InboundMessages::fail(TerminateCode code, QpEvent event, WcStatus status) {
  const StreamFailure failure = in_.failure(code, true);
  in_.fail(failure, event);
  push(completion(status, failure.vendor_err()), true);
}

void InboundMessages::fail_receive(WcStatus status) {
  const StreamFailure failure = in_.failure(TerminateCode::kRdmapLocalCatastrophic, false);
  in_.fail(failure, QpEvent::kFatal);
  push(completion(status, failure.vendor_err()), true);
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
  taken_ = false;
  if (in_.config.sink != nullptr) [[unlikely]]
    return;
  if (in_.config.trace != nullptr) [[unlikely]]
    trace_receive(TraceStep::Kind::kReceiveCompleted, completion.status);
  if (!in_.config.recv_cq->push(completion, solicited))
    in_.fail(TerminateCode::kRdmapLocalCatastrophic, QpEvent::kFatal, false);
}

void InboundMessages::flush() {
  place_in_line_.leave();
  in_.segment.payload_offset = 0;
  if (taken_) {
    in_.counters.flushed.add(1);
    push(completion(WcStatus::kWrFlushErr, 0), true);
  }
  if (in_.config.srq != nullptr) return;
  while (receives_.drain(receive_.wr_id, receive_.position)) {
    in_.counters.flushed.add(1);
    if (in_.config.trace != nullptr) [[unlikely]]
      trace_receive(TraceStep::Kind::kReceiveCompleted, WcStatus::kWrFlushErr,
                    TraceStep::Phase::kWaiting);
    in_.config.recv_cq->push(completion(WcStatus::kWrFlushErr, 0), true);
  }
}

// A receive of a shared queue has been posted to no queue pair, so its life begins here.
void InboundMessages::trace_receive(TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase) {
  TraceStep step;
  step.kind = kind;
  step.phase = phase;
  step.reported = in_.config.srq != nullptr;
  step.queue_pair = in_.config.number.value;
  step.position = receive_.position;
  step.status = static_cast<uint32_t>(status);
  step.octets = in_.segment.payload_offset;
  step.wr_id = receive_.wr_id;
  in_.config.trace->note(step);
}

}  // namespace uwarp
