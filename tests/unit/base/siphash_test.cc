// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <array>

#include "base/random.h"

namespace uwarp {
namespace {

/// The reference key 00 01 .. 0f; messages are 00 01 02 ..
constexpr SipKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};

uint64_t hash_of_first(size_t bytes) {
  std::array<std::byte, 64> message;
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  return SipHash::of(kKey, std::span(message).first(bytes));
}

// The example of the paper's appendix A.
TEST(SipHash, PaperExample) { EXPECT_EQ(hash_of_first(15), 0xa129ca6149be45e5); }

// The authors' reference vectors, with lengths around multiples of a word.
TEST(SipHash, ReferenceVectors) {
  EXPECT_EQ(hash_of_first(0), 0x726fdb47dd0e0e31);
  EXPECT_EQ(hash_of_first(1), 0x74f839c593dc67fd);
  EXPECT_EQ(hash_of_first(2), 0x0d6c8009d9a94f5a);
  EXPECT_EQ(hash_of_first(7), 0xab0200f58b01d137);
  EXPECT_EQ(hash_of_first(8), 0x93f5f5799a932462);
  EXPECT_EQ(hash_of_first(9), 0x9e0082df0ba9e4b0);
}

}  // namespace
}  // namespace uwarp
