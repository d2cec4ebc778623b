// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// SparingClock: reads the clock seldom, and is never too late.
#include <gtest/gtest.h>

#include "progress/progress.h"

namespace uwarp {
namespace {

constexpr uint64_t kBegan = 1'000'000'000'000;
constexpr uint64_t kAhead = 10'000'000;

/// Asks every microsecond until the time is reached. The cycle counter runs at `percent` of the
/// clock's speed. Returns how late that was, in ns; `looks` counts reads of the clock.
uint64_t wait(uint64_t percent, int& looks) {
  SparingClock sparing;
  uint64_t now = kBegan;
  const auto clock = [&] { return ++looks, now; };
  while (!sparing.reached(kBegan + kAhead, now * percent / 100, clock)) now += 1000;
  return now - (kBegan + kAhead);
}

TEST(SparingClock, IsPunctualWithACounterOfAnySpeed) {
  for (const uint64_t percent : {26, 50, 100, 133}) {
    int looks = 0;
    EXPECT_LE(wait(percent, looks), 1000u) << percent;
  }
}

TEST(SparingClock, LooksSeldom) {
  int looks = 0;
  wait(100, looks);
  EXPECT_LT(looks, 60) << "clock reads in 10,000 questions";
}

TEST(SparingClock, WhatHasPassedIsReachedAtOnce) {
  SparingClock sparing;
  const auto clock = [] { return kBegan; };
  EXPECT_EQ(sparing.reached(kBegan, 5, clock), kBegan);
  EXPECT_EQ(sparing.reached(1, 5, clock), kBegan);
  EXPECT_FALSE(sparing.reached(kBegan + kAhead, 5, clock));
}

TEST(SparingClock, ACounterThatGoesBackAsksTheClock) {
  SparingClock sparing;
  uint64_t now = kBegan;
  int looks = 0;
  const auto clock = [&] { return ++looks, now; };
  EXPECT_FALSE(sparing.reached(kBegan + kAhead, 1'000'000, clock));
  now += 2 * kAhead;
  EXPECT_TRUE(sparing.reached(kBegan + kAhead, 999'000, clock));
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace uwarp
