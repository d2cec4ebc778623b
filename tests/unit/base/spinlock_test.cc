// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// SpinLock: mutual exclusion under more threads than cores, and try_lock.
#include "base/spinlock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace uwarp {
namespace {

TEST(SpinLock, OneHolderAtATime) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 5000;
  SpinLock lock;
  long plain_counter = 0;  // not atomic: TSan and the sum find a broken lock
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::lock_guard guard(lock);
        ++plain_counter;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(plain_counter, kThreads * kRounds);
}

TEST(SpinLock, TryLock) {
  SpinLock lock;
  EXPECT_FALSE(lock.is_locked());
  EXPECT_TRUE(lock.try_lock());
  EXPECT_TRUE(lock.is_locked());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  std::unique_lock held(lock, std::try_to_lock);
  EXPECT_TRUE(held.owns_lock());
}

}  // namespace
}  // namespace uwarp
