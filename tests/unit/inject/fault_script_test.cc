// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a script does with one message after the other, and how long it holds them. The test
// provides the clock.
#include "inject/fault_script.h"

#include <gtest/gtest.h>

#include <string>

namespace uwarp {
namespace {

using Act = FaultVerdict::Act;
constexpr uint64_t kMs = 1'000'000;

struct Heard : FaultListener {
  void fault_acts(uint32_t queue_pair, const FaultRule& rule, uint64_t count) override {
    said.push_back(std::to_string(queue_pair) + " " + name_of(rule.kind) + " " +
                   std::to_string(count));
  }
  std::vector<std::string> said;
};

struct Script {
  explicit Script(std::string_view text, uint32_t number = 1) {
    std::string error;
    const FaultPlan plan = FaultPlan::parse(text, error);
    EXPECT_EQ(error, "");
    script = std::make_unique<FaultScript>(plan, number, heard);
  }
  FaultScript* operator->() { return script.get(); }
  Act send(uint64_t bytes = 1) {
    return script->judge_request(position++, FaultMessage::kSend, bytes).act;
  }
  Act write(uint64_t bytes = 1) {
    return script->judge_request(position++, FaultMessage::kWrite, bytes).act;
  }
  Act arrival() { return script->judge_arrival(msn++).act; }

  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  std::unique_ptr<FaultScript> script;
  uint64_t position = 0;
  uint32_t msn = 1;
};

TEST(FaultScript, ARequestIsCountedOnce) {
  Script script("reset after=2");
  EXPECT_EQ(script.send(), Act::kGo);
  for (int again = 0; again < 5; ++again)
    EXPECT_EQ(script->judge_request(1, FaultMessage::kSend, 1).act, Act::kGo);
  EXPECT_EQ(script->judge_request(2, FaultMessage::kSend, 1).act, Act::kReset);
  EXPECT_EQ(script->judge_request(2, FaultMessage::kSend, 1).act, Act::kReset);
  EXPECT_EQ(script->judge_request(3, FaultMessage::kSend, 1).act, Act::kGo);
  EXPECT_EQ(script.heard->said, (std::vector<std::string>{"1 reset 3"}));
}

TEST(FaultScript, OnlyWhatTheRuleIsAbout) {
  Script script("wc-error status=REM_OP_ERR op=write nth=2; wc-error status=GENERAL_ERR op=recv");
  EXPECT_EQ(script.write(), Act::kGo);
  EXPECT_EQ(script.send(), Act::kGo);
  EXPECT_EQ(script.send(), Act::kGo);
  EXPECT_EQ(script.write(), Act::kFail);
  EXPECT_EQ(script->judge_request(3, FaultMessage::kWrite, 1).status, 11u);
  EXPECT_EQ(script.arrival(), Act::kFail);
  EXPECT_EQ(script.arrival(), Act::kGo);
}

TEST(FaultScript, OnlyTheQueuePairThatIsMeant) {
  Script first("reset qp=2", 1), second("reset qp=2", 2);
  EXPECT_EQ(first.send(), Act::kGo);
  EXPECT_EQ(second.send(), Act::kReset);
}

TEST(FaultScript, TheFirstRuleStands) {
  Script script("terminate code=0/1/02; reset");
  EXPECT_EQ(script.send(), Act::kTerminate);
  EXPECT_EQ(script->judge_request(0, FaultMessage::kSend, 1).code, TerminateCode::kRdmapAccess);
}

TEST(FaultScript, AStallEndsInTime) {
  Script script("stall nth=2 for=20ms");
  EXPECT_EQ(script.send(), Act::kGo);
  EXPECT_EQ(script->deadline_ns(1), 0u);
  EXPECT_EQ(script.send(), Act::kGo);
  EXPECT_TRUE(script->send_held());
  EXPECT_EQ(script->deadline_ns(100 * kMs), 120 * kMs);
  EXPECT_EQ(script->deadline_ns(110 * kMs), 120 * kMs);  // runs from the first call
  EXPECT_EQ(script->release(119 * kMs), FaultScript::kNothing);
  EXPECT_EQ(script->release(120 * kMs), FaultScript::kSend);
  EXPECT_FALSE(script->send_held());
  EXPECT_EQ(script->judge_request(1, FaultMessage::kSend, 1).act, Act::kGo);
  EXPECT_FALSE(script->send_held());  // already decided
}

TEST(FaultScript, AStallWithoutEnd) {
  Script script("stall nth=1; stall op=recv");
  (void)script.send();
  (void)script.arrival();
  EXPECT_TRUE(script->send_held());
  EXPECT_TRUE(script->receive_stalled());
  EXPECT_EQ(script->deadline_ns(kMs), 0u);
  EXPECT_EQ(script->release(~uint64_t{0}), FaultScript::kNothing);
  script->restart();
  EXPECT_FALSE(script->send_held());
  EXPECT_FALSE(script->receive_held());
}

TEST(FaultScript, NoReceive) {
  Script script("no-receive nth=1 for=5ms; no-receive nth=2");
  EXPECT_EQ(script.arrival(), Act::kGo);
  EXPECT_TRUE(script->receive_held());
  EXPECT_FALSE(script->receive_stalled());
  EXPECT_EQ(script->deadline_ns(kMs), 6 * kMs);
  EXPECT_EQ(script->release(6 * kMs), FaultScript::kReceive);
  EXPECT_EQ(script.arrival(), Act::kNoReceive);
  EXPECT_FALSE(script->receive_held());
}

// At 1 MB/s, a megabyte takes a second; time lost by a late timer is made up for.
TEST(FaultScript, ASlowLinkKeepsItsRate) {
  Script script("slow rate=1M");
  uint64_t now = 1000 * kMs;
  for (int message = 0; message < 100; ++message) {
    EXPECT_EQ(script.write(10'000), Act::kGo);
    ASSERT_TRUE(script->send_held());
    const uint64_t until = script->deadline_ns(now);
    now = std::max(until, now) + kMs;  // a millisecond late each time
    EXPECT_EQ(script->release(now), FaultScript::kSend);
  }
  EXPECT_GE(now, 1995 * kMs);
  EXPECT_LE(now, 2010 * kMs);
}

TEST(FaultScript, SmallMessagesOweTogether) {
  Script script("slow rate=1M");
  int held = 0;
  for (int message = 0; message < 1000; ++message) {
    (void)script.write(100);  // 0.1 ms each
    if (!script->send_held()) continue;
    ++held;
    (void)script->release(script->deadline_ns(1000 * kMs + 100 * kMs * held));
  }
  EXPECT_EQ(held, 200);
}

TEST(FaultScript, AnswersAreSlowToo) {
  Script script("slow rate=1M");
  EXPECT_TRUE(script->admit_answer(100));
  EXPECT_FALSE(script->admit_answer(10'000));
  const uint64_t until = script->deadline_ns(1000 * kMs);
  EXPECT_GT(until, 1000 * kMs);
  EXPECT_EQ(script->release(until), FaultScript::kSend);
  EXPECT_TRUE(script->admit_answer(10'000));   // the one that has waited
  EXPECT_FALSE(script->admit_answer(10'000));  // the next
}

TEST(FaultScript, ALatencyIsWaitedForWhole) {
  Script script("slow delay=3ms");
  (void)script.send();
  const uint64_t until = script->deadline_ns(1000 * kMs);
  EXPECT_EQ(until, 1003 * kMs);
  EXPECT_EQ(script->release(until), FaultScript::kSend);
  (void)script.send();
  EXPECT_EQ(script->deadline_ns(until), 1006 * kMs);
}

TEST(FaultScript, APortThatIsDownHoldsWhatIsSent) {
  Script script("reset nth=99");
  script->set_port_down(true);
  EXPECT_TRUE(script->send_held());
  EXPECT_EQ(script->deadline_ns(kMs), 0u);
  script->set_port_down(false);
  EXPECT_FALSE(script->send_held());
}

TEST(FaultScript, TheDeviceGetsItsRules) {
  Script script("async-event type=GID_CHANGE every=2; port-down nth=3 for=1s", 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(script.send(), Act::kGo);
  EXPECT_EQ(script.heard->said,
            (std::vector<std::string>{"4 async-event 2", "4 port-down 3", "4 async-event 4"}));
}

}  // namespace
}  // namespace uwarp
