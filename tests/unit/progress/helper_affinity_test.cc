// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// When the helper thread moves to the core of the thread that wakes it, and that it may run
// elsewhere afterwards.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <thread>

#include "base/tuning.h"
#include "progress/progress.h"

namespace uwarp {
namespace {

constexpr uint64_t kSoon = tuning::kSoonNs;
constexpr uint64_t kStart = tuning::kBelievedNs;

/// `waker` wakes a thread on core 0 `count` times. Returns how often it was told to move.
int wake(HelperAffinity& place, uint64_t& now_ns, int count, uint64_t gap_ns, int waker) {
  int moves = 0;
  for (int i = 0; i < count; ++i) moves += place.woken(now_ns += gap_ns, 0, waker);
  return moves;
}

TEST(HelperAffinity, MovesAfterSomeWakeUpsByAnotherCore) {
  HelperAffinity place;
  uint64_t now = kStart;
  EXPECT_EQ(wake(place, now, tuning::kMisses - 1, kSoon, 1), 0);
  EXPECT_EQ(wake(place, now, 1, kSoon, 1), 1);
}

TEST(HelperAffinity, StaysWhereItIsWokenFromTheSameCore) {
  HelperAffinity place;
  uint64_t now = kStart;
  EXPECT_EQ(wake(place, now, 1000, kSoon, 0), 0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(wake(place, now, tuning::kMisses - 1, kSoon, 1), 0);
    EXPECT_EQ(wake(place, now, 1, kSoon, 0), 0);
  }
}

TEST(HelperAffinity, StaysWithoutKnowingTheWaker) {
  HelperAffinity place;
  uint64_t now = kStart;
  EXPECT_EQ(wake(place, now, 1000, kSoon, -1), 0);
}

TEST(HelperAffinity, WhatComesNowAndThenDoesNotMoveIt) {
  HelperAffinity place;
  uint64_t now = kStart;
  EXPECT_EQ(wake(place, now, 1000, kSoon + 1, 1), 0);
}

TEST(HelperAffinity, StaysWhereItHasMuchToDo) {
  HelperAffinity place;
  uint64_t now = kStart;
  const auto awake_before_each = [&](uint64_t awake_ns) {
    int moves = 0;
    for (int i = 0; i < 1000; ++i) {
      place.sleeps(now + awake_ns);
      moves += wake(place, now, 1, kSoon, 1);
    }
    return moves;
  };
  EXPECT_EQ(awake_before_each(kSoon / 3), 0);
  EXPECT_GT(awake_before_each(kSoon / 5), 0);
}

TEST(HelperAffinity, MovesRarely) {
  HelperAffinity place;
  uint64_t now = kStart;
  const int wake_ups = static_cast<int>(tuning::kBelievedNs / kSoon);
  EXPECT_EQ(wake(place, now, wake_ups, kSoon, 1), 1);
  EXPECT_EQ(wake(place, now, wake_ups, kSoon, 1), 1);
}

TEST(HelperAffinity, LeavesTheThreadsPriorityAlone) {
  std::thread([] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 7), 0);
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    HelperAffinity place;
    for (int i = 0; i < 100; ++i) place.woken_from(-1);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 7);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

}  // namespace
}  // namespace uwarp
