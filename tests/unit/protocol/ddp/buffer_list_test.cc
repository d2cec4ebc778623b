// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "protocol/ddp/segment.h"
#include "unit/kernel_copies.h"

namespace uwarp {
namespace {

struct Ranges : ::testing::Test {
  Ranges() {
    list.append(memory + 10, 3);
    list.append(memory + 50, 0);  // empty, so not added
    list.append(memory + 20, 5);
    list.append(memory + 30, 1);
  }
  std::byte memory[64] = {};
  BufferList list;
};

TEST_F(Ranges, CopyInAndOutAtAnyOffset) {
  EXPECT_EQ(list.length_bytes(), 9u);
  std::vector<std::byte> from(9);
  for (size_t i = 0; i < 9; ++i) from[i] = static_cast<std::byte>(i + 1);
  // Back to front, so that every access must seek.
  for (int i = 8; i >= 0; --i) list.copy_in(static_cast<uint64_t>(i), &from[i], 1);
  std::vector<std::byte> to(9);
  list.copy_out(0, to.data(), 9);
  EXPECT_EQ(from, to);
  EXPECT_EQ(memory[12], std::byte{3});
  EXPECT_EQ(memory[20], std::byte{4});
  EXPECT_EQ(memory[30], std::byte{9});
  EXPECT_EQ(memory[13], std::byte{0});
}

TEST_F(Ranges, DescribeStopsWhereTheIovecsEnd) {
  iovec parts[3];
  uint64_t length = 7;
  EXPECT_EQ(list.describe(1, length, parts, 3), 2u);
  EXPECT_EQ(length, 7u);
  EXPECT_EQ(parts[0].iov_base, memory + 11);
  EXPECT_EQ(parts[0].iov_len, 2u);
  EXPECT_EQ(parts[1].iov_len, 5u);
  length = 9;
  EXPECT_EQ(list.describe(0, length, parts, 2), 2u);
  EXPECT_EQ(length, 8u);
}

TEST_F(Ranges, IsRevokedWithOneOfItsRegions) {
  MemoryRegion region, other;
  list.append(memory + 40, 1, &region, MemoryKind::kPlain);
  EXPECT_TRUE(list.plain());
  list.revoke(other);
  EXPECT_FALSE(list.revoked());
  list.revoke(region);
  EXPECT_TRUE(list.revoked());
  list.clear();
  list.revoke(region);
  EXPECT_FALSE(list.revoked());
}

TEST_F(Ranges, WithoutMemoryReadsAsZeros) {
  MemoryRegion nothing;
  list.append(nullptr, 4, &nothing, MemoryKind::kNull);
  list.append(memory + 40, 2);
  EXPECT_FALSE(list.plain());
  std::vector<std::byte> bytes(15, std::byte{7});
  EXPECT_TRUE(list.copy_in(0, bytes.data(), 15));
  EXPECT_EQ(memory[30], std::byte{7});
  EXPECT_EQ(memory[41], std::byte{7});
  EXPECT_TRUE(list.copy_out(0, bytes.data(), 15));
  for (size_t i = 0; i < 15; ++i)
    EXPECT_EQ(static_cast<int>(bytes[i]), i < 9 || i > 12 ? 7 : 0) << i;
}

TEST_F(Ranges, OnDemandMemoryMayBeMissing) {
  UWARP_NEEDS_KERNEL_COPIES();
  MemoryRegion region;
  list.append(memory + 40, 2, &region, MemoryKind::kOnDemand);
  list.append(reinterpret_cast<std::byte*>(64), 2, &region, MemoryKind::kOnDemand);
  EXPECT_FALSE(list.plain());
  std::vector<std::byte> bytes(13, std::byte{7});
  EXPECT_TRUE(list.copy_in(0, bytes.data(), 11));
  EXPECT_EQ(memory[41], std::byte{7});
  EXPECT_FALSE(list.copy_in(0, bytes.data(), 12));
  EXPECT_FALSE(list.copy_out(10, bytes.data(), 3));
}

}  // namespace
}  // namespace uwarp
