// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// DDP headers: control octet, field places, and the checked decoders at every size.
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

// All 256 octets: T, L and DV are where they belong, and reserved bits do not disturb them.
TEST(DdpControl, EveryOctet) {
  for (int octet = 0; octet < 256; ++octet) {
    const DdpControl control{static_cast<uint8_t>(octet)};
    EXPECT_EQ(control.tagged(), octet >= 128);
    EXPECT_EQ(control.last(), octet / 64 % 2 == 1);
    EXPECT_EQ(control.version(), octet % 4);
    EXPECT_EQ(ddp_header_size(control), octet >= 128 ? 14u : 18u);
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

// One octet short: nothing is decoded and nothing consumed.
TEST(DdpHeaders, CheckedDecodeAtEverySize) {
  const auto bytes = counting_header(0x41);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    ByteReader tagged{std::span(bytes).first(size)};
    const auto tagged_header = TaggedHeader::decode(tagged);
    EXPECT_EQ(tagged_header.has_value(), size >= 14);
    EXPECT_EQ(tagged.remaining(), size >= 14 ? size - 14 : size);
    if (tagged_header) {
      EXPECT_EQ(*tagged_header, TaggedHeader::decode(bytes.data()));
    }

    ByteReader untagged{std::span(bytes).first(size)};
    const auto untagged_header = UntaggedHeader::decode(untagged);
    EXPECT_EQ(untagged_header.has_value(), size >= 18);
    EXPECT_EQ(untagged.remaining(), size >= 18 ? size - 18 : size);
    if (untagged_header) {
      EXPECT_EQ(*untagged_header, UntaggedHeader::decode(bytes.data()));
    }
  }
}

}  // namespace
}  // namespace uwarp
