// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// SparingLook: one look serves for a while, however often it is asked for.
#include "net/sparing_look.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

TEST(SparingLook, OneLookServesForAWhile) {
  SparingLook look;
  int looks = 0;
  constexpr uint64_t kFirst = 5 * SparingLook::kFreshNs;
  for (uint64_t now = kFirst; now < kFirst + 3 * SparingLook::kFreshNs; now += 1000) {
    if (look.fresh(now)) continue;
    ++looks;
    look.looked(now);
  }
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace uwarp
