// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a Terminate means to the work request that it names. RFC 5040 4.8, 7.
#pragma once

#include "qp/work_request.h"
#include "wire/terminate_code.h"

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
    case TerminateCode::kDdpUntaggedTooLong:
      return WcStatus::kRemInvReqErr;
    default:
      return WcStatus::kRemOpErr;
  }
}

}  // namespace uwarp
