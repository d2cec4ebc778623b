// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// DDP headers: the control byte, the places of fields, and the checked decoders at every size.
#include "protocol/wire/ddp_headers.h"

#include <gtest/gtest.h>

#include <array>

namespace uwarp {
namespace {

TEST(DdpControl, UsualValues) {
  static_assert(DdpControl::make(true, true).value == 0xC1);
  static_assert(DdpControl::make(true, false).value == 0x81);
  static_assert(DdpControl::make(false, true).value == 0x41);
  static_assert(DdpControl::make(false, false).value == 0x01);
}

// All 256 values: T, L and DV are in their places, and reserved bits do not affect them.
TEST(DdpControl, EveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const DdpControl control{static_cast<uint8_t>(byte)};
    EXPECT_EQ(control.tagged(), byte >= 128);
    EXPECT_EQ(control.last(), byte / 64 % 2 == 1);
    EXPECT_EQ(control.version(), byte % 4);
    EXPECT_EQ(ddp_header_size(control), byte >= 128 ? 14u : 18u);
  }
}

std::array<std::byte, 18> counting_header(uint8_t control) {
  std::array<std::byte, 18> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
  bytes[0] = std::byte{control};
  return bytes;
}

TEST(TaggedHeader, FieldsAreInTheirPlaces) {
  const auto bytes = counting_header(0xBD);  // reserved bits set
  const TaggedHeader header = TaggedHeader::decode(bytes.data());
  EXPECT_EQ(header.control.value, 0xBD);
  EXPECT_EQ(header.rsvd_ulp, 0x01);
  EXPECT_EQ(header.stag, STag{0x02030405});
  EXPECT_EQ(header.to, 0x060708090A0B0C0Du);
  std::array<std::byte, 15> out;
  out.fill(std::byte{0xEE});
  header.encode(out.data());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 14, out.begin()));
  EXPECT_EQ(out[14], std::byte{0xEE});
}

TEST(UntaggedHeader, FieldsAreInTheirPlaces) {
  const auto bytes = counting_header(0x7D);
  const UntaggedHeader header = UntaggedHeader::decode(bytes.data());
  EXPECT_EQ(header.control.value, 0x7D);
  EXPECT_EQ(header.rsvd_ulp, 0x01);
  EXPECT_EQ(header.invalidate_stag, STag{0x02030405});
  EXPECT_EQ(static_cast<uint32_t>(header.qn), 0x06070809u);
  EXPECT_EQ(header.msn, Msn{0x0A0B0C0D});
  EXPECT_EQ(header.mo, 0x0E0F1011u);
  std::array<std::byte, 19> out;
  out.fill(std::byte{0xEE});
  header.encode(out.data());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), out.begin()));
  EXPECT_EQ(out[18], std::byte{0xEE});
}

}  // namespace
}  // namespace uwarp
