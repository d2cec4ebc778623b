// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/thread_own.h"

#include <gtest/gtest.h>

#include <thread>

namespace uwarp {
namespace {

/// Records whether it has been destroyed.
struct Value {
  ~Value() { number = -1; }
  int number = 0;
};

struct Seen {
  int before = -2, at_end = -2, after_end = -2;
};

/// Like a thread-local object of the application: older than ours, so destroyed later.
struct Older {
  ~Older() {
    seen->at_end = thread_own<Value>().number;
    thread_own<Value>().number = 7;
    seen->after_end = thread_own<Value>().number;
  }
  Seen* seen;
};

TEST(ThreadOwn, IsEmptyButAliveAtTheEndOfTheThread) {
  Seen seen;
  std::thread([&] {
    static thread_local Older older{&seen};
    thread_own<Value>().number = 5;
    seen.before = thread_own<Value>().number;
  }).join();
  EXPECT_EQ(seen.before, 5);
  EXPECT_EQ(seen.at_end, 0);
  EXPECT_EQ(seen.after_end, 7);
}

TEST(ThreadOwn, EachThreadHasItsOwn) {
  thread_own<Value>().number = 1;
  std::thread([] {
    EXPECT_EQ(thread_own<Value>().number, 0);
    thread_own<Value>().number = 2;
  }).join();
  EXPECT_EQ(thread_own<Value>().number, 1);
}

}  // namespace
}  // namespace uwarp
