// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The grammar of UWARP_FAULT, its messages about mistakes, and that counting is repeatable.
#include "inject/fault_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace uwarp {
namespace {

FaultPlan parse(std::string_view text) {
  std::string error;
  FaultPlan plan = FaultPlan::parse(text, error);
  EXPECT_EQ(error, "") << text;
  return plan;
}

std::string error_of(std::string_view text) {
  std::string error;
  EXPECT_TRUE(FaultPlan::parse(text, error).rules.empty()) << text;
  EXPECT_EQ(error.find('\n'), std::string::npos);
  return error;
}

/// The messages out of the first `n` on which the only rule acts.
std::vector<uint64_t> acts(std::string_view text, uint64_t n, uint64_t stream = 1) {
  const FaultPlan plan = parse(text);
  FaultCounter counter(plan, 0, stream);
  std::vector<uint64_t> all;
  for (uint64_t i = 1; i <= n; ++i)
    if (counter.count()) all.push_back(i);
  return all;
}

TEST(FaultPlan, NothingIsAPlanWithoutRules) {
  for (const char* text : {"", " ", ";", " ; ;", "seed=3", "seed=3;"})
    EXPECT_TRUE(parse(text).rules.empty()) << text;
  EXPECT_EQ(parse(" seed=18446744073709551615 ").seed, ~uint64_t{0});
}

TEST(FaultPlan, AWireWithItsWords) {
  const FaultPlan plan = parse(
      "seed=9; wire latency=20us jitter=5us rate=10G queue=64K peer=192.0.2.7; "
      "wire rate=100Mbit peer=2001:db8::1; wire latency=1s");
  ASSERT_EQ(plan.rules.size(), 3u);
  const FaultRule& first = plan.rules[0];
  EXPECT_EQ(first.kind, FaultKind::kWire);
  EXPECT_EQ(first.wire.latency_ns, 20'000u);
  EXPECT_EQ(first.wire.jitter_ns, 5'000u);
  EXPECT_EQ(first.wire.bits_per_second, 10'000'000'000u);
  EXPECT_EQ(first.wire.queue_bytes, 64'000u);
  EXPECT_EQ(first.wire.seed, 9u);
  ASSERT_TRUE(first.peer);
  EXPECT_EQ((*first.peer)[11], 0xff);
  EXPECT_EQ((*first.peer)[12], 192);
  EXPECT_EQ((*first.peer)[15], 7);
  EXPECT_EQ(plan.rules[1].wire.bits_per_second, 100'000'000u);
  EXPECT_EQ((*plan.rules[1].peer)[0], 0x20);
  EXPECT_EQ(plan.rules[2].wire.latency_ns, 1'000'000'000u);
  EXPECT_FALSE(plan.rules[2].peer);
}

TEST(FaultPlan, WhatIsWrongWithAWire) {
  EXPECT_EQ(error_of("wire"), "wire: \"latency\" or \"rate\" is missing");
  EXPECT_EQ(error_of("wire jitter=1us"), "wire: \"latency\" or \"rate\" is missing");
  EXPECT_EQ(error_of("wire latency=0us"), "wire: \"latency=0us\" is not a time from 1us to 1s");
  EXPECT_EQ(error_of("wire latency=2s"), "wire: \"latency=2s\" is not a time from 1us to 1s");
  EXPECT_EQ(error_of("wire latency=20"), "wire: \"latency=20\" is not a time from 1us to 1s");
  EXPECT_EQ(error_of("wire rate=10"),
            "wire: \"rate=10\" is not bits per second from 10K to 1000G, such as 100M or 10G");
  EXPECT_EQ(error_of("wire latency=5us jitter=6us"), "wire: \"jitter\" is more than \"latency\"");
  EXPECT_EQ(error_of("wire latency=5us queue=64K"),
            "wire: \"queue\" without \"rate\": nothing waits for a wire without a rate");
  EXPECT_EQ(error_of("wire rate=1G queue=1K"),
            "wire: \"queue=1K\" is not bytes from 4096 to 1G, such as 64K");
  EXPECT_EQ(error_of("wire rate=1G peer=host"),
            "wire: \"peer=host\" is not an IPv4 or IPv6 address");
  EXPECT_EQ(error_of("wire rate=1G nth=3"), "wire: \"nth\" is not a word of this kind of fault");
  EXPECT_EQ(error_of("wire rate=1G rate=1G"), "wire: \"rate\" is given twice");
}

TEST(FaultPlan, EveryKindWithItsWords) {
  const FaultPlan plan = parse(
      "seed=7; reset after=100 op=recv qp=2; stall nth=3 for=20ms; terminate code=1/2/02;"
      "corrupt op=write nth=5; slow rate=10M delay=500us; "
      "wc-error status=REM_ACCESS_ERR op=write nth=5 qp=any;\n"
      "no-receive every=4 for=2s times=3; async-event type=GID_CHANGE at=1s burst=9;"
      "port-down at=300ms for=1s; cq-event p=0.5; addr-error; route-error nth=2; refuse every=2;"
      "unreachable; reject after=1;");
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.rules.size(), 15u);
  const FaultRule& reset = plan.rules[0];
  EXPECT_EQ(reset.kind, FaultKind::kReset);
  EXPECT_EQ(reset.message, FaultMessage::kArrival);
  EXPECT_EQ(reset.queue_pair, 2u);
  EXPECT_EQ(reset.count, 101u);
  EXPECT_EQ(plan.rules[1].for_ns, 20'000'000u);
  EXPECT_EQ(plan.rules[1].count, 3u);
  EXPECT_EQ(plan.rules[2].code, TerminateCode::kDdpUntaggedNoBuffer);
  EXPECT_EQ(plan.rules[2].count, 1u);
  EXPECT_EQ(plan.rules[3].message, FaultMessage::kWrite);
  EXPECT_EQ(plan.rules[4].rate, 10'000'000u);
  EXPECT_EQ(plan.rules[4].delay_ns, 500'000u);
  EXPECT_EQ(plan.rules[5].status, 10u);
  EXPECT_EQ(plan.rules[5].queue_pair, 0u);
  EXPECT_EQ(plan.rules[6].message, FaultMessage::kArrival);
  EXPECT_EQ(plan.rules[6].when, FaultRule::When::kEvery);
  EXPECT_EQ(plan.rules[6].times, 3u);
  EXPECT_EQ(plan.rules[7].event, 18u);
  EXPECT_EQ(plan.rules[7].at_ns, 1'000'000'000u);
  EXPECT_EQ(plan.rules[7].burst, 9u);
  EXPECT_EQ(plan.rules[8].when, FaultRule::When::kAt);
  EXPECT_EQ(plan.rules[9].chance, uint64_t{1} << 63);
  EXPECT_TRUE(plan.has(FaultKind::kReject));
  EXPECT_FALSE(parse("reset").has(FaultKind::kReject));
  for (const FaultRule& rule : plan.rules) EXPECT_STRNE(name_of(rule.kind), "?");
}

TEST(FaultPlan, MistakesAreNamed) {
  EXPECT_EQ(error_of("rest after=1"), "\"rest\" is not a kind of fault");
  EXPECT_EQ(error_of("reset; wc-error"), "wc-error: \"status\" is missing");
  EXPECT_EQ(error_of("reset after"), "reset: \"after\" is not KEY=VALUE");
  EXPECT_EQ(error_of("reset after=x"), "reset: \"after=x\" is not a number");
  EXPECT_EQ(error_of("reset nth=0"), "reset: \"nth=0\" is not a number from 1");
  EXPECT_EQ(error_of("reset status=REM_OP_ERR"),
            "reset: \"status\" is not a word of this kind of fault");
  EXPECT_EQ(error_of("reset nth=1 p=0.5"), "reset: only one of nth, after, every, p and at");
  EXPECT_EQ(error_of("reset nth=1 nth=2"), "reset: \"nth\" is given twice");
  EXPECT_EQ(error_of("seed=7 reset"), "a semicolon is missing behind \"seed=7\"");
  EXPECT_EQ(error_of("seed=many"), "\"seed=many\" is not a number");
  EXPECT_EQ(error_of("slow op=write"), "slow: \"rate\" or \"delay\" is missing");
  EXPECT_EQ(error_of("terminate code=9"),
            "terminate: \"code=9\" is not LAYER/TYPE/CODE such as 1/2/02");
  EXPECT_NE(error_of("wc-error status=OK").find("one of LOC_LEN_ERR, "), std::string::npos);
}

TEST(FaultPlan, BadValues) {
  for (const char* text : {"reset after=-1",
                           "reset after=18446744073709551615",
                           "reset qp=0",
                           "reset qp=one",
                           "reset p=0",
                           "reset p=1.1",
                           "reset p=-1",
                           "reset p=nan",
                           "reset p=",
                           "reset op=recieve",
                           "stall for=20",
                           "stall for=0ms",
                           "stall for=ms",
                           "stall for=1h",
                           "stall for=99999999999s",
                           "slow rate=0",
                           "slow rate=10m",
                           "slow rate=1T",
                           "slow op=recv rate=1M",
                           "corrupt op=recv",
                           "terminate code=1/2",
                           "terminate code=16/0/00",
                           "terminate code=1/2/100",
                           "terminate code=1/2/0g",
                           "no-receive op=send",
                           "async-event type=QP_FATAL",
                           "async-event type=GID_CHANGE burst=0",
                           "refuse qp=1",
                           "reset every=2",
                           "=",
                           "reset =1",
                           "reset after=1 ; seed=1 ; nonsense"})
    EXPECT_NE(error_of(text), "") << text;
}

TEST(FaultCounter, When) {
  EXPECT_EQ(acts("reset", 5), (std::vector<uint64_t>{1}));
  EXPECT_EQ(acts("reset nth=3", 5), (std::vector<uint64_t>{3}));
  EXPECT_EQ(acts("reset after=3", 5), (std::vector<uint64_t>{4}));
  EXPECT_EQ(acts("stall every=2", 7), (std::vector<uint64_t>{2, 4, 6}));
  EXPECT_EQ(acts("stall every=2 times=2", 7), (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(acts("slow rate=1 after=2", 5), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(acts("stall p=1", 3), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_TRUE(acts("port-down at=1s", 100).empty());
}

TEST(FaultCounter, ProbabilityFollowsSeedAndStream) {
  const auto one = acts("seed=1; stall p=0.01", 100'000);
  EXPECT_GT(one.size(), 800u);
  EXPECT_LT(one.size(), 1200u);
  EXPECT_EQ(one, acts("stall p=0.01; seed=1", 100'000));
  EXPECT_NE(one, acts("seed=2; stall p=0.01", 100'000));
  EXPECT_NE(one, acts("seed=1; stall p=0.01", 100'000, 2));
  // Two rules of one plan draw different random numbers.
  const FaultPlan plan = parse("stall p=0.5; reset p=0.5");
  FaultCounter first(plan, 0, 1), second(plan, 1, 1);
  int same = 0;
  for (int i = 0; i < 1000; ++i) same += first.count() == second.count();
  EXPECT_GT(same, 400);
  EXPECT_LT(same, 600);
}

// Documented: the answers never change, so that a seed in a bug report stays useful.
TEST(FaultCounter, ThisSeedGivesTheseMessages) {
  EXPECT_EQ(acts("seed=7; stall p=0.01", 1000),
            (std::vector<uint64_t>{135, 267, 530, 636, 767, 905}));
}

TEST(FaultPlan, OfDatagrams) {
  const FaultPlan plan = parse("lose p=0.1; duplicate op=recv every=3 times=2; reorder nth=4");
  ASSERT_EQ(plan.rules.size(), 3u);
  EXPECT_EQ(plan.rules[0].kind, FaultKind::kLose);
  EXPECT_EQ(plan.rules[1].kind, FaultKind::kDuplicate);
  EXPECT_EQ(plan.rules[1].message, FaultMessage::kArrival);
  EXPECT_EQ(plan.rules[2].kind, FaultKind::kReorder);
  EXPECT_NE(error_of("reorder op=recv"), "") << "only a message that is sent can wait for the next";
}

}  // namespace
}  // namespace uwarp
