// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "ddp/buffer_list.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace uwarp {
namespace {

struct Ranges : ::testing::Test {
  Ranges() {
    list.append(memory + 10, 3);
    list.append(memory + 50, 0);  // left out
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
  // Back to front, so that every access has to seek.
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

TEST_F(Ranges, OverlapsOnlyWhatItTouches) {
  EXPECT_TRUE(list.overlaps(memory + 12, 1));
  EXPECT_FALSE(list.overlaps(memory + 13, 7));
  EXPECT_TRUE(list.overlaps(memory + 13, 8));
  EXPECT_FALSE(list.overlaps(memory + 31, 33));
}

}  // namespace
}  // namespace uwarp
