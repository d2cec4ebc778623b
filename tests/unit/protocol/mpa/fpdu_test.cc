// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// FPDU framing: sizes, pad, CRC; the golden FPDUs are framed and verified.
#include "protocol/mpa/fpdu.h"

#include <gtest/gtest.h>

#include "vector_file.h"

namespace uwarp {
namespace {

std::vector<test::VectorFile> all_fpdus() {
  auto files = test::load_vectors("rdmap");
  files.push_back(test::load_vector("mpa/crc_sample_no_marker.hex"));
  return files;
}

// 5044-4.1-a, -b: pad to a multiple of four, and no more.
TEST(Fpdu, Sizes) {
  for (size_t length = 0; length <= 65535; ++length) {
    ASSERT_LE(fpdu_pad(length), 3u);
    ASSERT_EQ(fpdu_size(length) % 4, 0u);
    ASSERT_EQ(fpdu_size(length), 2 + length + fpdu_pad(length) + 4);
    ASSERT_EQ(fpdu_trailer_size(length), fpdu_pad(length) + 4);
  }
}

// The largest ULPDU that fits, for every EMSS. RFC 5044 4.5.
TEST(Fpdu, MulpduFillsTheSegment) {
  for (uint32_t emss = 136; emss <= 65535; ++emss) {
    const uint32_t mulpdu = mulpdu_for(emss);
    ASSERT_LE(fpdu_size(mulpdu), emss);
    ASSERT_GT(fpdu_size(mulpdu + 1), emss);
  }
  EXPECT_EQ(mulpdu_for(0), kUlpduMin);
  EXPECT_EQ(mulpdu_for(100), kUlpduMin);
  EXPECT_EQ(mulpdu_for(1u << 20), kUlpduMax);
}

TEST(Fpdu, TrailerReproducesTheGoldenFpdus) {
  for (const auto& file : all_fpdus()) {
    SCOPED_TRACE(file.name);
    const size_t length = load_be16(file.bytes.data());
    const size_t covered = 2 + length + fpdu_pad(length);
    std::vector<std::byte> fpdu(file.bytes.begin(),
                                file.bytes.begin() + 2 + static_cast<ptrdiff_t>(length));
    fpdu.resize(2 + length + kFpduTrailerMax, std::byte{0xEE});
    const size_t written =
        write_fpdu_trailer(&fpdu[2 + length], length, crc32c(file.bytes.data(), covered));
    EXPECT_EQ(written, fpdu_trailer_size(length));
    for (size_t i = 2 + length + written; i < fpdu.size(); ++i) EXPECT_EQ(fpdu[i], std::byte{0xEE});
    fpdu.resize(2 + length + written);
    EXPECT_EQ(fpdu, file.bytes);
  }
}

// CRCs off: four zero bytes. 5044-4.1-d.
TEST(Fpdu, TrailerWithoutCrc) {
  for (size_t length = 14; length < 22; ++length) {
    std::vector<std::byte> trailer(kFpduTrailerMax, std::byte{0xEE});
    const size_t written = write_fpdu_trailer(trailer.data(), length, 0);
    EXPECT_EQ(written, fpdu_pad(length) + 4);
    for (size_t i = 0; i < trailer.size(); ++i)
      EXPECT_EQ(trailer[i], i < written ? std::byte{0} : std::byte{0xEE});
  }
}

// Every flipped bit, and every missing or additional byte, makes the CRC wrong.
TEST(Fpdu, CrcFindsEveryFlippedBit) {
  for (const auto& file : all_fpdus()) {
    SCOPED_TRACE(file.name);
    EXPECT_TRUE(verify_fpdu_crc(file.bytes));
    auto bytes = file.bytes;
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
      ASSERT_FALSE(verify_fpdu_crc(bytes)) << bit;
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
    }
    for (size_t size = 0; size < bytes.size(); ++size)
      ASSERT_FALSE(verify_fpdu_crc(std::span(bytes).first(size))) << size;
  }
}

// The pad may have any value, as long as the CRC covers it. 5044-4.1-c.
TEST(Fpdu, NonZeroPadWithRightCrc) {
  auto bytes = test::load_vector("rdmap/x12_send.hex").bytes;
  for (size_t i = 25; i < 28; ++i) bytes[i] = std::byte{0xFF};
  EXPECT_FALSE(verify_fpdu_crc(bytes));
  store_le32(&bytes[28], crc32c(bytes.data(), 28));
  EXPECT_TRUE(verify_fpdu_crc(bytes));
}

// The invalid FPDUs have faults above the framing: all but one have a right CRC.
TEST(Fpdu, CrcOfTheInvalidVectors) {
  for (const auto& file : test::load_vectors("rdmap/invalid")) {
    EXPECT_EQ(verify_fpdu_crc(file.bytes), file.notes.at("terminate") != "0x2002") << file.name;
    EXPECT_EQ(file.bytes.size(), fpdu_size(load_be16(file.bytes.data()))) << file.name;
  }
}

}  // namespace
}  // namespace uwarp
