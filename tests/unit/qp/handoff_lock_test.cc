// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/handoff_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace uwarp {
namespace {

TEST(HandoffLock, MarkMakesTheHolderLookAgain) {
  HandoffLock side;
  auto turn = side.begin();
  ASSERT_TRUE(turn);
  EXPECT_FALSE(side.begin());
  EXPECT_EQ(turn.end(), AfterTurn::kCheckAgain);
  auto next = side.begin();
  ASSERT_TRUE(next);
  EXPECT_EQ(next.end(), AfterTurn::kNothing);
}

TEST(HandoffLock, AThreadThatOnlyTriesLeavesNoMark) {
  HandoffLock side;
  auto turn = side.try_begin();
  ASSERT_TRUE(turn);
  EXPECT_FALSE(side.try_begin());
  EXPECT_EQ(turn.end(), AfterTurn::kNothing);
  auto next = side.try_begin();
  ASSERT_TRUE(next);
  EXPECT_FALSE(side.begin());
  EXPECT_EQ(next.end(), AfterTurn::kCheckAgain);
}

TEST(HandoffLock, KnowsItsHolder) {
#ifdef NDEBUG
  GTEST_SKIP() << "without assertions";
#else
  HandoffLock side;
  SidesOfThread sides;
  EXPECT_TRUE(sides.transmit()) << "no queue pair";
  sides.watch(side, side);
  EXPECT_FALSE(sides.transmit());
  const auto mine_elsewhere = [&] {
    bool mine = true;
    std::thread([&] { mine = side.mine(); }).join();
    return mine;
  };
  {
    auto turn = side.begin();
    auto moved = std::move(turn);
    EXPECT_TRUE(side.mine());
    EXPECT_TRUE(sides.receive());
    EXPECT_FALSE(mine_elsewhere());
    EXPECT_FALSE(side.begin());
    EXPECT_TRUE(side.mine()) << "the mark changes nothing";
    EXPECT_EQ(moved.end(), AfterTurn::kCheckAgain);
    EXPECT_FALSE(side.mine());
  }
  {
    const auto held = side.lock_exclusive();
    EXPECT_TRUE(side.mine());
    EXPECT_FALSE(mine_elsewhere());
  }
  EXPECT_FALSE(side.mine());
#endif
}

TEST(HandoffLock, AnExceptionGivesItBackAndKeepsTheMark) {
  HandoffLock side;
  try {
    const auto turn = side.begin();
    EXPECT_FALSE(side.begin());
    throw 1;
  } catch (int) {
  }
  EXPECT_FALSE(side.taken());
  { const auto held = side.lock_exclusive(); }
  auto turn = side.try_begin();
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn.end(), AfterTurn::kCheckAgain);
}

TEST(HandoffLock, HoldersSleepAndWake) {
  HandoffLock side;
  std::optional held(side.lock_exclusive());
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      if (i == 0)
        while (!side.begin()) std::this_thread::yield();
      else
        (void)side.lock_exclusive();
      ++done;
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that they sleep by now
  EXPECT_EQ(done.load(), 0);
  held.reset();
  for (auto& thread : threads) thread.join();
}

// No request is lost: a thread that finds the side busy relies on the holder to do its work.
TEST(HandoffLock, NoWorkIsLost) {
  HandoffLock side;
  std::atomic<int> waiting{0};
  int done = 0;  // used by the holder only
  auto worker = [&] {
    for (int i = 0; i < 50000; ++i) {
      ++waiting;
      while (auto turn = side.begin()) {
        done += waiting.exchange(0);
        if (turn.end() == AfterTurn::kNothing) break;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(worker);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(waiting.load(), 0);
  EXPECT_EQ(done, 150000);
}

}  // namespace
}  // namespace uwarp
