// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// VainBells: bells that pollers have answered stop waking the helper thread, but not for long.
#include <gtest/gtest.h>

#include "progress/progress.h"

namespace uwarp {
namespace {

/// For how many sleeps bells do not count.
uint32_t deaf_sleeps(VainBells& bells) {
  uint32_t count = 0;
  while (!bells.heeds()) ++count;
  return count;
}

TEST(VainBells, AreHeededAtFirstAndAfterUsefulOnes) {
  VainBells bells;
  EXPECT_TRUE(bells.heeds());
  for (int i = 0; i < 10; ++i) {
    bells.rung(false);
    EXPECT_TRUE(bells.heeds());
  }
}

TEST(VainBells, AreHeededAfterEverLongerTimesUpToALimit) {
  VainBells bells;
  uint32_t last = 0;
  for (int i = 0; i < 20; ++i) {
    bells.rung(true);
    const uint32_t now = deaf_sleeps(bells);
    EXPECT_TRUE(now > last || now == tuning::kDeafSleeps) << now << " after " << last;
    last = now;
  }
  EXPECT_EQ(last, tuning::kDeafSleeps);
}

TEST(VainBells, OneUsefulBellForgetsTheVainOnes) {
  VainBells bells;
  for (int i = 0; i < 5; ++i) bells.rung(true);
  bells.rung(false);
  EXPECT_TRUE(bells.heeds());
  bells.rung(true);
  EXPECT_EQ(deaf_sleeps(bells), 1u);
}

}  // namespace
}  // namespace uwarp
