// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <vector>

#include "connect/sidr_query.h"

namespace uwarp {
namespace {

using Step = SidrRepetition::Step;
constexpr uint64_t kOneMs = 1'000'000;
constexpr uint64_t kAskedAt = 1'000 * kOneMs;

/// When the repetition sends again and when it gives up, in ms after its start, if there is no
/// answer.
struct Course {
  std::vector<uint64_t> sent;
  uint64_t gave_up = 0;
};
Course course_of(SidrRepetition repetition) {
  Course course;
  for (;;) {
    const uint64_t now = repetition.deadline_ns();
    const Step step = repetition.next(now);
    if (step == Step::kSend) course.sent.push_back((now - kAskedAt) / kOneMs);
    if (step != Step::kGiveUp) continue;
    course.gave_up = (now - kAskedAt) / kOneMs;
    return course;
  }
}

TEST(SidrRepetition, DoublesUpToTheKernelsIntervalAndEndsWithIts15Repetitions) {
  const Course course = course_of({kAskedAt, 60'000 * kOneMs});
  const std::vector<uint64_t> expected = {128,   384,   896,   1920,  3968,  8064,  12160, 16256,
                                          20352, 24448, 28544, 32640, 36736, 40832, 44928};
  EXPECT_EQ(course.sent, expected);
  EXPECT_EQ(course.gave_up, 60'000u);
}

TEST(SidrRepetition, TheLimitMayBeShort) {
  const Course course = course_of({kAskedAt, 500 * kOneMs});
  EXPECT_EQ(course.sent, (std::vector<uint64_t>{128, 384}));
  EXPECT_EQ(course.gave_up, 500u);
  EXPECT_EQ(course_of({kAskedAt, 1 * kOneMs}).gave_up, 1u);
}

TEST(SidrRepetition, WaitsUntilItsDeadline) {
  SidrRepetition repetition(kAskedAt, 1'000 * kOneMs);
  EXPECT_EQ(repetition.next(kAskedAt + 127 * kOneMs), Step::kWait);
  EXPECT_EQ(repetition.next(kAskedAt + 128 * kOneMs), Step::kSend);
  EXPECT_EQ(repetition.next(kAskedAt + 129 * kOneMs), Step::kWait);
}

// As when a TCP connection is dialled again: the server may be about to listen.
TEST(SidrRepetition, IsRefusedForAWhile) {
  SidrRepetition repetition(kAskedAt, 60'000 * kOneMs);
  uint64_t now = kAskedAt + kOneMs;
  int again = 0;
  while (repetition.again_after_refusal(now)) {
    ++again;
    EXPECT_EQ(repetition.next(now + 19 * kOneMs), Step::kWait);
    now += 20 * kOneMs;
    EXPECT_EQ(repetition.next(now), Step::kSend);
  }
  EXPECT_EQ(again, 10);
  // Once a server is there, it may take its time to answer.
  const Course course = course_of(repetition);
  ASSERT_EQ(course.sent.size(), SidrRepetition::kMostRepetitions);
  EXPECT_EQ(course.sent[0], 201u + 128u);
}

TEST(SidrRepetition, IsNotRefusedBeyondItsLimit) {
  SidrRepetition repetition(kAskedAt, 15 * kOneMs);
  EXPECT_FALSE(repetition.again_after_refusal(kAskedAt));
}

}  // namespace
}  // namespace uwarp
