// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every Terminate error as one value: the first 16 bits of the Terminate header, which are
// Layer (4 bits), EType (4 bits) and Error Code (8 bits). No others are sent. RFC 5040-4.8-c,
// 5041-7.2-a, 5044-8-a, 6581-8-a. Knows nothing of who found the error.
#pragma once

#include <cstdint>

#include "base/field.h"

namespace uwarp {

enum class TerminateCode : uint16_t {
  // Layer 0: RDMAP. Only the first has no error code of its own; it is sent as 0.
  kRdmapLocalCatastrophic = 0x0000,
  kRdmapInvalidSTag = 0x0100,
  kRdmapBounds = 0x0101,
  kRdmapAccess = 0x0102,
  kRdmapSTagNotOfStream = 0x0103,
  kRdmapToWrap = 0x0104,
  kRdmapCannotInvalidate = 0x0109,
  kRdmapProtectionUnspecified = 0x01FF,
  kRdmapInvalidVersion = 0x0205,
  kRdmapUnexpectedOpcode = 0x0206,
  kRdmapStreamCatastrophic = 0x0207,  // also: atomic target not 64-bit aligned, RFC 7306 8.2
  kRdmapGlobalCatastrophic = 0x0208,
  kRdmapOperationCannotInvalidate = 0x0209,
  kRdmapOperationUnspecified = 0x02FF,

  // Layer 1: DDP.
  kDdpLocalCatastrophic = 0x1000,
  kDdpTaggedInvalidSTag = 0x1100,
  kDdpTaggedBounds = 0x1101,
  kDdpTaggedSTagNotOfStream = 0x1102,
  kDdpTaggedToWrap = 0x1103,
  kDdpTaggedInvalidVersion = 0x1104,
  kDdpUntaggedInvalidQn = 0x1201,
  kDdpUntaggedNoBuffer = 0x1202,
  kDdpUntaggedMsnRange = 0x1203,
  kDdpUntaggedInvalidMo = 0x1204,
  kDdpUntaggedTooLong = 0x1205,
  kDdpUntaggedInvalidVersion = 0x1206,

  // Layer 2: the lower layer, MPA.
  kMpaConnectionLost = 0x2001,
  kMpaCrc = 0x2002,
  kMpaMarker = 0x2003,
  kMpaInvalidStartFrame = 0x2004,
  kMpaLocalCatastrophic = 0x2005,
  kMpaInsufficientIrd = 0x2006,
  kMpaNoCommonRtr = 0x2007,
};

using TerminateLayerField = Field<uint16_t{0xF000}>;
using TerminateETypeField = Field<uint16_t{0x0F00}>;
using TerminateErrorField = Field<uint16_t{0x00FF}>;

constexpr uint8_t layer(TerminateCode code) {
  return static_cast<uint8_t>(TerminateLayerField::get(static_cast<uint16_t>(code)));
}
constexpr uint8_t etype(TerminateCode code) {
  return static_cast<uint8_t>(TerminateETypeField::get(static_cast<uint16_t>(code)));
}
constexpr uint8_t code(TerminateCode code) {
  return static_cast<uint8_t>(TerminateErrorField::get(static_cast<uint16_t>(code)));
}

/// Text for log lines; a peer's value that has no name gives "undefined error". Never nullptr.
const char* describe(TerminateCode code);

}  // namespace uwarp
