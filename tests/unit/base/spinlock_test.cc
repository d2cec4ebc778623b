// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// SpinLock: mutual exclusion with more threads than cores, and try_lock.
#include "base/spinlock.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
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

// If it only yielded, the waiter, which has the higher priority, would keep the core for ever.
TEST(SpinLock, AWaiterLetsAHolderOfLowerRealTimePriorityRun) {
  const int cpu = sched_getcpu();
  SpinLock lock;
  std::atomic<bool> refused{false}, locked{false}, go{false};
  const auto enter = [&](int priority) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    const sched_param param{priority};
    if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0 ||
        pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) != 0)
      refused = true;
  };
  std::thread holder([&] {
    enter(1);
    const std::lock_guard guard(lock);
    locked = true;
    while (!go && !refused) usleep(100);
    // By now, or during this loop, the waiter takes the core.
    for (int i = 0; i < 1000000; ++i) Atomics::cpu_relax();
  });
  while (!locked) usleep(100);
  std::thread waiter([&] {
    enter(2);
    go = true;
    const std::lock_guard guard(lock);
  });
  holder.join();
  waiter.join();
  if (refused) GTEST_SKIP() << "no real-time priority";
}

}  // namespace
}  // namespace uwarp
