// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// When bytes come out of a wire: vectors of times.
#include "inject/wire.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace uwarp {
namespace {

constexpr uint64_t kUs = 1'000, kSecond = 1'000'000'000;

WireTerms terms_of(uint64_t latency_ns, uint64_t bits_per_second = 0, uint64_t queue_bytes = 0) {
  WireTerms made;
  made.latency_ns = latency_ns;
  made.bits_per_second = bits_per_second;
  made.queue_bytes = queue_bytes;
  return made;
}

TEST(Wire, WithoutARateOnlyTheLatencyCounts) {
  Wire wire(terms_of(20 * kUs));
  EXPECT_EQ(wire.space(0), ~size_t{0});
  EXPECT_EQ(wire.carry(1, 1000, false), 21'000u);
  EXPECT_EQ(wire.carry(1 << 20, 1000, false), 21'000u);
  EXPECT_EQ(wire.carry(1, 5000, false), 25'000u);
}

TEST(Wire, BytesTakeTheirTimeOneBehindTheOther) {
  Wire wire(terms_of(100 * kUs, 1'000'000'000));  // 8 ns a byte
  EXPECT_EQ(wire.transfer_ns(1250), 10 * kUs);
  EXPECT_EQ(wire.carry(1250, 0, false), 110 * kUs);
  EXPECT_EQ(wire.carry(1250, 1 * kUs, false), 120 * kUs);   // waits for the first
  EXPECT_EQ(wire.carry(1250, 50 * kUs, false), 160 * kUs);  // the link was idle
}

TEST(Wire, WhatHasWaitedLeavesNoGap) {
  Wire wire(terms_of(0, 1'000'000'000));
  EXPECT_EQ(wire.carry(1250, 0, false), 10 * kUs);
  EXPECT_EQ(wire.carry(1250, 15 * kUs, true), 20 * kUs);
  // A thread that comes far too late has left it idle.
  EXPECT_EQ(wire.carry(1250, kSecond, true), kSecond - Wire::kSlackNs + 10 * kUs);
}

TEST(Wire, TheQueueIsShort) {
  Wire wire(terms_of(0, 1'000'000'000, 10'000));
  EXPECT_EQ(wire.space(0), 10'000u);
  (void)wire.carry(4000, 0, false);
  EXPECT_EQ(wire.space(0), 6000u);
  EXPECT_EQ(wire.space(8 * kUs), 7000u);
  (void)wire.carry(5999, 0, false);
  EXPECT_EQ(wire.space(0), Wire::kPieceBytes);  // the last may go beyond it
  (void)wire.carry(1, 0, false);
  EXPECT_EQ(wire.space(0), 0u);
  const uint64_t at = wire.space_ns(0);
  EXPECT_EQ(at, 40 * kUs);  // half of it has gone
  EXPECT_EQ(wire.space(at), 5000u);
  EXPECT_EQ(wire.space_ns(kSecond), kSecond);
}

TEST(Wire, TheUsualQueueIsWhatTheLinkCarriesInItsLatency) {
  EXPECT_EQ(Wire(terms_of(100 * kUs, 10'000'000'000)).queue_bytes(), 125'000u);
  EXPECT_EQ(Wire(terms_of(1 * kUs, 1'000'000)).queue_bytes(), 64u << 10);
  EXPECT_EQ(Wire(terms_of(kSecond, WireTerms::kMostRate)).queue_bytes(), 1u << 20);
}

TEST(Wire, LargeFiguresDoNotOverflow) {
  Wire slow(terms_of(WireTerms::kMostNs, WireTerms::kLeastRate, WireTerms::kMostQueue));
  EXPECT_EQ(slow.space(0), WireTerms::kMostQueue);
  EXPECT_EQ(slow.transfer_ns(WireTerms::kMostQueue), 800'000 * kSecond);
  Wire fast(terms_of(WireTerms::kMostNs, WireTerms::kMostRate, WireTerms::kMostQueue));
  EXPECT_EQ(fast.space(1000 * kSecond), WireTerms::kMostQueue);
}

TEST(Wire, JitterIsAroundTheLatencyAndTheSameForTheSameSeed) {
  WireTerms made = terms_of(20 * kUs);
  made.jitter_ns = 5 * kUs;
  Wire one(made), same(made);
  made.seed = 2;
  Wire other(made);
  uint64_t least = ~uint64_t{0}, most = 0, sum = 0, differ = 0;
  constexpr int kRounds = 10'000;
  for (int i = 0; i < kRounds; ++i) {
    const uint64_t at = one.carry(1, 0, false);
    EXPECT_EQ(at, same.carry(1, 0, false));
    differ += at != other.carry(1, 0, false);
    least = std::min(least, at);
    most = std::max(most, at);
    sum += at;
  }
  EXPECT_GE(least, 15 * kUs);
  EXPECT_LE(most, 25 * kUs);
  EXPECT_LT(least, 16 * kUs);
  EXPECT_GT(most, 24 * kUs);
  EXPECT_NEAR(static_cast<double>(sum) / kRounds, 20.0 * kUs, 0.2 * kUs);
  EXPECT_GT(differ, kRounds / 2u);
}

}  // namespace
}  // namespace uwarp
