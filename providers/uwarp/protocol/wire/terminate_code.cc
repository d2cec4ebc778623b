// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Names of the Terminate errors.
#include "protocol/wire/terminate_code.h"

namespace uwarp {

const char* describe(TerminateCode code) {
  switch (code) {
    case TerminateCode::kRdmapLocalCatastrophic:
      return "RDMAP: local catastrophic error";
    case TerminateCode::kRdmapInvalidSTag:
      return "RDMAP: invalid STag";
    case TerminateCode::kRdmapBounds:
      return "RDMAP: base or bounds violation";
    case TerminateCode::kRdmapAccess:
      return "RDMAP: access rights violation";
    case TerminateCode::kRdmapSTagNotOfStream:
      return "RDMAP: STag not associated with the stream";
    case TerminateCode::kRdmapToWrap:
      return "RDMAP: tagged offset wraps";
    case TerminateCode::kRdmapCannotInvalidate:
      return "RDMAP: STag cannot be invalidated";
    case TerminateCode::kRdmapProtectionUnspecified:
      return "RDMAP: unspecified protection error";
    case TerminateCode::kRdmapInvalidVersion:
      return "RDMAP: invalid version";
    case TerminateCode::kRdmapUnexpectedOpcode:
      return "RDMAP: unexpected opcode";
    case TerminateCode::kRdmapStreamCatastrophic:
      return "RDMAP: catastrophic error of this stream";
    case TerminateCode::kRdmapGlobalCatastrophic:
      return "RDMAP: catastrophic error of all streams";
    case TerminateCode::kRdmapOperationCannotInvalidate:
      return "RDMAP: STag cannot be invalidated (operation error)";
    case TerminateCode::kRdmapOperationUnspecified:
      return "RDMAP: unspecified operation error";
    case TerminateCode::kDdpLocalCatastrophic:
      return "DDP: local catastrophic error";
    case TerminateCode::kDdpTaggedInvalidSTag:
      return "DDP tagged: invalid STag";
    case TerminateCode::kDdpTaggedBounds:
      return "DDP tagged: base or bounds violation";
    case TerminateCode::kDdpTaggedSTagNotOfStream:
      return "DDP tagged: STag not associated with the stream";
    case TerminateCode::kDdpTaggedToWrap:
      return "DDP tagged: tagged offset wraps";
    case TerminateCode::kDdpTaggedInvalidVersion:
      return "DDP tagged: invalid version";
    case TerminateCode::kDdpUntaggedInvalidQn:
      return "DDP untagged: invalid queue number";
    case TerminateCode::kDdpUntaggedNoBuffer:
      return "DDP untagged: no buffer available";
    case TerminateCode::kDdpUntaggedMsnRange:
      return "DDP untagged: message sequence number out of range";
    case TerminateCode::kDdpUntaggedInvalidMo:
      return "DDP untagged: invalid message offset";
    case TerminateCode::kDdpUntaggedTooLong:
      return "DDP untagged: message too long for its buffer";
    case TerminateCode::kDdpUntaggedInvalidVersion:
      return "DDP untagged: invalid version";
    case TerminateCode::kMpaConnectionLost:
      return "MPA: connection lost";
    case TerminateCode::kMpaCrc:
      return "MPA: CRC mismatch";
    case TerminateCode::kMpaMarker:
      return "MPA: marker and length do not match";
    case TerminateCode::kMpaInvalidStartFrame:
      return "MPA: invalid Request or Reply";
    case TerminateCode::kMpaLocalCatastrophic:
      return "MPA: local catastrophic error";
    case TerminateCode::kMpaInsufficientIrd:
      return "MPA: insufficient IRD";
    case TerminateCode::kMpaNoCommonRtr:
      return "MPA: no matching RTR option";
  }
  // Peers may send anything; the local catastrophic errors have no defined code either.
  return "undefined error";
}

}  // namespace uwarp
