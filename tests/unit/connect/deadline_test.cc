// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include "connect/connection_socket.h"

namespace uwarp {
namespace {

TEST(Deadline, TheEarliestIsGiven) {
  EXPECT_FALSE(earliest({{}, {}})) << "none";
  EXPECT_EQ(earliest({{}, {30}}).at_ns, 30u) << "without a wait there is no deadline";
  EXPECT_EQ(earliest({{30}, {}, {20}, {40}}).at_ns, 20u);
}

TEST(Deadline, PassesOnce) {
  Deadline deadline{20};
  EXPECT_FALSE(Deadline().take_passed(20)) << "not waited for";
  EXPECT_FALSE(deadline.take_passed(19));
  EXPECT_TRUE(deadline.take_passed(20));
  EXPECT_FALSE(deadline.take_passed(20)) << "again";
}

}  // namespace
}  // namespace uwarp
