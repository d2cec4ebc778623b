// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The types of process-wide and thread-wide state, seen from a forked child.
#include "base/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "base/fact.h"
#include "base/inherited.h"
#include "base/process_lock.h"
#include "base/process_own.h"
#include "base/serial_numbers.h"
#include "base/thread_own.h"

namespace uwarp {
namespace {

/// Runs `look` in a child; true if it returns true there.
template <typename Look>
bool in_child(const Look& look) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(look() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

struct Guarded {
  std::mutex mutex;
  int value = 0;
};

/// Holds a lock in a thread of its own, which a child does not have.
template <typename Lock>
class Holder {
 public:
  explicit Holder(Lock& lock)
      : thread_([&lock, this] {
          const std::lock_guard guard(lock);
          holds_.store(true);
          holds_.notify_one();
          ends_.wait(false);
        }) {
    holds_.wait(false);
  }
  ~Holder() {
    ends_.store(true);
    ends_.notify_one();
    thread_.join();
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

 private:
  std::atomic<bool> holds_{false}, ends_{false};
  std::thread thread_;
};

TEST(Fork, IsCountedInTheChild) {
  const uint32_t before = fork_generation();
  const BirthProcess made;
  EXPECT_TRUE(made.is_this());
  EXPECT_TRUE(in_child([&] {
    return fork_generation() == before + 1 && !made.is_this() && BirthProcess().is_this() &&
           in_child([&] { return fork_generation() == before + 2 && !made.is_this(); });
  }));
  EXPECT_EQ(fork_generation(), before);
}

constinit ProcessOwn<Guarded> guarded;

TEST(Fork, AChildMakesItsOwnObjects) {
  Guarded& parents = guarded.get();
  parents.value = 7;
  const Holder holder(parents.mutex);
  EXPECT_TRUE(in_child([&] {
    if (guarded.find() != nullptr || guarded.of_parent() != &parents) return false;
    Guarded& own = guarded.get();
    const std::lock_guard guard(own.mutex);  // not the one that is held
    return &own != &parents && own.value == 0 && guarded.find() == &own &&
           guarded.of_parent() == nullptr && parents.value == 7;
  }));
  EXPECT_EQ(guarded.find(), &parents);
  EXPECT_EQ(guarded.of_parent(), nullptr);
}

TEST(Fork, AChildDestroysNothingOfItsParents) {
  static constinit ProcessOwn<std::string> text;
  text.get() = "a text that is too long to be kept in place";
  const std::string* const parents = text.find();
  EXPECT_TRUE(in_child([&] {
    text.destroy();
    return parents->size() > 40 && text.find() == nullptr && text.get().empty();
  }));
  EXPECT_EQ(text.find(), parents);
  text.destroy();
  EXPECT_EQ(text.find(), nullptr);
}

struct Kept {
  std::weak_ptr<int> object;
  int value = 0;
};

TEST(Fork, AThreadOfAChildBeginsEmpty) {
  const auto object = std::make_shared<int>(1);
  thread_own<Kept>() = {object, 5};
  EXPECT_TRUE(in_child([&] {
    if (thread_own<Kept>().value != 0 || !thread_own<Kept>().object.expired()) return false;
    thread_own<Kept>().value = 6;
    return in_child([] { return thread_own<Kept>().value == 0; }) && thread_own<Kept>().value == 6;
  }));
  EXPECT_EQ(thread_own<Kept>().value, 5);
  EXPECT_EQ(thread_own<Kept>().object.lock(), object);
}

TEST(Fork, AChildFindsAProcessLockFree) {
  static constinit ProcessLock lock;
  {
    const Holder holder(lock);
    EXPECT_FALSE(lock.try_lock());
    EXPECT_TRUE(in_child([&] {
      if (!lock.try_lock() || lock.try_lock()) return false;
      lock.unlock();
      return lock.try_lock();
    }));
    EXPECT_FALSE(lock.try_lock());
  }
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

// A signal handler may have forked while the thread held it: the child then lets go of it twice.
TEST(Fork, AChildMayGiveBackItsParentsLock) {
  static constinit ProcessLock lock;
  lock.lock();
  EXPECT_TRUE(in_child([&] {
    lock.lock();
    lock.unlock();
    lock.unlock();
    return lock.try_lock() && !lock.try_lock();
  }));
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
}

TEST(Fork, AChildGoesOnWithValuesFactsAndNumbers) {
  static constinit Inherited<std::string> value;
  static constinit Fact<uint32_t> number;
  static constinit Fact<std::string> text;
  static constinit SerialNumbers<uint32_t> numbers(10);
  EXPECT_EQ(value.copy(), "");
  value.replace("first");
  value.replace("second");
  EXPECT_EQ(number.get([] { return 0u; }), 0u);
  EXPECT_EQ(text.get([] { return std::string("found"); }), "found");
  EXPECT_EQ(numbers.next(), 10u);
  EXPECT_TRUE(in_child([&] {
    return value.copy() == "second" && number.get([] { return 1u; }) == 0 &&
           text.get([] { return std::string("again"); }) == "found" && numbers.next() == 11;
  }));
  EXPECT_EQ(numbers.next(), 11u);
}

int runs = 0;
const InForkedChild count_runs([] { ++runs; });

TEST(Fork, FunctionsRunInEachChild) {
  const int before = runs;
  EXPECT_TRUE(in_child([&] { return runs == before + 1; }));
  EXPECT_EQ(runs, before);
}

}  // namespace
}  // namespace uwarp
