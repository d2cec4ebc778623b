// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Names of the Terminate errors.
#include "protocol/wire/terminate_code.h"

namespace uwarp {
namespace {

using enum TerminateCode;

constexpr struct {
  TerminateCode code;
  const char* text;
} kTexts[] = {
    {kRdmapLocalCatastrophic, "RDMAP: local catastrophic error"},
    {kRdmapInvalidSTag, "RDMAP: invalid STag"},
    {kRdmapBounds, "RDMAP: base or bounds violation"},
    {kRdmapAccess, "RDMAP: access rights violation"},
    {kRdmapSTagNotOfStream, "RDMAP: STag not associated with the stream"},
    {kRdmapToWrap, "RDMAP: tagged offset wraps"},
    {kRdmapCannotInvalidate, "RDMAP: STag cannot be invalidated"},
    {kRdmapProtectionUnspecified, "RDMAP: unspecified protection error"},
    {kRdmapInvalidVersion, "RDMAP: invalid version"},
    {kRdmapUnexpectedOpcode, "RDMAP: unexpected opcode"},
    {kRdmapStreamCatastrophic, "RDMAP: catastrophic error of this stream"},
    {kRdmapGlobalCatastrophic, "RDMAP: catastrophic error of all streams"},
    {kRdmapOperationCannotInvalidate, "RDMAP: STag cannot be invalidated (operation error)"},
    {kRdmapOperationUnspecified, "RDMAP: unspecified operation error"},
    {kDdpLocalCatastrophic, "DDP: local catastrophic error"},
    {kDdpTaggedInvalidSTag, "DDP tagged: invalid STag"},
    {kDdpTaggedBounds, "DDP tagged: base or bounds violation"},
    {kDdpTaggedSTagNotOfStream, "DDP tagged: STag not associated with the stream"},
    {kDdpTaggedToWrap, "DDP tagged: tagged offset wraps"},
    {kDdpTaggedInvalidVersion, "DDP tagged: invalid version"},
    {kDdpUntaggedInvalidQn, "DDP untagged: invalid queue number"},
    {kDdpUntaggedNoBuffer, "DDP untagged: no buffer available"},
    {kDdpUntaggedMsnRange, "DDP untagged: message sequence number out of range"},
    {kDdpUntaggedInvalidMo, "DDP untagged: invalid message offset"},
    {kDdpUntaggedTooLong, "DDP untagged: message too long for its buffer"},
    {kDdpUntaggedInvalidVersion, "DDP untagged: invalid version"},
    {kMpaConnectionLost, "MPA: connection lost"},
    {kMpaCrc, "MPA: CRC mismatch"},
    {kMpaMarker, "MPA: marker and length do not match"},
    {kMpaInvalidStartFrame, "MPA: invalid Request or Reply"},
    {kMpaLocalCatastrophic, "MPA: local catastrophic error"},
    {kMpaInsufficientIrd, "MPA: insufficient IRD"},
    {kMpaNoCommonRtr, "MPA: no matching RTR option"},
};

}  // namespace

// Peers may send anything; the local catastrophic errors have no defined code either.
const char* describe(TerminateCode code) {
  for (const auto& entry : kTexts)
    if (entry.code == code) return entry.text;
  return "undefined error";
}

}  // namespace uwarp
