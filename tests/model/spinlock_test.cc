// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// base/spinlock.h: every sleeper is woken, with one count of sleepers for all locks.
#include "base/spinlock.h"

#include <gtest/gtest.h>

#include <mutex>

#include "model/explorer.h"

// Without the check that a futex call begins with.
// Mutant counts_late: base/spinlock.h
// - Atomics::sleep_while(locked_, uint32_t{1});
// + {
// + if (!is_locked()) continue;
// + Atomics::sleepers.fetch_add(1);
// + model::sleep_at(&locked_, "wake-up", model::Where::current());
// + Atomics::sleepers.fetch_sub(1);
// + }
//
// A flag that the waker clears, instead of a count.
// Mutant keeps_a_flag: base/spinlock.h
// - Atomics::wake_one(locked_);
// + if (Atomics::sleepers.load() == 0) return;
// + Atomics::sleepers.store(0);
// + locked_.notify_all();
// - Atomics::sleep_while(locked_, uint32_t{1});
// + {
// + Atomics::sleepers.store(1);
// + locked_.wait(1);
// + }
#include "mutants/spinlock_test.h"

namespace uwarp::model {
namespace {

template <class Lock>
struct Lockers : Scenario {
  explicit Lockers(int threads) : count(threads) {}
  void start(Threads& threads) override {
    static constexpr const char* kNames[] = {"one", "two", "three"};
    for (int i = 0; i < count; ++i)
      threads.add(kNames[i], [this] {
        const std::lock_guard guard(lock);
        const auto inside = section.enter();
      });
  }
  void finish() override {
    check(!lock.is_locked(), "still locked");
    check(Atomics::sleepers.peek() == 0, "sleepers are left");
  }
  const int count;
  Lock lock;
  Section section;
};

constexpr Property kSleepers{"SpinLock", "One holder at a time, and no sleeper is left behind.", 3};

TEST(SpinLockModel, NoSleeperIsLeftBehind) {
  expect_holds<Lockers<SpinLock>>(kSleepers, 2);
  expect_holds<Lockers<SpinLock>>(kSleepers, 3);
}

TEST(SpinLockModel, FindsASleeperThatIsCountedLate) {
  expect_found<Lockers<counts_late::SpinLock>>(kSleepers, "all sleep", 2);
}

TEST(SpinLockModel, FindsAFlagThatIsClearedForAnother) {
  expect_found<Lockers<keeps_a_flag::SpinLock>>(kSleepers, "all sleep", 3);
}

// The lock may be destroyed right after unlock() has stored, so unlock() must not touch it then.
struct LastHolder : Scenario {
  void start(Threads& threads) override {
    threads.add("user", [this] {
      const std::lock_guard guard(*lock.raw());
      done.store(true);
    });
    threads.add("owner", [this] {
      for (;;) {
        {
          const std::lock_guard guard(*lock);
          if (done.load()) break;
        }
        yield();
      }
      lock.destroy();
    });
  }
  Atomic<bool> done{false};
  Object<SpinLock> lock;
};

TEST(SpinLockModel, TheNextHolderMayDestroyIt) {
  expect_holds<LastHolder>(
      {"SpinLock's end", "Unlocking touches nothing that its next holder destroys.", 3});
}

}  // namespace
}  // namespace uwarp::model
