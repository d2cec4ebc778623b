// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/inbound_stream.h"

namespace uwarp {

StreamFailure InboundStream::failure(TerminateCode code, bool with_header) const {
  StreamFailure failure = StreamFailure::terminated_by_us(code);
  if (with_header) failure.terminate.copy_ddp_header(segment.header, segment.ulpdu_length);
  return failure;
}

void InboundStream::fail(const StreamFailure& failure, std::optional<QpEvent> event) {
  stream.fail(failure, event);
  close();
  outcome |= kRxFailed;
}

void InboundStream::trace_fpdu(RdmapOpcode opcode) {
  TraceStep step;
  step.kind = TraceStep::Kind::kFpduReceived;
  step.opcode = static_cast<uint8_t>(opcode);
  step.queue_pair = config.number.value;
  step.bytes = segment.ulpdu_length;
  config.trace->note(step);
}

}  // namespace uwarp
