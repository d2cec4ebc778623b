// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// base/spinlock.h: every sleeper is woken, with one count of sleepers for all locks.
#include "base/spinlock.h"

#include <gtest/gtest.h>

#include <mutex>

#include "model/explorer.h"

namespace uwarp::model {
namespace {

template <class Atomics>
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
    check(ModelAtomics::sleepers.peek() == 0, "sleepers are left");
  }
  const int count;
  BasicSpinLock<Atomics> lock;
  Section section;
};

struct CountedLate : ModelAtomics {
  template <class T>
  static void sleep_while(const Atomic<T>& word, T value) {
    if (word.load() != value) return;
    sleepers.fetch_add(1);
    // Without the check that a futex call begins with.
    sleep_at(&word, "wake-up", Where::current());
    sleepers.fetch_sub(1);
  }
};

// A flag that the waker clears, instead of a count.
struct Flagged : ModelAtomics {
  template <class T>
  static void sleep_while(const Atomic<T>& word, T value) {
    sleepers.store(1);
    word.wait(value);
  }
  template <class T>
  static void wake_one(Atomic<T>& word) {
    if (sleepers.load() == 0) return;
    sleepers.store(0);
    word.notify_all();
  }
};

constexpr Property kSleepers{"SpinLock", "One holder at a time, and no sleeper is left behind.", 3};

TEST(SpinLockModel, NoSleeperIsLeftBehind) {
  expect_holds<Lockers<ModelAtomics>>(kSleepers, 2);
  expect_holds<Lockers<ModelAtomics>>(kSleepers, 3);
}

TEST(SpinLockModel, FindsASleeperThatIsCountedLate) {
  expect_found<Lockers<CountedLate>>(kSleepers, "all sleep", 2);
}

TEST(SpinLockModel, FindsAFlagThatIsClearedForAnother) {
  expect_found<Lockers<Flagged>>(kSleepers, "all sleep", 3);
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
  Object<BasicSpinLock<ModelAtomics>> lock;
};

TEST(SpinLockModel, TheNextHolderMayDestroyIt) {
  expect_holds<LastHolder>(
      {"SpinLock's end", "Unlocking touches nothing that its next holder destroys.", 3});
}

}  // namespace
}  // namespace uwarp::model
