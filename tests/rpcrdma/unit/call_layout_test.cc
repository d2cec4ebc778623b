// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How calls are put together from what was received and what is to be read.
#include "core/call_layout.h"

#include <gtest/gtest.h>

namespace rpcrdma::core {
namespace {

constexpr size_t kMax = 1 << 20;

std::optional<CallLayout> lay_out(std::vector<ReadSegment> reads, size_t inline_size,
                                  Procedure procedure = Procedure::kMsg, size_t max = kMax) {
  Header header;
  header.procedure = procedure;
  header.chunks.reads = std::move(reads);
  return lay_out_call(header, inline_size, max);
}

TEST(CallLayout, AllInline) {
  EXPECT_EQ(lay_out({}, 100), (CallLayout{100, {{0, 100, 0}}, {}, {}}));
}

TEST(CallLayout, ItemInTheMiddle) {
  // 40 bytes, an item of 10001 in two segments, its padding, 8 bytes.
  EXPECT_EQ(lay_out({{40, {1, 10000, 0x1000}}, {40, {2, 1, 0x9000}}}, 48),
            (CallLayout{10052,
                        {{0, 40, 0}, {40, 8, 10044}},
                        {{{1, 10000, 0x1000}, 40}, {{2, 1, 0x9000}, 10040}},
                        {{10041, 3}}}));
}

TEST(CallLayout, PaddingOfTheClientIsTaken) {
  EXPECT_EQ(lay_out({{40, {1, 12, 0x1000}}}, 40),
            (CallLayout{52, {{0, 40, 0}}, {{{1, 12, 0x1000}, 40}}, {}}));
}

// Positions count the bytes of the items before, padding included.
TEST(CallLayout, TwoItems) {
  EXPECT_EQ(
      lay_out({{8, {1, 5, 0}}, {20, {2, 4, 0}}}, 16),
      (CallLayout{
          28, {{0, 8, 0}, {8, 4, 16}, {12, 4, 24}}, {{{1, 5, 0}, 8}, {{2, 4, 0}, 20}}, {{13, 3}}}));
}

TEST(CallLayout, LongCall) {
  EXPECT_EQ(lay_out({{0, {1, 3000, 0x1000}}, {0, {2, 2000, 0x9000}}}, 0, Procedure::kNomsg),
            (CallLayout{5000, {}, {{{1, 3000, 0x1000}, 0}, {{2, 2000, 0x9000}, 3000}}, {}}));
}

// The item splits a segment of the chunk at position zero.
TEST(CallLayout, LongCallWithItem) {
  EXPECT_EQ(lay_out({{0, {1, 100, 0x1000}}, {40, {2, 8, 0x9000}}}, 0, Procedure::kNomsg),
            (CallLayout{
                108, {}, {{{1, 40, 0x1000}, 0}, {{2, 8, 0x9000}, 40}, {{1, 60, 0x1028}, 48}}, {}}));
}

TEST(CallLayout, EmptySegments) {
  EXPECT_EQ(lay_out({{8, {1, 0, 0}}, {8, {2, 4, 0}}}, 8),
            (CallLayout{12, {{0, 8, 0}}, {{{2, 4, 0}, 8}}, {}}));
  EXPECT_EQ(lay_out({{0, {1, 0, 0}}, {0, {2, 8, 0}}}, 0, Procedure::kNomsg),
            (CallLayout{8, {}, {{{2, 8, 0}, 0}}, {}}));
}

TEST(CallLayout, WhatMakesNoMessage) {
  EXPECT_FALSE(lay_out({{44, {1, 4, 0}}}, 40));                    // behind the message
  EXPECT_FALSE(lay_out({{6, {1, 4, 0}}}, 40));                     // not at a word
  EXPECT_FALSE(lay_out({{16, {1, 4, 0}}, {8, {1, 4, 0}}}, 40));    // backwards
  EXPECT_FALSE(lay_out({{16, {1, 8, 0}}, {20, {1, 4, 0}}}, 40));   // one in another
  EXPECT_FALSE(lay_out({{0, {1, 40, 0}}}, 40));                    // inline and in a chunk
  EXPECT_FALSE(lay_out({}, 40, Procedure::kNomsg));                // neither
  EXPECT_FALSE(lay_out({{8, {1, 40, 0}}}, 0, Procedure::kNomsg));  // no chunk at position zero
}

TEST(CallLayout, TooLong) {
  EXPECT_TRUE(lay_out({{8, {1, 84, 0}}}, 16, Procedure::kMsg, 100));
  EXPECT_FALSE(lay_out({{8, {1, 85, 0}}}, 16, Procedure::kMsg, 100));
  EXPECT_FALSE(lay_out({{8, {1, 83, 0}}}, 18, Procedure::kMsg, 100));
  EXPECT_FALSE(lay_out({{8, {1, UINT32_MAX, 0}}, {8, {1, UINT32_MAX, 0}}}, 16));
  // With its padding only.
  EXPECT_FALSE(lay_out({{8, {1, 82, 0}}}, 16, Procedure::kMsg, 99));
}

}  // namespace
}  // namespace rpcrdma::core
