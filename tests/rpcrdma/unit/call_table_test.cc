// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/call_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rpcrdma::core {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

/// Sends all that may be sent.
std::vector<uint32_t> sent(CallTable& table) {
  std::vector<uint32_t> xids;
  while (const auto xid = table.take_next()) xids.push_back(*xid);
  return xids;
}

CallTable with_calls(uint32_t credits, uint32_t calls) {
  CallTable table(credits);
  for (uint32_t xid = 1; xid <= calls; ++xid) EXPECT_TRUE(table.add(xid));
  return table;
}

// Before the first reply the client does not know how many calls the server grants.
TEST(CallTable, BeginsWithOneCredit) {
  CallTable table = with_calls(32, 5);
  EXPECT_THAT(sent(table), ElementsAre(1));
  EXPECT_TRUE(table.answered(1, 3));
  EXPECT_THAT(sent(table), ElementsAre(2, 3, 4));
  EXPECT_TRUE(table.answered(3, 3));
  EXPECT_THAT(sent(table), ElementsAre(5));
}

TEST(CallTable, GrantsAreWithinReason) {
  CallTable table = with_calls(4, 20);
  sent(table);
  table.answered(1, 1000000);
  EXPECT_EQ(sent(table).size(), 4u);
  table.answered(2, 0);  // must not be, and means one
  EXPECT_EQ(table.credits().granted(), 1u);
  EXPECT_TRUE(sent(table).empty());
  table.answered(3, 0), table.answered(4, 0), table.answered(5, 0);
  EXPECT_THAT(sent(table), ElementsAre(6));
}

// A smaller grant takes nothing back.
TEST(CallTable, GrantsMayShrink) {
  CallTable table = with_calls(8, 20);
  sent(table);
  table.answered(1, 8);
  sent(table);
  table.answered(2, 2);
  EXPECT_EQ(table.credits().outstanding(), 7u);
  EXPECT_TRUE(sent(table).empty());
}

TEST(CallTable, AnAnswerCountsOnce) {
  CallTable table = with_calls(4, 3);
  sent(table);
  EXPECT_FALSE(table.answered(7, 4));  // of no call
  EXPECT_FALSE(table.answered(3, 2));  // not sent yet
  EXPECT_TRUE(table.answered(1, 1));
  EXPECT_FALSE(table.answered(1, 1));  // once more
  EXPECT_EQ(table.credits().outstanding(), 0u);
  table.remove(1);
  EXPECT_EQ(table.credits().outstanding(), 0u);
}

TEST(CallTable, XidsAreUniqueAmongOpenCalls) {
  CallTable table(4);
  EXPECT_TRUE(table.add(1));
  EXPECT_FALSE(table.add(1));
  table.remove(1);
  EXPECT_FALSE(table.waiting());
  EXPECT_TRUE(table.add(1));
}

TEST(CallTable, RemovedCallsGiveTheirCreditBack) {
  CallTable table = with_calls(4, 3);
  sent(table);
  table.remove(1);
  EXPECT_THAT(sent(table), ElementsAre(2));
}

// Everything again on the new connection, in the old order, one first.
TEST(CallTable, LostConnection) {
  CallTable table = with_calls(4, 6);
  sent(table);
  table.answered(1, 4);
  table.remove(1);
  EXPECT_THAT(sent(table), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(table.connection_lost(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(table.credits().granted(), 1u);
  EXPECT_FALSE(table.next_deadline());
  EXPECT_THAT(sent(table), ElementsAre(2));
  EXPECT_TRUE(table.answered(2, 4));
  table.remove(2);
  EXPECT_THAT(sent(table), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(table.all(), UnorderedElementsAre(3, 4, 5, 6));
}

TEST(CallTable, Deadlines) {
  CallTable table = with_calls(4, 2);
  EXPECT_FALSE(table.next_deadline());
  table.set_deadline(1, 100);
  table.set_deadline(2, 50);
  EXPECT_EQ(table.next_deadline(), 50u);
  EXPECT_FALSE(table.overdue(49));
  EXPECT_EQ(table.overdue(50), 2u);
  table.remove(2);
  EXPECT_EQ(table.next_deadline(), 100u);
}

}  // namespace
}  // namespace rpcrdma::core
