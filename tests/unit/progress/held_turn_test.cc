// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// HeldTurn: a poller gives its core away to a thread that serves for too long, and to no other.
#include <gtest/gtest.h>

#include "progress/progress.h"

namespace uwarp {
namespace {

constexpr uint64_t kSeen = 1'000'000'000'000;

TEST(HeldTurn, OneThatLastsIsTooLong) {
  HeldTurn held;
  EXPECT_FALSE(held.too_long(8, kSeen));
  EXPECT_FALSE(held.too_long(8, kSeen + tuning::kHeldTurnNs - 1));
  EXPECT_TRUE(held.too_long(8, kSeen + tuning::kHeldTurnNs));
  EXPECT_TRUE(held.too_long(8, kSeen + 2 * tuning::kHeldTurnNs));
}

TEST(HeldTurn, ManyShortOnesAreNot) {
  HeldTurn held;
  for (uint64_t i = 0; i < 1000; ++i)
    EXPECT_FALSE(held.too_long(i / 2 * 2, kSeen + i * 10'000)) << i;
}

TEST(HeldTurn, OfAThreadThatSleepsIsNeverTooLong) {
  ServingTurn turn;
  HeldTurn held;
  turn.begins();
  turn.sleeps();
  EXPECT_FALSE(held.too_long(turn.number(), kSeen));
  EXPECT_FALSE(held.too_long(turn.number(), kSeen + 10 * tuning::kHeldTurnNs));
  turn.begins();
  EXPECT_FALSE(held.too_long(turn.number(), kSeen + 10 * tuning::kHeldTurnNs));
  EXPECT_TRUE(held.too_long(turn.number(), kSeen + 11 * tuning::kHeldTurnNs));
}

TEST(HeldTurn, TheFirstThatIsSeenHasJustBegun) {
  HeldTurn held;
  EXPECT_FALSE(held.too_long(0, kSeen));
}

}  // namespace
}  // namespace uwarp
