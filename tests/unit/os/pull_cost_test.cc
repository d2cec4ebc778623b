// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/pull_cost.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace uwarp {
namespace {

/// Settings are read once, so each case has a process of its own.
[[noreturn]] void decide(const char* copies) {
  setenv("UWARP_SHM_COPIES", copies, 1);
  std::exit(pulls_pay() ? 1 : 2);
}

TEST(PullCost, TheSettingDecides) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(decide("one"), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(decide("two"), ::testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace uwarp
