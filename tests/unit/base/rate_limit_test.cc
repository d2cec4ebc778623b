// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/rate_limit.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

/// The number of uses until `end_ns` if each happens as soon as it is allowed.
int uses(RateLimit& limit, uint64_t from_ns, uint64_t end_ns) {
  int count = 0;
  for (uint64_t now = from_ns; now <= end_ns; now = std::max(now, limit.next_ns()), ++count)
    limit.use(now);
  return count;
}

TEST(RateLimit, ABurstAndThenAFixedRate) {
  RateLimit limit(4, 100);
  EXPECT_TRUE(limit.allows(0));
  EXPECT_EQ(uses(limit, 1'000, 1'000), 4);
  EXPECT_FALSE(limit.allows(1'099));
  EXPECT_EQ(limit.next_ns(), 1'100u);
  EXPECT_TRUE(limit.allows(1'100));
  EXPECT_EQ(uses(limit, 1'100, 2'000), 10);
}

TEST(RateLimit, IdleTimeGivesBackNoMoreThanTheBurst) {
  RateLimit limit(4, 100);
  EXPECT_EQ(uses(limit, 1'000, 1'000), 4);
  EXPECT_EQ(uses(limit, 1'250, 1'250), 2);
  EXPECT_EQ(uses(limit, 1'000'000, 1'000'000), 4);
}

}  // namespace
}  // namespace uwarp
