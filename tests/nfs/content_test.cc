// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <string>

#include "bytes.h"

namespace uwarp::nfs {
namespace {

std::string text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Content, HolesAreZeros) {
  Content content;
  content.write(5, bytes_of("abc"));
  EXPECT_EQ(content.size(), 8u);
  EXPECT_EQ(text_of(content.range(0, 100)), std::string("\0\0\0\0\0abc", 8));
  EXPECT_EQ(text_of(content.range(6, 1)), "b");
  EXPECT_TRUE(content.range(8, 1).empty());
  EXPECT_TRUE(content.range(UINT64_MAX, 1).empty());
}

TEST(Content, WhatShrinkingCutsOffIsZeroWhenItGrowsAgain) {
  Content content;
  std::string data(20000, 'x');
  content.write(0, bytes_of(data));
  content.resize(10);
  content.resize(data.size());
  std::string expected(data.size(), '\0');
  std::fill_n(expected.begin(), 10, 'x');
  EXPECT_EQ(text_of(content.range(0, data.size())), expected);
}

TEST(Content, RangesStayValidWhileTheFileGrowsOrGoes) {
  Content content;
  content.write(0, bytes_of("hello"));
  ConstBytes range = content.range(0, 5);
  auto owner = content.owner();
  content.resize(10 << 20);
  EXPECT_EQ(text_of(content.range(0, 5)), "hello");
  content.resize(0);
  EXPECT_EQ(text_of(range), "hello");
}

TEST(Content, GrowsWithoutOthersInPlace) {
  Content content;
  std::string data(100000, 'x');
  for (uint64_t offset = 0; offset < 40 * data.size(); offset += data.size()) {
    content.write(offset, bytes_of(data));
  }
  auto all = content.range(0, 40 * data.size());
  EXPECT_EQ(all.size(), 40 * data.size());
  EXPECT_TRUE(std::ranges::all_of(all, [](std::byte each) { return each == std::byte{'x'}; }));
}

TEST(Content, ImpossibleSizesAreRefused) {
  Content content;
  EXPECT_THROW(content.resize(uint64_t{1} << 62), std::bad_alloc);
  EXPECT_EQ(content.size(), 0u);
}

}  // namespace
}  // namespace uwarp::nfs
