// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/thread_activity.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "unit/eventually.h"

namespace uwarp {
namespace {

TEST(ThreadActivity, OfTheCallingThread) {
  const ThreadActivity before = thread_activity(thread_id());
  EXPECT_TRUE(before.runnable);
  ThreadActivity after = before;
  while (after.ran_ns - before.ran_ns < 2'000'000) after = thread_activity(thread_id());
  EXPECT_TRUE(after.runnable);
}

TEST(ThreadActivity, OfThreadsThatRunSleepAndHaveEnded) {
  std::atomic<pid_t> id{0};
  std::atomic<bool> run{true};
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread other([&] {
    pthread_setname_np(pthread_self(), "a) R (b) S ");  // as /proc shows it, too
    id = thread_id();
    while (run) {
    }
    char byte;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
  });
  EXPECT_TRUE(eventually([&] { return id != 0; }));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(thread_activity(id).runnable);
  run = false;
  EXPECT_TRUE(eventually([&] { return !thread_activity(id).runnable; }));
  const uint64_t ran = thread_activity(id).ran_ns;
  EXPECT_GT(ran, 0);
  EXPECT_EQ(thread_activity(id).ran_ns, ran);
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  other.join();
  EXPECT_FALSE(thread_activity(id).runnable);
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace uwarp
