// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// AbsentPollers: pollers that keep messages waiting are helped, others are left alone.
#include <gtest/gtest.h>

#include "progress/progress.h"

namespace uwarp {
namespace {

constexpr uint64_t kStop = 1'000'000'000'000;

TEST(AbsentPollers, AreNotExpectedWhereNothingWaited) {
  AbsentPollers absent;
  for (int i = 0; i < 100; ++i) {
    absent.stopped(false, kStop);
    EXPECT_FALSE(absent.expected(kStop));
  }
}

TEST(AbsentPollers, OneLateFindIsNoPattern) {
  AbsentPollers absent;
  for (int i = 0; i < 100; ++i) {
    absent.stopped(i % 8 == 0, kStop);
    EXPECT_FALSE(absent.expected(kStop)) << i;
  }
}

TEST(AbsentPollers, AreExpectedForAWhileAfterSeveralLateFinds) {
  AbsentPollers absent;
  absent.stopped(true, kStop);
  absent.stopped(false, kStop);
  absent.stopped(true, kStop);
  EXPECT_TRUE(absent.expected(kStop));
  EXPECT_TRUE(absent.expected(kStop + tuning::kBelievedNs - 1));
  EXPECT_FALSE(absent.expected(kStop + tuning::kBelievedNs));
}

TEST(AbsentPollers, GoodPollersAreBelievedAgain) {
  AbsentPollers absent;
  for (int i = 0; i < 20; ++i) absent.stopped(true, kStop);
  const uint64_t later = kStop + tuning::kBelievedNs;
  for (int i = 0; i < 8; ++i) absent.stopped(false, later);
  absent.stopped(true, later);
  EXPECT_FALSE(absent.expected(later));
}

}  // namespace
}  // namespace uwarp
