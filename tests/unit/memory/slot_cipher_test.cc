// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <vector>

#include "memory/region_table.h"

namespace uwarp {
namespace {

constexpr SipKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};
constexpr uint32_t kCount = 1u << 24;

TEST(SlotCipher, GivesNoNumberTwice) {
  const SlotCipher cipher(kKey);
  std::vector<bool> seen(kCount);
  for (uint32_t slot = 0; slot < kCount; slot += 16) {
    const uint32_t sealed = cipher.encrypt(slot);
    ASSERT_LT(sealed, kCount);
    ASSERT_FALSE(seen[sealed]) << slot;
    seen[sealed] = true;
  }
}

TEST(SlotCipher, IsInvertedByDecrypt) {
  const SlotCipher cipher(kKey);
  for (uint32_t slot = 0; slot < kCount; slot += 97)
    ASSERT_EQ(cipher.decrypt(cipher.encrypt(slot)), slot);
}

// An earlier cipher ignored the upper 12 bits of its secret.
TEST(SlotCipher, DependsOnEachBitOfItsSecret) {
  constexpr uint32_t kSlots = 256;
  for (int bit = 0; bit < 128; ++bit) {
    SipKey other = kKey;
    (bit < 64 ? other.first : other.second) ^= uint64_t{1} << bit % 64;
    uint32_t same = 0;
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      same += SlotCipher(kKey).encrypt(slot) == SlotCipher(other).encrypt(slot);
    EXPECT_LE(same, 1u) << bit;
  }
}

// If one bit of the number changes, 12 of the 24 bits change on average.
TEST(SlotCipher, NeighboursAreFarApart) {
  const SlotCipher cipher(kKey);
  for (int bit = 0; bit < 24; ++bit) {
    int changed = 0;
    for (uint32_t slot = 0; slot < 1024; ++slot)
      changed += __builtin_popcount(cipher.encrypt(slot) ^ cipher.encrypt(slot ^ 1u << bit));
    EXPECT_NEAR(changed / 1024.0, 12, 0.5) << bit;
  }
}

}  // namespace
}  // namespace uwarp
