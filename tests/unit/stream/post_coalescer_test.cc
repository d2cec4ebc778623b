// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// When a post waits for more posts: only in the middle of a dense run, or if a poll is near, and
// never for long.
#include <gtest/gtest.h>

#include "base/tuning.h"
#include "stream/stream.h"

namespace uwarp {
namespace {

constexpr uint64_t kClose = tuning::kDenseGapNs;
constexpr uint64_t kFar = 100 * tuning::kDenseGapNs;
/// The most posts of a dense run that are sent at once, before later ones wait.
constexpr int kAtOnce = tuning::kDenseRun;

/// Posts `count` messages of 8 bytes, `gap_ns` apart, like an endpoint. Returns how many posts were
/// sent at once.
int post(PostCoalescer& pace, uint64_t& now_ns, int count, uint64_t gap_ns, uint64_t bytes = 8) {
  int sends = 0;
  for (int i = 0; i < count; ++i) {
    now_ns += gap_ns;
    if (pace.may_wait([&] { return now_ns; }, {.messages = 1, .bytes = bytes}, false)) continue;
    ++sends;
    pace.sent(now_ns);
  }
  return sends;
}

TEST(PostCoalescer, AnApplicationThatPostsRarelyNeverWaits) {
  PostCoalescer pace;
  uint64_t now = kFar;
  EXPECT_EQ(post(pace, now, 1000, kClose + 1), 1000);
}

TEST(PostCoalescer, DenseRunIsBatched) {
  PostCoalescer pace;
  uint64_t now = kFar;
  constexpr int kPosts = 10 * tuning::kWaitingMessages;
  const int sends = post(pace, now, kPosts, kClose);
  EXPECT_GE(sends, kPosts / static_cast<int>(tuning::kWaitingMessages));
  EXPECT_LE(sends, 10 + kAtOnce + 1);
}

TEST(PostCoalescer, LargeMessagesDoNotWait) {
  PostCoalescer pace;
  uint64_t now = kFar;
  EXPECT_EQ(post(pace, now, 100, kClose, tuning::kLargePostBytes + 1), 100);
}

TEST(PostCoalescer, ALimitedAmountIsSentAtATime) {
  PostCoalescer pace;
  uint64_t now = kFar;
  post(pace, now, kAtOnce, kClose);
  constexpr int kAtATime = tuning::kPassBytes / tuning::kLargePostBytes;
  EXPECT_EQ(post(pace, now, 10 * kAtATime, kClose, tuning::kLargePostBytes), 10);
}

TEST(PostCoalescer, FirstPostAfterAPauseGoesAtOnce) {
  PostCoalescer pace;
  uint64_t now = kFar;
  post(pace, now, 1000, kClose);
  EXPECT_EQ(post(pace, now, 1, kFar), 1);
  EXPECT_EQ(post(pace, now, 20, kClose), static_cast<int>(tuning::kDenseRun / 2))
      << "half of the run before the pause is remembered";
}

TEST(PostCoalescer, BulkIsResetAfterSomePauses) {
  PostCoalescer pace;
  uint64_t now = kFar;
  post(pace, now, 1000, kClose);
  post(pace, now, 8, kFar);
  EXPECT_EQ(post(pace, now, tuning::kDenseRun, kClose), static_cast<int>(tuning::kDenseRun));
}

TEST(PostCoalescer, WhatPostingAListTakesIsNoPause) {
  PostCoalescer pace;
  uint64_t now = kFar;
  constexpr uint32_t kList = tuning::kWaitingMessages / 4;
  int sends = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t second_ns = now + kClose;
    now += kFar;
    const Posted list{.messages = kList, .bytes = 8 * kList, .second_ns = second_ns};
    if (pace.may_wait([&] { return now; }, list, false)) continue;
    ++sends;
    pace.sent(now);
  }
  EXPECT_LE(sends, kAtOnce + 1 + 100 / 4);
}

/// Posts `count` times while answers are due, each followed by a poll `poll_ns` later. Returns how
/// many posts were sent at once.
int post_and_poll(PostCoalescer& pace, uint64_t& now_ns, int count, uint64_t poll_ns) {
  int sends = 0;
  const auto clock = [&] { return now_ns; };
  for (int i = 0; i < count; ++i) {
    now_ns += kFar;
    const bool waits = pace.may_wait(clock, {.messages = 1, .bytes = 8}, true);
    now_ns += poll_ns;
    sends += waits ? 0 : 1;
    if (waits) pace.waited(clock);
    pace.sent(now_ns);
  }
  return sends;
}

TEST(PostCoalescer, AnApplicationThatPollsAtOnceWaitsForThePoll) {
  PostCoalescer pace;
  uint64_t now = kFar;
  EXPECT_EQ(post_and_poll(pace, now, 1000, tuning::kPromptNs),
            static_cast<int>(tuning::kFewestAtOnce));
}

TEST(PostCoalescer, AnApplicationThatPollsLateRarelyWaits) {
  PostCoalescer pace;
  uint64_t now = kFar;
  constexpr int kPosts = 10 * tuning::kMostAtOnce;
  const int waits = kPosts - post_and_poll(pace, now, kPosts, tuning::kPromptNs + 1);
  EXPECT_GE(waits, 1);
  EXPECT_LE(waits, 20);
}

TEST(PostCoalescer, APromptPollCountsAgain) {
  PostCoalescer pace;
  uint64_t now = kFar;
  post_and_poll(pace, now, 1000, tuning::kPromptNs + 1);
  post_and_poll(pace, now, tuning::kMostAtOnce, 0);
  EXPECT_EQ(post_and_poll(pace, now, 1000, 0), 0);
}

TEST(PostCoalescer, ALimitedAmountWaitsForAPoll) {
  PostCoalescer pace;
  uint64_t now = kFar;
  const auto clock = [&] { return now; };
  post_and_poll(pace, now, 1000, 0);
  EXPECT_FALSE(pace.may_wait(clock, {.messages = 1, .bytes = tuning::kLargePostBytes + 1}, true));
  pace.sent(now);
  EXPECT_FALSE(pace.may_wait(clock, {.messages = tuning::kWaitingMessages, .bytes = 8}, true));
}

TEST(PostCoalescer, APollEndsWhatWasCounted) {
  PostCoalescer pace;
  uint64_t now = kFar;
  post(pace, now, 1000, kClose);
  pace.sent(now);
  for (int polls = 0; polls < 10; ++polls) {
    EXPECT_EQ(post(pace, now, tuning::kWaitingMessages / 2, kClose), 0);
    pace.waited([&] { return now; });
    pace.sent(now);
  }
}

}  // namespace
}  // namespace uwarp
