// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/connection_deadlines.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

TEST(ConnectionDeadlines, TheEarliestIsTold) {
  ConnectionDeadlines deadlines;
  EXPECT_EQ(deadlines.earliest_ns(), 0u) << "none";
  deadlines[Deadline::kPost] = 30;
  EXPECT_EQ(deadlines.earliest_ns(), 30u) << "what is not waited for is no moment";
  deadlines[Deadline::kStartup] = 40;
  deadlines[Deadline::kSilence] = 20;
  EXPECT_EQ(deadlines.earliest_ns(), 20u);
  deadlines.clear();
  EXPECT_EQ(deadlines.earliest_ns(), 0u);
}

TEST(ConnectionDeadlines, EachPassesOnce) {
  ConnectionDeadlines deadlines;
  deadlines[Deadline::kHold] = 20;
  deadlines[Deadline::kClose] = 21;
  EXPECT_FALSE(deadlines.take_passed(Deadline::kHold, 19));
  EXPECT_FALSE(deadlines.take_passed(Deadline::kPeer, 20)) << "not waited for";
  EXPECT_TRUE(deadlines.take_passed(Deadline::kHold, 20));
  EXPECT_FALSE(deadlines.take_passed(Deadline::kHold, 20)) << "again";
  EXPECT_EQ(deadlines.earliest_ns(), 21u) << "the others stay";
}

}  // namespace
}  // namespace uwarp
