// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/turn_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace uwarp {
namespace {

TEST(TurnGate, MarkMakesTheHolderGoRoundAgain) {
  TurnGate gate;
  ASSERT_TRUE(gate.try_begin());
  EXPECT_FALSE(gate.try_begin());
  EXPECT_TRUE(gate.end());
  ASSERT_TRUE(gate.try_begin());
  EXPECT_FALSE(gate.end());
}

// No request is left behind: whoever finds the gate busy relies on the holder to see its work.
TEST(TurnGate, WhoOnlyTriesLeavesNoMark) {
  TurnGate gate;
  ASSERT_TRUE(gate.try_lock());
  EXPECT_FALSE(gate.try_lock());
  EXPECT_FALSE(gate.end());
  ASSERT_TRUE(gate.try_lock());
  EXPECT_FALSE(gate.try_begin());
  EXPECT_TRUE(gate.end());
}

TEST(TurnGate, NoWorkIsLost) {
  TurnGate gate;
  std::atomic<int> waiting{0};
  int done = 0;  // under the gate
  auto worker = [&] {
    for (int i = 0; i < 50000; ++i) {
      ++waiting;
      while (gate.try_begin()) {
        done += waiting.exchange(0);
        if (!gate.end()) break;
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
