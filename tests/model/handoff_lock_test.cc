// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/handoff_lock.h: no work is left behind, and only one thread at a time has the side.
#include "qp/handoff_lock.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "model/explorer.h"

// The mark hands the work over. Here a thread only looks whether the side is still taken.
// Mutant forgets_the_mark: qp/handoff_lock.h
// - } else if (change(seen, seen | kMarked)) {
// + } else if ((seen = state_.load()) == kTaken) {
//
// Mutant wakes_one: qp/handoff_lock.h
// - if ((before & kSleeper) != 0) state_.notify_all();
// + if ((before & kSleeper) != 0) state_.notify_one();
#include "mutants/handoff_lock_test.h"

namespace uwarp::model {
namespace {

using Side = HandoffLock;

// Threads that post. The thread that gets the side does all that is posted, like
// Stream::transmit().
struct Posters : Scenario {
  enum class Fault { kNone, kEndIsIgnored, kTriesOnly, kPostsLate };
  Posters(int posters, bool exclusive, Fault fault = Fault::kNone)
      : posters(posters), exclusive(exclusive), fault(fault) {}

  void start(Threads& threads) override {
    static constexpr const char* kNames[] = {"one", "two", "three"};
    for (int i = 0; i < posters; ++i) threads.add(kNames[i], [this] { post(); });
    if (exclusive)
      threads.add("flush", [this] {
        const auto held = side.lock_exclusive();
        const auto inside = section.enter();
      });
  }
  void post() {
    if (fault != Fault::kPostsLate) posted.fetch_add(1);
    while (auto turn = fault == Fault::kTriesOnly ? side.try_begin() : side.begin()) {
      {
        const auto inside = section.enter();
        done += posted.exchange(0);
      }
      if (turn.end() == AfterTurn::kNothing || fault == Fault::kEndIsIgnored) break;
    }
    if (fault == Fault::kPostsLate) posted.fetch_add(1);
  }
  void finish() override {
    check(!side.taken(), "still taken");
    check(posted.peek() == 0 && done == posters, "work is left behind");
  }

  const int posters;
  const bool exclusive;
  const Fault fault;
  Side side;
  Section section;
  Atomic<int> posted{0};
  int done = 0;
};

constexpr Property kPosters{
    "HandoffLock", "One thread at a time has the side, and nothing that was posted is left behind.",
    3};

TEST(HandoffLockModel, NothingIsLeftBehind) {
  expect_holds<Posters>(kPosters, 2, false);
  expect_holds<Posters>(kPosters, 3, false);
  expect_holds<Posters>(kPosters, 2, true);
}

TEST(HandoffLockModel, FindsFaultsOfItsUsers) {
  expect_found<Posters>(kPosters, "work is left behind", 2, false, Posters::Fault::kEndIsIgnored);
  expect_found<Posters>(kPosters, "work is left behind", 2, false, Posters::Fault::kTriesOnly);
  expect_found<Posters>(kPosters, "work is left behind", 2, false, Posters::Fault::kPostsLate);
}

struct ForgottenMark : Scenario {
  void start(Threads& threads) override {
    for (const char* name : {"one", "two"})
      threads.add(name, [this] {
        posted.fetch_add(1);
        while (auto turn = side.begin()) {
          posted.exchange(0);
          if (turn.end() == forgets_the_mark::AfterTurn::kNothing) break;
        }
      });
  }
  void finish() override { check(posted.peek() == 0, "work is left behind"); }
  forgets_the_mark::HandoffLock side;
  Atomic<int> posted{0};
};

TEST(HandoffLockModel, FindsAForgottenMark) {
  expect_found<ForgottenMark>(kPosters, "work is left behind");
}

// Threads that wait for the side sleep; each end of a turn wakes them.
struct Holders : Scenario {
  void start(Threads& threads) override {
    threads.add("poller", [this] {
      if (auto turn = side.try_begin()) {
        { const auto inside = section.enter(); }
        (void)turn.end();
      }
    });
    for (const char* name : {"flush", "destroy"})
      threads.add(name, [this] {
        const auto held = side.lock_exclusive();
        const auto inside = section.enter();
      });
  }
  void finish() override { check(!side.taken(), "still taken"); }
  Side side;
  Section section;
};

TEST(HandoffLockModel, NoHolderSleepsForEver) {
  expect_holds<Holders>({"HandoffLock's sleepers", "Who waits for the side gets it.", 3});
}

struct TwoSleepers : Scenario {
  void start(Threads& threads) override {
    for (const char* name : {"one", "two", "three"})
      threads.add(name, [this] { const auto held = side.lock_exclusive(); });
  }
  wakes_one::HandoffLock side;
};

TEST(HandoffLockModel, FindsASleeperThatIsNotWoken) {
  expect_found<TwoSleepers>({"HandoffLock's sleepers", "", 3}, "all sleep");
}

// An exception ends a turn. The mark of another thread stays for the next turn.
struct Thrower : Scenario {
  void start(Threads& threads) override {
    threads.add("thrower", [this] {
      try {
        auto turn = side.begin();
        if (!turn) return;
        done += posted.exchange(0);
        point("throw");
        throw std::runtime_error("out of memory");
      } catch (const std::runtime_error&) {
      }
    });
    threads.add("poster", [this] {
      posted.fetch_add(1);
      serve();
    });
  }
  void serve() {
    while (auto turn = side.begin()) {
      done += posted.exchange(0);
      if (turn.end() == AfterTurn::kNothing) break;
    }
  }
  void finish() override {
    check(!side.taken(), "still taken");
    if (posted.peek() == 0) return;
    auto turn = side.try_begin();
    check(bool{turn}, "taken");
    check(turn.end() == AfterTurn::kCheckAgain, "the mark is lost");
  }
  Side side;
  Atomic<int> posted{0};
  int done = 0;
};

TEST(HandoffLockModel, AnExceptionLosesNoMark) {
  expect_holds<Thrower>({"HandoffLock and exceptions",
                         "The side is given back, and the mark of another is kept.", 4});
}

// The next holder may destroy the lock while the last one is still returning from it.
struct LastTurn : Scenario {
  void start(Threads& threads) override {
    threads.add("user", [this] {
      auto turn = side.raw()->begin();
      if (!turn) return;
      used.store(true);
      (void)turn.end();
    });
    threads.add("owner", [this] {
      while (!used.load()) yield();
      { const auto held = side->lock_exclusive(); }
      side.destroy();
    });
  }
  Atomic<bool> used{false};
  Object<Side> side;
};

TEST(HandoffLockModel, TheNextHolderMayDestroyIt) {
  expect_holds<LastTurn>(
      {"HandoffLock's end", "The end of a turn touches nothing that the next holder destroys.", 3});
}

}  // namespace
}  // namespace uwarp::model
