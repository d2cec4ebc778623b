// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Lock: when it takes a lock and gives it back; what a Mutex does while a thread waits.
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>

#include "base/spinlock.h"

namespace uwarp {
namespace {

template <class Lockable>
bool is_free(Lockable& lockable) {
  bool taken = false;
  std::thread([&] {
    taken = lockable.try_lock();
    if (taken) lockable.unlock();
  }).join();
  return taken;
}

template <class Lockable>
struct LockOf : testing::Test {
  Lockable lockable;
};
using Lockables = testing::Types<Mutex, SpinLock>;
TYPED_TEST_SUITE(LockOf, Lockables);

TYPED_TEST(LockOf, IsHeldForItsScope) {
  {
    const Lock lock(this->lockable);
    EXPECT_FALSE(is_free(this->lockable));
  }
  EXPECT_TRUE(is_free(this->lockable));
}

TYPED_TEST(LockOf, IsGivenUpAndTakenAgain) {
  {
    Lock lock(this->lockable);
    lock.unlock();
    EXPECT_TRUE(is_free(this->lockable));
    lock.lock();
    EXPECT_FALSE(is_free(this->lockable));
    lock.unlock();
  }
  EXPECT_TRUE(is_free(this->lockable)) << "given up once";
}

TYPED_TEST(LockOf, TakesOverWhatTheThreadHas) {
  ASSERT_TRUE(this->lockable.try_lock());
  {
    const Lock lock(this->lockable, std::adopt_lock);
    EXPECT_FALSE(is_free(this->lockable));
  }
  EXPECT_TRUE(is_free(this->lockable));
}

TYPED_TEST(LockOf, MayBeTakenLater) {
  {
    const Lock lock(this->lockable, std::defer_lock);
    EXPECT_TRUE(is_free(this->lockable));
  }
  {
    Lock lock(this->lockable, std::defer_lock);
    lock.lock();
    EXPECT_FALSE(is_free(this->lockable));
  }
  EXPECT_TRUE(is_free(this->lockable));
}

TYPED_TEST(LockOf, MayLeaveItLocked) {
  {
    Lock lock(this->lockable);
    lock.release();
  }
  EXPECT_FALSE(is_free(this->lockable));
  this->lockable.unlock();
}

TEST(Mutex, IsFreeWhileAThreadWaits) {
  Mutex mutex;
  std::condition_variable told;
  bool done = false;
  std::thread other;
  const Lock lock(mutex);
  other = std::thread([&] {
    const Lock theirs(mutex);
    done = true;
    told.notify_all();
  });
  while (!done) mutex.wait(told);
  EXPECT_FALSE(is_free(mutex));
  other.join();
}

}  // namespace
}  // namespace uwarp
