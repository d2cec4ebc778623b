// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// TurnsOfOthers: of pollers that need no turn themselves one takes the turns of all.
#include <gtest/gtest.h>

#include "progress/progress.h"

namespace uwarp {
namespace {

TEST(TurnsOfOthers, OnlyOneOfTwoPollersServes) {
  ServingTurn turn;
  TurnsOfOthers pollers[2];
  int served[2] = {};
  for (int round = 0; round < 100; ++round) {
    for (int each = 0; each < 2; ++each) {
      if (pollers[each].any(turn.number())) continue;
      turn.begins();
      pollers[each].own(turn.number());
      ++served[each];
    }
  }
  // In the first round one may find what the other has just done.
  EXPECT_GE(std::max(served[0], served[1]), 99);
  EXPECT_LE(std::min(served[0], served[1]), 1);
}

TEST(TurnsOfOthers, AnotherOneGoesOnBehindTheLastTurn) {
  ServingTurn turn;
  TurnsOfOthers poller;
  turn.begins();
  EXPECT_TRUE(poller.any(turn.number()));
  EXPECT_FALSE(poller.any(turn.number()));
  EXPECT_FALSE(poller.any(turn.number()));
  turn.begins();
  EXPECT_TRUE(poller.any(turn.number()));
}

}  // namespace
}  // namespace uwarp
