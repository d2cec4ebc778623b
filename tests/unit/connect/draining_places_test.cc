// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include "connect/connect_context.h"

namespace uwarp {
namespace {

TEST(DrainingPlaces, TheOldestGoesWhenAllAreTaken) {
  DrainingPlaces<int> places;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(places.enter(i, 4), std::nullopt);
  EXPECT_EQ(places.enter(4, 4), 0);
  EXPECT_EQ(places.leave(2), 2);
  EXPECT_EQ(places.leave(2), std::nullopt);
  EXPECT_EQ(places.leave(0), std::nullopt) << "it lost its place";
  EXPECT_EQ(places.enter(5, 4), std::nullopt);
  EXPECT_EQ(places.enter(6, 4), 1);
  EXPECT_EQ(places.enter(7, 4), 3);
}

TEST(DrainingPlaces, AQuarterOfTheFilesThatMayBeOpen) {
  EXPECT_EQ(draining_places(1024), 256u);
  EXPECT_EQ(draining_places(256), 64u);
  EXPECT_EQ(draining_places(0), 1u);
  EXPECT_EQ(draining_places(~uint64_t{0}), 4096u) << "no limit";
}

}  // namespace
}  // namespace uwarp
