// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include "connect/sidr_listener.h"

namespace uwarp {
namespace {

using Outcome = SidrTransactions::Outcome;

SidrTransactions::Key key_of(uint64_t transaction, const char* address = "192.0.2.1",
                             uint16_t port = 5000) {
  return {IpAddress::from_string(address).value(), port, transaction};
}
std::vector<std::byte> reply_of(uint64_t number) { return {std::byte{1}, std::byte(number)}; }

TEST(SidrTransactions, ARepetitionWaitsAndThenGetsTheSameReply) {
  SidrTransactions known;
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kWaiting);
  EXPECT_EQ(known.waiting(), 1u);
  known.answered(key_of(1), reply_of(1));
  EXPECT_EQ(known.waiting(), 0u);
  for (int i = 0; i < 2; ++i) {
    const auto again = known.enter(key_of(1));
    ASSERT_EQ(again.outcome, Outcome::kAnswered);
    EXPECT_EQ(*again.reply, reply_of(1));
  }
  known.answered(key_of(1), reply_of(2));
  EXPECT_EQ(*known.enter(key_of(1)).reply, reply_of(1)) << "the first reply counts";
}

TEST(SidrTransactions, OthersAreOthers) {
  SidrTransactions known;
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(2)).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(1, "192.0.2.2")).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(1, "192.0.2.1", 5001)).outcome, Outcome::kNew);
  EXPECT_EQ(known.waiting(), 4u);
}

TEST(SidrTransactions, OneThatIsForgottenIsNewAgain) {
  SidrTransactions known;
  (void)known.enter(key_of(1));
  known.forget(key_of(1));
  EXPECT_EQ(known.waiting(), 0u);
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kNew);
  known.answered(key_of(1), reply_of(1));
  known.forget(key_of(1));
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kAnswered);
}

TEST(SidrTransactions, TheOldestReplyGoes) {
  SidrTransactions known;
  for (uint64_t i = 0; i <= SidrTransactions::kMostAnswered; ++i) {
    ASSERT_EQ(known.enter(key_of(i)).outcome, Outcome::kNew);
    known.answered(key_of(i), reply_of(i));
  }
  EXPECT_EQ(known.enter(key_of(1)).outcome, Outcome::kAnswered);
  EXPECT_EQ(known.enter(key_of(0)).outcome, Outcome::kNew);
}

TEST(SidrTransactions, ThoseThatWaitAreBounded) {
  SidrTransactions known;
  for (uint64_t i = 0; i < SidrTransactions::kMostWaiting; ++i)
    ASSERT_EQ(known.enter(key_of(i)).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(99'999)).outcome, Outcome::kNoSpace);
  EXPECT_EQ(known.enter(key_of(7)).outcome, Outcome::kWaiting);
  known.answered(key_of(7), reply_of(7));
  EXPECT_EQ(known.enter(key_of(99'999)).outcome, Outcome::kNew);
  EXPECT_EQ(known.enter(key_of(7)).outcome, Outcome::kAnswered);
}

}  // namespace
}  // namespace uwarp
