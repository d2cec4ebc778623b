// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The explorer finds what it should: checked with protocols that are known to be right or wrong.
#include "model/explorer.h"

#include <gtest/gtest.h>

#include <mutex>
#include <stdexcept>

namespace uwarp::model {
namespace {

// Two threads increment a counter in two steps each.
struct LostUpdate : Scenario {
  void start(Threads& threads) override {
    for (const char* name : {"one", "two"})
      threads.add(name, [this] { count.store(count.load() + 1); });
  }
  void finish() override { check(count.peek() == 2, "an update is lost"); }
  Atomic<int> count{0};
};

TEST(Explorer, FindsALostUpdate) {
  expect_found<LostUpdate>({"lost update", "", 1}, "an update is lost");
}

TEST(Explorer, TriesAllOrders) {
  struct Counted : Scenario {
    void start(Threads& threads) override {
      for (const char* name : {"one", "two"})
        threads.add(name, [this] {
          a.fetch_add(1);
          a.fetch_add(1);
        });
    }
    Atomic<int> a{0};
  };
  const auto make = [] { return std::make_unique<Counted>(); };
  const Outcome none = explore({"", "", 0}, make);
  EXPECT_EQ(none.finding, "");
  EXPECT_EQ(none.interleavings, 2u);
  // All merges of two sequences of three steps, as the start of a thread is a step too: "6 over 3"
  // is 20.
  const Outcome all = explore({"", "", 9}, make);
  EXPECT_TRUE(all.complete);
  EXPECT_EQ(all.interleavings, 20u);
}

// Dekker's algorithm. It needs sequential consistency, which the model has.
struct Dekker : Scenario {
  explicit Dekker(bool broken) : broken(broken) {}
  void start(Threads& threads) override {
    for (const int me : {0, 1})
      threads.add(me == 0 ? "one" : "two", [this, me] {
        if (!broken) wants[me].store(true);
        if (!wants[1 - me].load()) {
          if (broken) wants[me].store(true);
          const auto inside = section.enter();
        }
      });
  }
  const bool broken;
  Atomic<bool> wants[2] = {false, false};
  Section section;
};

TEST(Explorer, KnowsMutualExclusion) {
  expect_holds<Dekker>({"Dekker's flags", "One thread at a time gets in.", 4}, false);
  expect_found<Dekker>({"Dekker's flags", ""}, "two threads in a section", true);
}

struct Sleeper : Scenario {
  explicit Sleeper(bool forgets) : forgets(forgets) {}
  void start(Threads& threads) override {
    threads.add("sleeper", [this] { ready.wait(0); });
    threads.add("waker", [this] {
      ready.store(1);
      if (!forgets) ready.notify_one();
    });
  }
  const bool forgets;
  Atomic<int> ready{0};
};

TEST(Explorer, FindsALostWakeUp) {
  expect_holds<Sleeper>({"wait and notify", "The sleeper wakes.", 4}, false);
  expect_found<Sleeper>({"wait and notify", ""}, "all sleep: sleeper waits", true);
}

struct CrossedLocks : Scenario {
  void start(Threads& threads) override {
    threads.add("one", [this] {
      const std::scoped_lock first(a);
      const std::scoped_lock second(b);
    });
    threads.add("two", [this] {
      const std::scoped_lock first(b);
      const std::scoped_lock second(a);
    });
  }
  Mutex a, b;
};

TEST(Explorer, FindsADeadlock) { expect_found<CrossedLocks>({"crossed locks", ""}, "all sleep"); }

struct LateUse : Scenario {
  void start(Threads& threads) override {
    threads.add("user", [this] {
      if (!gone.load()) count.raw()->fetch_add(1);
    });
    threads.add("owner", [this] {
      gone.store(true);
      count.destroy();
    });
  }
  Atomic<bool> gone{false};
  Object<Atomic<int>> count{0};
};

TEST(Explorer, FindsALateUse) { expect_found<LateUse>({"late use", ""}, "use after free"); }

struct Race : Scenario {
  void start(Threads& threads) override {
    threads.add("one", [this] { data = 1; });
    threads.add("two", [this] { data = 2; });
  }
  Plain<int> data;
};

TEST(Explorer, FindsADataRace) { expect_found<Race>({"race", ""}, "data race"); }

// Each thread waits in a loop, so neither may be run for ever.
struct Spinners : Scenario {
  explicit Spinners(bool both_wait) : both_wait(both_wait) {}
  void start(Threads& threads) override {
    threads.add("one", [this] {
      while (turn.load() != 1) yield();
      turn.store(2);
    });
    threads.add("two", [this] {
      if (!both_wait) turn.store(1);
      while (turn.load() != 2) yield();
    });
  }
  const bool both_wait;
  Atomic<int> turn{0};
};

TEST(Explorer, WaitingLoopsEnd) {
  expect_holds<Spinners>({"spinners", "Waiting loops end.", 3}, false);
  expect_found<Spinners>({"spinners", ""}, "all sleep", true);
}

// One thread throws and catches an exception while the other's exception is on its way.
struct Throwers : Scenario {
  void start(Threads& threads) override {
    for (const char* name : {"one", "two"})
      threads.add(name, [this, name] {
        try {
          count.fetch_add(1);
          throw std::runtime_error(name);
        } catch (const std::runtime_error& error) {
          count.fetch_add(1);
          check(std::string(error.what()) == name, "caught what another thread has thrown");
        }
      });
  }
  void finish() override { check(count.peek() == 4, "count"); }
  Atomic<int> count{0};
};

TEST(Explorer, ExceptionsStayInTheirThread) {
  expect_holds<Throwers>({"exceptions", "Each thread catches its own.", 4});
}

struct Chooser : Scenario {
  void start(Threads& threads) override {
    threads.add("one", [] { check(choose(3) != 2, "the third"); });
  }
};

TEST(Explorer, TriesEveryChoice) { expect_found<Chooser>({"choices", "", 0}, "the third"); }

}  // namespace
}  // namespace uwarp::model
