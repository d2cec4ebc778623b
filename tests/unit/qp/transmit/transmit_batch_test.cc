// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmit_batch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace uwarp {
namespace {

constexpr size_t kHeaderBytes = 14;

/// Adds FPDUs until there is no more room; returns their number.
size_t fill(TransmitBatch& batch, BufferList& payload) {
  EXPECT_TRUE(batch.restart());
  const auto size = static_cast<uint32_t>(payload.length_bytes());
  const auto encode = [](std::byte* at) { std::memset(at, 0, kHeaderBytes); };
  while (batch.has_space() &&
         batch.append(kHeaderBytes, encode, &payload, 0, size) == TransmitBatch::Built::kDone) {
  }
  return batch.fpdus();
}

/// The bytes to be sent, in one piece.
std::vector<std::byte> bytes(const TransmitBatch& batch) {
  std::vector<std::byte> all;
  for (const iovec& piece : batch.pending()) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    all.insert(all.end(), from, from + piece.iov_len);
  }
  return all;
}

class TransmitBatchRoom : public ::testing::TestWithParam<bool> {};

TEST_P(TransmitBatchRoom, TakesManyFpdus) {
  std::vector<std::byte> memory(4096, std::byte{7});
  BufferList payload;
  payload.append(memory.data(), static_cast<uint32_t>(memory.size()));
  TransmitBatch batch;
  batch.begin_stream(GetParam());
  EXPECT_GE(fill(batch, payload), 14u);

  const std::vector<std::byte> wire = bytes(batch);
  ASSERT_EQ(wire.size(), batch.bytes());
  const size_t size = fpdu_size(kHeaderBytes + memory.size());
  ASSERT_EQ(wire.size(), batch.fpdus() * size);
  for (size_t at = 0; at < wire.size(); at += size) {
    EXPECT_EQ(wire[at + kFpduLengthSize + kHeaderBytes], std::byte{7});
    if (GetParam()) {
      EXPECT_TRUE(verify_fpdu_crc({&wire[at], size}));
    }
  }
}

TEST_P(TransmitBatchRoom, IsLentUntilAllHasGone) {
  std::vector<std::byte> memory(64, std::byte{7});
  BufferList payload;
  payload.append(memory.data(), static_cast<uint32_t>(memory.size()));
  TransmitBatch first, second;
  first.begin_stream(GetParam());
  second.begin_stream(GetParam());
  fill(first, payload);
  const std::vector<std::byte> wire = bytes(first);
  const void* lent = first.pending().front().iov_base;
  first.consume(1);

  fill(second, payload);
  EXPECT_NE(second.pending().front().iov_base, lent);
  second.consume(second.bytes());
  EXPECT_EQ(bytes(first), std::vector(wire.begin() + 1, wire.end()));
  first.consume(first.pending_bytes());
  fill(second, payload);
  EXPECT_EQ(second.pending().front().iov_base, lent);  // the one that was given back last
}

// What a region that goes away must not be read for any more.
TEST(TransmitBatch, KnowsWhichMemoryItRefersTo) {
  std::vector<std::byte> memory(3 * 4096, std::byte{7});
  const std::byte* const middle = memory.data() + 4096;
  BufferList payload;
  payload.append(memory.data() + 4096, 4096);
  TransmitBatch batch;
  batch.begin_stream(false);
  fill(batch, payload);
  EXPECT_TRUE(batch.refers_to(middle, 4096));
  EXPECT_TRUE(batch.refers_to(middle + 100, 1));
  EXPECT_TRUE(batch.refers_to(middle + 4095, 10));
  EXPECT_TRUE(batch.refers_to(middle - 10, 11));
  EXPECT_TRUE(batch.refers_to(memory.data(), memory.size()));
  EXPECT_FALSE(batch.refers_to(middle - 10, 10));
  EXPECT_FALSE(batch.refers_to(middle + 4096, 10));
  EXPECT_TRUE(batch.detach(middle, 4096));
  EXPECT_FALSE(batch.refers_to(memory.data(), memory.size()));
  std::memset(memory.data(), 0x55, memory.size());
  for (const std::byte each : bytes(batch)) EXPECT_NE(each, std::byte{0x55});
}

// Only the FPDU that is half sent still goes.
TEST_P(TransmitBatchRoom, IsCutBehindTheFpduThatIsHalfSent) {
  std::vector<std::byte> memory(4096, std::byte{7});
  BufferList payload;
  payload.append(memory.data(), static_cast<uint32_t>(memory.size()));
  const size_t size = fpdu_size(kHeaderBytes + memory.size());
  struct Cut {
    size_t sent, fpdus;
  };
  for (const Cut& each : {Cut{1, 1}, Cut{size, 1}, Cut{size + 10, 2}, Cut{2 * size - 1, 2}}) {
    TransmitBatch batch;
    batch.begin_stream(GetParam());
    ASSERT_GE(fill(batch, payload), 3u);
    const std::vector<std::byte> wire = bytes(batch);
    batch.consume(each.sent);
    ASSERT_TRUE(batch.cut());
    EXPECT_EQ(batch.fpdus(), each.fpdus) << each.sent;
    EXPECT_EQ(batch.bytes(), each.fpdus * size) << each.sent;
    EXPECT_EQ(batch.empty(), each.sent == size);
    if (batch.empty()) continue;
    const std::vector<std::byte> rest = bytes(batch);
    ASSERT_EQ(rest.size(), each.fpdus * size - each.sent);
    EXPECT_EQ(std::memcmp(rest.data(), wire.data() + each.sent, rest.size()), 0);
  }
}

// Wherever the last FPDU ends, including the gaps that align payloads to cache lines.
TEST(TransmitBatchCrc, ItsArenaIsNotExceeded) {
  std::vector<std::byte> memory(kUlpduMax - kHeaderBytes);
  for (size_t size = 4097; size <= memory.size(); size += 251) {
    BufferList payload;
    payload.append(memory.data(), static_cast<uint32_t>(size));
    TransmitBatch batch;
    batch.begin_stream(true);
    fill(batch, payload);
    const iovec& first = batch.pending().front();
    const iovec& last = batch.pending().back();
    const auto* begin = static_cast<const std::byte*>(first.iov_base);
    const auto* end = static_cast<const std::byte*>(last.iov_base) + last.iov_len;
    EXPECT_LE(end - begin, static_cast<ptrdiff_t>(BatchBuffer::kCrcArenaBytes)) << size;
  }
}

TEST_P(TransmitBatchRoom, ItsArenaIsNotExceeded) {
  std::vector<std::byte> memory(TransmitBatch::kCopyBytes);
  for (uint32_t size = 0; size <= memory.size(); ++size) {
    BufferList payload;
    payload.append(memory.data(), size);
    TransmitBatch batch;
    batch.begin_stream(GetParam());
    fill(batch, payload);
    EXPECT_LE(batch.bytes(), GetParam() ? BatchBuffer::kCrcArenaBytes : BatchBuffer::kArenaBytes)
        << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Crc, TransmitBatchRoom, ::testing::Bool());

// Copy and CRC work block by block; the blocks may begin anywhere.
TEST(TransmitBatchCrc, CoversLargePayloadsOfAnySizeFromSeveralPlaces) {
  std::mt19937 random(2);
  std::vector<std::byte> memory(kUlpduMax - kHeaderBytes);
  for (auto& byte : memory) byte = std::byte(random());
  for (const size_t size :
       {size_t{4095}, size_t{4096}, size_t{4097}, size_t{8192}, size_t{20001}, memory.size()}) {
    for (const size_t cut : {size_t{0}, size_t{1}, size_t{4090}}) {
      BufferList payload;
      if (cut > 0) payload.append(memory.data(), static_cast<uint32_t>(cut));
      payload.append(memory.data() + cut, static_cast<uint32_t>(size - cut));
      TransmitBatch batch;
      batch.begin_stream(true);
      EXPECT_GE(fill(batch, payload), 2u);
      const std::vector<std::byte> wire = bytes(batch);
      const size_t fpdu = fpdu_size(kHeaderBytes + size);
      ASSERT_EQ(wire.size(), batch.fpdus() * fpdu);
      for (size_t at = 0; at < wire.size(); at += fpdu) {
        EXPECT_TRUE(verify_fpdu_crc({&wire[at], fpdu})) << size << " cut at " << cut;
        const std::byte* placed = &wire[at + kFpduLengthSize + kHeaderBytes];
        EXPECT_EQ(std::memcmp(placed, memory.data(), size), 0) << size << " cut at " << cut;
      }
    }
  }
}

}  // namespace
}  // namespace uwarp
