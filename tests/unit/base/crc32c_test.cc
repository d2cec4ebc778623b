// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CRC32C against published values and a bit-by-bit implementation. 5044-4.4-a.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "vector_file.h"

namespace uwarp {
namespace {

uint32_t slow_crc32c(const std::byte* bytes, size_t size) {
  uint32_t reg = 0xFFFFFFFF;
  for (size_t i = 0; i < size; ++i) {
    reg ^= static_cast<uint8_t>(bytes[i]);
    for (int bit = 0; bit < 8; ++bit) reg = (reg >> 1) ^ ((reg & 1) ? 0x82F63B78u : 0u);
  }
  return reg ^ 0xFFFFFFFF;
}

TEST(Crc32c, PublishedValues) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c("", 0), 0u);
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(crc32c(zeros.data(), zeros.size()), 0x8A9136AAu);
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  EXPECT_EQ(crc32c(ones.data(), ones.size()), 0x62A8AB43u);
}

// The two samples printed in RFC 5044, with their markers, and the first one without.
// Proves: 5044-4.4-a
TEST(Crc32c, SamplesOfRfc5044) {
  for (const char* name : {"mpa/crc_sample_marker_first.hex", "mpa/crc_sample_marker_inside.hex",
                           "mpa/crc_sample_no_marker.hex"}) {
    const auto sample = test::load_vector(name);
    const size_t covered = sample.bytes.size() - 4;
    const uint32_t crc = crc32c(sample.bytes.data(), covered);
    // The least significant byte is sent first.
    EXPECT_EQ(std::memcmp(&crc, &sample.bytes[covered], 4), 0) << name;
  }
}

// Any division into pieces gives the value of the whole, at any alignment.
TEST(Crc32c, PiecesEqualTheWhole) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(300);
  for (auto& byte : bytes) byte = std::byte(random());
  for (size_t size : {size_t{1}, size_t{7}, size_t{64}, size_t{299}}) {
    const std::byte* from = bytes.data() + 1;
    const uint32_t whole = slow_crc32c(from, size);
    EXPECT_EQ(crc32c(from, size), whole);
    for (size_t cut = 0; cut <= size; ++cut) {
      uint32_t reg = crc32c_update(crc32c_begin(), from, cut);
      reg = crc32c_update(reg, from + cut, size - cut);
      ASSERT_EQ(crc32c_end(reg), whole) << size << " cut at " << cut;
    }
  }
}

TEST(Crc32c, LongRunsFromAnyPlace) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(70'000);
  for (auto& byte : bytes) byte = std::byte(random());
  for (size_t skip = 0; skip <= 64; ++skip) {
    const size_t size = bytes.size() - 2 * skip;
    ASSERT_EQ(crc32c(&bytes[skip], size), slow_crc32c(&bytes[skip], size)) << skip;
  }
}

}  // namespace
}  // namespace uwarp
