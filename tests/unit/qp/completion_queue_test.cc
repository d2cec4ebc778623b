// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/completion_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

namespace uwarp {
namespace {

struct Counter : CompletionNotifier {
  void completion_event() override { ++events; }
  void completion_overrun() override { ++overruns; }
  int events = 0;
  int overruns = 0;
};

WorkCompletion completion(uint64_t id, WcStatus status = WcStatus::kSuccess) {
  WorkCompletion one{};
  one.wr_id = id;
  one.status = status;
  return one;
}

TEST(CompletionQueue, CountsWhatItDoes) {
  CompletionSlot slot;
  Counter counter;
  CompletionQueue cq(5, &counter, {.slot = &slot});
  EXPECT_EQ(slot.capacity.load(), 8u);
  cq.arm(false);
  for (int i = 0; i < 9; ++i)
    cq.push(completion(i, i % 4 == 3 ? WcStatus::kWrFlushErr : WcStatus::kSuccess), false);
  EXPECT_EQ(slot.pushed.get(), 8u);
  EXPECT_EQ(slot.failed.get(), 2u);
  EXPECT_EQ(slot.events.get(), 1u);
  EXPECT_EQ(slot.overruns.get(), 1u);
  WorkCompletion out[8];
  EXPECT_EQ(cq.poll(out, 3), 3);
  CompletionTime time;
  EXPECT_EQ(cq.poll_timed(out[0], time), 1);
  EXPECT_EQ(slot.polled.get(), 4u);
  EXPECT_EQ(cq.resize(20), 0);
  EXPECT_EQ(slot.capacity.load(), 32u);
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

TEST(CompletionQueue, RaisesForWhatIsStoredOnlyWhenAsked) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  WorkCompletion out[8];
  EXPECT_FALSE(cq.arm(false));
  cq.raise_stored();
  EXPECT_EQ(counter.events, 0);
  cq.push(completion(0), false);
  cq.push(completion(1), false);
  EXPECT_EQ(counter.events, 1);
  EXPECT_TRUE(cq.arm(false));
  EXPECT_EQ(cq.poll(out, 1), 1);
  EXPECT_EQ(counter.events, 1);
  cq.raise_stored();
  EXPECT_EQ(counter.events, 2);
  cq.raise_stored();  // not armed any more
  EXPECT_EQ(counter.events, 2);
  // No event if all completions are polled after arming.
  EXPECT_TRUE(cq.arm(false));
  EXPECT_EQ(cq.poll(out, 8), 1);
  cq.raise_stored();
  EXPECT_EQ(counter.events, 2);
}

TEST(CompletionQueue, RaisesForStoredOnesThatAreSolicited) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  WorkCompletion out[8];
  cq.push(completion(0), true);
  cq.push(completion(1), false);
  EXPECT_TRUE(cq.arm(true));
  EXPECT_EQ(cq.poll(out, 1), 1);  // the solicited one
  cq.raise_stored();
  EXPECT_EQ(counter.events, 0);
  cq.push(completion(2, WcStatus::kWrFlushErr), false);
  EXPECT_EQ(counter.events, 1);
  EXPECT_TRUE(cq.arm(true));
  cq.raise_stored();
  EXPECT_EQ(counter.events, 2);
}

TEST(CompletionQueue, PollingWhatItWasNotArmedForRaisesNothing) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  WorkCompletion out[8];
  EXPECT_FALSE(cq.arm(true));
  cq.push(completion(0), false);
  EXPECT_EQ(cq.poll(out, 8), 1);
  EXPECT_EQ(counter.events, 0);
  cq.push(completion(1), true);
  EXPECT_EQ(counter.events, 1);
}

TEST(CompletionQueue, AnEventOnDemandIsForArmedQueuesOnly) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  cq.raise_armed();
  EXPECT_EQ(counter.events, 0);
  cq.arm(false);
  cq.raise_armed();
  EXPECT_EQ(counter.events, 1);
  cq.raise_armed();
  EXPECT_EQ(counter.events, 1);
}

TEST(CompletionQueue, WhatIsDroppedCountsAsPolled) {
  CompletionSlot slot;
  CompletionQueueOptions options;
  options.slot = &slot;
  CompletionQueue cq(8, nullptr, options);
  WorkCompletion out[8];
  for (uint64_t id = 0; id < 5; ++id) cq.push(completion(id), false);
  EXPECT_EQ(cq.poll(out, 2), 2);
  cq.drop(out[0].qp_num, CompletionQueue::Drop::kAll);
  EXPECT_EQ(slot.pushed.get(), 5u);
  EXPECT_EQ(slot.polled.get(), 5u);
  EXPECT_TRUE(cq.empty());
}

TEST(CompletionQueue, ModerationGoesOnAfterWhatWasStored) {
  Counter counter;
  CompletionQueue cq(8, &counter);
  WorkCompletion out[8];
  cq.moderate(3);
  cq.push(completion(0), false);
  EXPECT_TRUE(cq.arm(false));
  EXPECT_EQ(cq.poll(out, 8), 1);
  cq.push(completion(1), false);  // held back
  cq.raise_stored();
  EXPECT_EQ(counter.events, 0);
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

TEST(CompletionQueue, OverrunIsReportedOnceAndNothingStoredIsLost) {
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

TEST(CompletionQueue, ResizeKeepsWhatIsStored) {
  CompletionQueue cq(4, nullptr);
  WorkCompletion out[16];
  // The ring starts in the middle, so that it wraps.
  for (uint64_t id = 0; id < 3; ++id) cq.push(completion(id), false);
  ASSERT_EQ(cq.poll(out, 3), 3);
  for (uint64_t id = 10; id < 14; ++id) ASSERT_TRUE(cq.push(completion(id), false));
  EXPECT_EQ(cq.resize(3), EINVAL);
  EXPECT_EQ(cq.resize(16), 0);
  EXPECT_EQ(cq.capacity(), 16u);
  for (uint64_t id = 14; id < 26; ++id) ASSERT_TRUE(cq.push(completion(id), false));
  ASSERT_EQ(cq.poll(out, 16), 16);
  for (uint64_t i = 0; i < 16; ++i) EXPECT_EQ(out[i].wr_id, 10 + i);
  EXPECT_EQ(cq.resize(1), 0);
  EXPECT_TRUE(cq.push(completion(1), false));
  EXPECT_FALSE(cq.push(completion(2), false));
}

TEST(CompletionQueue, ResizeWhileBusyLosesNothing) {
  CompletionQueue cq(64, nullptr);
  constexpr uint64_t kCount = 30000;
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> over{false};
  std::thread producer([&] {
    for (uint64_t id = 0; id < kCount; ++id) {
      while (id - taken.load() > 30) std::this_thread::yield();
      ASSERT_TRUE(cq.push(completion(id), false));
    }
  });
  std::thread resizer([&] {
    for (uint32_t round = 0; !over.load(); ++round) {
      ASSERT_EQ(cq.resize(round % 2 ? 64 : 256), 0);
      std::this_thread::yield();
    }
  });
  while (taken.load() < kCount) {
    WorkCompletion out[8];
    const int count = cq.poll(out, 8);
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(out[i].wr_id, taken.load() + static_cast<uint64_t>(i));
    taken += static_cast<uint64_t>(count);
  }
  over = true;
  producer.join();
  resizer.join();
}

TEST(CompletionQueue, ModerationHoldsEventsBack) {
  struct HeldBack : Counter {
    void completion_moderated() override { ++held_back; }
    int held_back = 0;
  } counter;
  CompletionQueue cq(32, &counter);
  cq.moderate(3);
  cq.arm(false);
  cq.push(completion(0), false);
  EXPECT_EQ(counter.held_back, 1);
  cq.push(completion(1), false);
  EXPECT_EQ(counter.events, 0);
  EXPECT_EQ(counter.held_back, 1);  // the period starts only once
  cq.push(completion(2), false);
  EXPECT_EQ(counter.events, 1);
  // The period ends first; a second end has nothing to report.
  cq.arm(false);
  cq.push(completion(3), false);
  cq.flush_moderation();
  cq.flush_moderation();
  EXPECT_EQ(counter.events, 2);
  // Failures and solicited completions do not wait.
  cq.arm(false);
  cq.push(completion(4, WcStatus::kWrFlushErr), false);
  EXPECT_EQ(counter.events, 3);
  cq.arm(false);
  cq.push(completion(5), true);
  EXPECT_EQ(counter.events, 4);
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

WorkCompletion completion_of(uint32_t qp_num, uint64_t id) {
  WorkCompletion one = completion(id);
  one.qp_num = qp_num;
  return one;
}

TEST(CompletionQueue, DropLeavesTheRestInOrder) {
  static uint64_t now = 0;
  CompletionQueueOptions options;
  options.clock = [] { return CompletionTime{++now, 0}; };
  CompletionQueue cq(8, nullptr, options);
  WorkCompletion out[8];
  // The ring starts in the middle, so that it wraps.
  for (uint64_t id = 0; id < 5; ++id) cq.push(completion_of(1, id), false);
  ASSERT_EQ(cq.poll(out, 8), 5);
  for (uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(cq.push(completion_of(id % 3, id), false));
  cq.drop(9, CompletionQueue::Drop::kAll);
  cq.drop(1, CompletionQueue::Drop::kAll);
  for (uint64_t id : {0, 2, 3, 5, 6}) {
    CompletionTime time;
    ASSERT_EQ(cq.poll_timed(out[0], time), 1);
    EXPECT_EQ(out[0].wr_id, id);
    EXPECT_EQ(time.raw_ns, 5 + id + 1);
  }
  EXPECT_TRUE(cq.empty());
  // The room is free again.
  for (uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(cq.push(completion_of(1, id), false));
  cq.drop(1, CompletionQueue::Drop::kAll);
  EXPECT_TRUE(cq.empty());
  EXPECT_EQ(cq.poll(out, 8), 0);
}

TEST(CompletionQueue, DropOfWhatHasFailed) {
  CompletionQueue cq(8, nullptr);
  for (uint64_t id = 0; id < 8; ++id) {
    WorkCompletion one = completion_of(id % 2, id);
    if (id >= 4) one.status = WcStatus::kWrFlushErr;
    ASSERT_TRUE(cq.push(one, false));
  }
  cq.drop(1, CompletionQueue::Drop::kFailed);
  WorkCompletion out[8];
  ASSERT_EQ(cq.poll(out, 8), 6);
  const uint64_t stay[] = {0, 1, 2, 3, 4, 6};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i].wr_id, stay[i]);
}

// The completions of one queue pair are dropped again and again while those of another pass and a
// thread polls.
TEST(CompletionQueue, DropWhileBusyLosesNothingOfOthers) {
  CompletionQueue cq(64, nullptr);
  constexpr uint64_t kCount = 20000;
  constexpr uint32_t kStays = 1, kGoes = 2;
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> over{false};
  std::thread producer([&] {
    for (uint64_t id = 0; id < kCount; ++id) {
      while (id - taken.load() > 30) std::this_thread::yield();
      ASSERT_TRUE(cq.push(completion_of(kStays, id), false));
    }
  });
  std::thread dropper([&] {
    for (uint64_t round = 0; !over.load(); ++round) {
      for (int i = 0; i < 4; ++i) ASSERT_TRUE(cq.push(completion_of(kGoes, round), false));
      std::this_thread::yield();
      cq.drop(kGoes, CompletionQueue::Drop::kAll);
    }
  });
  uint64_t next = 0, last_round = 0;
  while (next < kCount) {
    WorkCompletion out[8];
    const int count = cq.poll(out, 8);
    for (int i = 0; i < count; ++i) {
      if (out[i].qp_num == kStays) {
        ASSERT_EQ(out[i].wr_id, next++);
      } else {
        ASSERT_GE(out[i].wr_id, last_round);
        last_round = out[i].wr_id;
      }
    }
    taken = next;
    if (count == 0) std::this_thread::yield();
  }
  over = true;
  producer.join();
  dropper.join();
  EXPECT_TRUE(cq.empty());
}

// A thread that remembers an index waits until polled() has passed it, so dropping must not move
// completions to lower indexes.
TEST(CompletionQueue, DroppingDelaysNoThreadThatWaitsForAnIndex) {
  CompletionQueue cq(8, nullptr);
  std::atomic<uint64_t> index[6];
  for (uint64_t i = 0; i < 6; ++i) {
    WorkCompletion one = completion(i);
    one.qp_num = i % 2 == 0 ? 5 : 7;
    cq.push(one, false, &index[i]);
    EXPECT_EQ(index[i].load(), i);
  }
  cq.drop(5, CompletionQueue::Drop::kAll);
  WorkCompletion out[8];
  ASSERT_EQ(cq.poll(out, 8), 3);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(out[i].wr_id, 2 * i + 1);
  for (const auto& each : index) EXPECT_GT(cq.polled(), each.load());
}

TEST(CompletionQueue, IndexesSurviveAResize) {
  CompletionQueue cq(2, nullptr);
  std::atomic<uint64_t> index{0};
  WorkCompletion out;
  for (uint64_t i = 0; i < 5; ++i) {
    cq.push(completion(i), false);
    ASSERT_EQ(cq.poll(&out, 1), 1);
  }
  cq.push(completion(5), false, &index);
  EXPECT_EQ(cq.resize(64), 0);
  EXPECT_EQ(cq.polled(), index.load());
  ASSERT_EQ(cq.poll(&out, 1), 1);
  EXPECT_EQ(out.wr_id, 5u);
  EXPECT_GT(cq.polled(), index.load());
}

}  // namespace
}  // namespace uwarp
