// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a Terminate means to the work request that it names. RFC 5040 4.8, 7.
#pragma once

#include "protocol/wire/terminate_code.h"
#include "qp/work_request.h"

namespace uwarp {

/// Completion status of the send request that a received Terminate blames.
inline WcStatus terminate_status(TerminateCode received) {
  switch (received) {
    case TerminateCode::kRdmapInvalidSTag:
    case TerminateCode::kRdmapBounds:
    case TerminateCode::kRdmapAccess:
    case TerminateCode::kRdmapSTagNotOfStream:
    case TerminateCode::kRdmapToWrap:
    case TerminateCode::kRdmapProtectionUnspecified:
    case TerminateCode::kRdmapCannotInvalidate:
    case TerminateCode::kRdmapOperationCannotInvalidate:
    case TerminateCode::kDdpTaggedInvalidSTag:
    case TerminateCode::kDdpTaggedBounds:
    case TerminateCode::kDdpTaggedSTagNotOfStream:
    case TerminateCode::kDdpTaggedToWrap:
      return WcStatus::kRemAccessErr;
    case TerminateCode::kRdmapUnexpectedOpcode:
    case TerminateCode::kRdmapStreamCatastrophic:
    case TerminateCode::kDdpUntaggedInvalidQn:
    case TerminateCode::kDdpUntaggedTooLong:
      return WcStatus::kRemInvReqErr;
    default:
      return WcStatus::kRemOpErr;
  }
}

/// Remote protection errors name memory that the peer may not touch.
inline bool is_protection_error(TerminateCode code) { return layer(code) == 0 && etype(code) == 1; }

/// Whether a request of this kind can have caused the Terminate, by the class of its error. For a
/// Terminate that gives no header.
inline bool may_have_caused(TerminateCode received, SendOpcode opcode) {
  if (is_local(opcode)) return false;
  constexpr uint8_t kDdp = 1, kLocal = 0, kTagged = 1, kUntagged = 2;
  if (received == TerminateCode::kRdmapCannotInvalidate ||
      received == TerminateCode::kRdmapOperationCannotInvalidate)
    return opcode == SendOpcode::kSendWithInvalidate;
  if (is_protection_error(received)) return is_write(opcode) || awaits_answer(opcode);
  if (layer(received) == kDdp && etype(received) == kTagged) return is_write(opcode);
  if (layer(received) == kDdp && etype(received) == kUntagged) return takes_receive(opcode);
  // Something at the peer itself, as a rule the memory of its receive: InfiniBand blames the Send.
  if (layer(received) <= kDdp && etype(received) == kLocal) return takes_receive(opcode);
  return true;
}

}  // namespace uwarp
