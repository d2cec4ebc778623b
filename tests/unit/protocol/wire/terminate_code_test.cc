// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Terminate codes: the three numbers of each code, and a text for every value that a peer can send.
#include "protocol/wire/terminate_code.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace uwarp {
namespace {

TEST(TerminateCode, LayerTypeAndCode) {
  constexpr TerminateCode access = TerminateCode::kRdmapAccess;
  static_assert(layer(access) == 0 && etype(access) == 1 && code(access) == 2);
  constexpr TerminateCode unspecified = TerminateCode::kRdmapOperationUnspecified;
  static_assert(layer(unspecified) == 0 && etype(unspecified) == 2 && code(unspecified) == 0xFF);
  constexpr TerminateCode no_buffer = TerminateCode::kDdpUntaggedNoBuffer;
  static_assert(layer(no_buffer) == 1 && etype(no_buffer) == 2 && code(no_buffer) == 2);
  constexpr TerminateCode crc = TerminateCode::kMpaCrc;
  static_assert(layer(crc) == 2 && etype(crc) == 0 && code(crc) == 2);
}

// RFC 5040 4.8, RFC 5041 7.1, RFC 5044 8, RFC 6581 8, RFC 7306 8.2.
TEST(TerminateCode, NumbersAreThoseOfTheRfcs) {
  using T = TerminateCode;
  const std::pair<T, unsigned> numbers[] = {
      {T::kRdmapLocalCatastrophic, 0x0000},
      {T::kRdmapInvalidSTag, 0x0100},
      {T::kRdmapBounds, 0x0101},
      {T::kRdmapAccess, 0x0102},
      {T::kRdmapSTagNotOfStream, 0x0103},
      {T::kRdmapToWrap, 0x0104},
      {T::kRdmapCannotInvalidate, 0x0109},
      {T::kRdmapProtectionUnspecified, 0x01FF},
      {T::kRdmapInvalidVersion, 0x0205},
      {T::kRdmapUnexpectedOpcode, 0x0206},
      {T::kRdmapStreamCatastrophic, 0x0207},
      {T::kRdmapGlobalCatastrophic, 0x0208},
      {T::kRdmapOperationCannotInvalidate, 0x0209},
      {T::kRdmapOperationUnspecified, 0x02FF},
      {T::kDdpLocalCatastrophic, 0x1000},
      {T::kDdpTaggedInvalidSTag, 0x1100},
      {T::kDdpTaggedBounds, 0x1101},
      {T::kDdpTaggedSTagNotOfStream, 0x1102},
      {T::kDdpTaggedToWrap, 0x1103},
      {T::kDdpTaggedInvalidVersion, 0x1104},
      {T::kDdpUntaggedInvalidQn, 0x1201},
      {T::kDdpUntaggedNoBuffer, 0x1202},
      {T::kDdpUntaggedMsnRange, 0x1203},
      {T::kDdpUntaggedInvalidMo, 0x1204},
      {T::kDdpUntaggedTooLong, 0x1205},
      {T::kDdpUntaggedInvalidVersion, 0x1206},
      {T::kMpaConnectionLost, 0x2001},
      {T::kMpaCrc, 0x2002},
      {T::kMpaMarker, 0x2003},
      {T::kMpaInvalidStartFrame, 0x2004},
      {T::kMpaLocalCatastrophic, 0x2005},
      {T::kMpaInsufficientIrd, 0x2006},
      {T::kMpaNoCommonRtr, 0x2007},
  };
  EXPECT_EQ(std::size(numbers), 33u);
  for (const auto& [code, number] : numbers)
    EXPECT_EQ(static_cast<unsigned>(code), number) << describe(code);
}

// The 33 defined errors have different texts; all other values share one.
TEST(TerminateCode, EveryValueHasAText) {
  std::set<std::string> texts;
  int named = 0;
  for (unsigned value = 0; value <= 0xFFFF; ++value) {
    const std::string text = describe(static_cast<TerminateCode>(value));
    texts.insert(text);
    if (text != "undefined error") ++named;
  }
  EXPECT_EQ(named, 33);
  EXPECT_EQ(texts.size(), 34u);
}

}  // namespace
}  // namespace uwarp
