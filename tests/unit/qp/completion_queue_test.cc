// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/completion_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace uwarp {
namespace {

struct Counter : CompletionNotifier {
  void completion_event(CompletionQueue&) override { ++events; }
  void completion_overrun(CompletionQueue&) override { ++overruns; }
  int events = 0;
  int overruns = 0;
};

WorkCompletion completion(uint64_t id, WcStatus status = WcStatus::kSuccess) {
  WorkCompletion one{};
  one.wr_id = id;
  one.status = status;
  return one;
}

TEST(CompletionQueue, OneEventPerArming) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  cq.push(completion(0), false);
  EXPECT_EQ(counter.events, 0);  // not armed
  cq.arm(false);
  EXPECT_EQ(counter.events, 0);  // only the next one counts
  cq.push(completion(1), false);
  cq.push(completion(2), false);
  EXPECT_EQ(counter.events, 1);
}

TEST(CompletionQueue, SolicitedOnlyWaitsForSolicitedOrFailed) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  cq.arm(true);
  cq.push(completion(0), false);
  EXPECT_EQ(counter.events, 0);
  cq.push(completion(1), true);
  EXPECT_EQ(counter.events, 1);
  cq.arm(true);
  cq.push(completion(2, WcStatus::kWrFlushErr), false);
  EXPECT_EQ(counter.events, 2);
}

TEST(CompletionQueue, ArmingIsStrengthenedNotWeakened) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  cq.arm(true);
  cq.arm(false);
  cq.arm(true);
  cq.push(completion(0), false);
  EXPECT_EQ(counter.events, 1);
}

TEST(CompletionQueue, OverrunIsToldOnceAndNothingStoredIsLost) {
  Counter counter;
  CompletionQueue cq(4, &counter);
  for (uint64_t id = 0; id < 4; ++id) EXPECT_TRUE(cq.push(completion(id), false));
  EXPECT_FALSE(cq.push(completion(4), false));
  EXPECT_FALSE(cq.push(completion(5), false));
  EXPECT_EQ(counter.overruns, 1);
  WorkCompletion out[8];
  EXPECT_EQ(cq.poll(out, 8), 4);
  EXPECT_EQ(out[3].wr_id, 3u);
  EXPECT_EQ(cq.poll(out, 8), -1);
}

TEST(CompletionQueue, ManyProducersOneConsumer) {
  CompletionQueue cq(1024, nullptr);
  constexpr uint64_t kEach = 20000;
  std::atomic<uint64_t> stored{0}, taken{0};
  auto produce = [&](uint64_t base) {
    for (uint64_t i = 0; i < kEach; ++i) {
      while (stored.load() - taken.load() > 900) std::this_thread::yield();
      ++stored;
      ASSERT_TRUE(cq.push(completion(base + i), false));
    }
  };
  std::thread first(produce, 0), second(produce, 1000000);
  uint64_t next[2] = {0, 1000000};
  while (taken.load() < 2 * kEach) {
    WorkCompletion out[16];
    const int count = cq.poll(out, 16);
    for (int i = 0; i < count; ++i) {
      uint64_t& expected = next[out[i].wr_id >= 1000000];
      ASSERT_EQ(out[i].wr_id, expected++);
    }
    taken += static_cast<uint64_t>(count);
    if (count == 0) std::this_thread::yield();
  }
  first.join();
  second.join();
  EXPECT_TRUE(cq.empty());
}

}  // namespace
}  // namespace uwarp
