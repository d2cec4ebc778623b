// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Cursors and unchecked loads: byte order, and that a failed access consumes or writes nothing.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/field.h"
#include "base/ids.h"

namespace uwarp {
namespace {

std::vector<std::byte> counting_bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(i + 1);
  return bytes;
}

TEST(Bytes, LoadsAndStoresAreBigEndianAtAnyAlignment) {
  const auto bytes = counting_bytes(16);
  EXPECT_EQ(load_be16(&bytes[1]), 0x0203);
  EXPECT_EQ(load_be32(&bytes[1]), 0x02030405u);
  EXPECT_EQ(load_be64(&bytes[1]), 0x0203040506070809u);
  EXPECT_EQ(load_le32(&bytes[1]), 0x05040302u);

  std::vector<std::byte> out(19);
  store_be16(&out[1], 0x0203);
  store_be32(&out[3], 0x04050607);
  store_be64(&out[7], 0x08090A0B0C0D0E0F);
  store_le32(&out[15], 0x13121110);
  for (size_t i = 1; i < out.size(); ++i) EXPECT_EQ(out[i], std::byte(i + 1)) << i;
  EXPECT_EQ(out[0], std::byte{0});
}

TEST(Field, ShiftFollowsFromTheMask) {
  using Middle = Field<uint8_t{0x3C}>;
  static_assert(Middle::kShift == 2 && Middle::kMax == 15);
  static_assert(Middle::get(0xFF) == 15 && Middle::put(15) == 0x3C && Middle::put(16) == 0);
  using Top = Field<uint16_t{0x8000}>;
  static_assert(Top::get(0x8000) == 1 && Top::flag(true) == 0x8000 && Top::flag(false) == 0);
  static_assert(Top::test(0xFFFF) && !Top::test(0x7FFF));
  using Wide = Field<uint32_t{0xFFFFFFFF}>;
  static_assert(Wide::kShift == 0 && Wide::get(0x12345678) == 0x12345678);
}

// The first message on a queue has MSN 1; 0xFFFFFFFF is followed by 0 and then by 1.
TEST(Msn, Wraps) {
  EXPECT_EQ(Msn{}.value, 1u);
  EXPECT_EQ(Msn{1}.next(), Msn{2});
  EXPECT_EQ(Msn{0xFFFFFFFF}.next(), Msn{0});
  EXPECT_EQ(Msn{0xFFFFFFFF}.next().next(), Msn{1});
}

}  // namespace
}  // namespace uwarp
