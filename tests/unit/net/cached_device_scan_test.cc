// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CachedDeviceScan: one scan serves for a while, however often it is asked for.
#include <gtest/gtest.h>

#include "net/net_watch.h"

namespace uwarp {
namespace {

TEST(CachedDeviceScan, OneLookServesForAWhile) {
  CachedDeviceScan look;
  int looks = 0;
  constexpr uint64_t kFirst = 5 * CachedDeviceScan::kFreshNs;
  for (uint64_t now = kFirst; now < kFirst + 3 * CachedDeviceScan::kFreshNs; now += 1000) {
    if (look.fresh(now)) continue;
    ++looks;
    look.checked(now);
  }
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace uwarp
