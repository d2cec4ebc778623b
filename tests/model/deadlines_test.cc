// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The deadline heap and the thread that sleeps until the earliest of its deadlines.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/explorer.h"
#include "progress/deadline_heap.h"

// Mutant looks_before_it_says: progress/deadline_heap.h progress/deadline_heap.cc
// - sleeping_until_ns_.store(tick_ns - late_ns);
// - const uint64_t due = std::max(earliest_ns_.load(), now_ns);
// + const uint64_t due = std::max(earliest_ns_.load(), now_ns);
// + sleeping_until_ns_.store(tick_ns - late_ns);
//
// Mutant asks_before_it_publishes: progress/deadline_heap.h progress/deadline_heap.cc
// - publish_earliest_locked();
// - return first_ == &source && deadline_ns < sleeping_until_ns_.load();
// + const uint64_t until = sleeping_until_ns_.load();
// + publish_earliest_locked();
// + return first_ == &source && deadline_ns < until;
//
// Mutant keeps_the_later_place: progress/deadline_heap.h progress/deadline_heap.cc
// - if (place.key_ns != 0) take_out_locked(source);
// + if (place.key_ns != 0) return false;
//
// Mutant forgets_to_leave: progress/deadline_heap.h progress/deadline_heap.cc
// - if (source.deadline_.key_ns == 0) return;
// + if (source.deadline_.key_ns != 0) return;
#include "mutants/deadlines_test.h"

namespace uwarp::model {
namespace {

struct Timed : Source {
  bool ready(uint32_t) override { return false; }
  void deadline_passed() override { alive.touch("deadline_passed"); }
  Alive alive;
  uint64_t limit_ns = 0;  // when it must have been served
  bool served = false;
};

/// One deadline is moved forward and another is set while the helper thread goes to sleep. Time
/// passes only while it sleeps and no thread is setting a deadline.
template <class Heap>
struct Sleeper : Scenario {
  void start(Threads& threads) override {
    threads.add("helper", [this] { sleep_and_serve(); });
    threads.add("mover", [this] {
      set(*moved, 100);
      set(*moved, 10);
    });
    threads.add("setter", [this] { set(*other, 50); });
  }

  void set(Timed& source, uint64_t deadline_ns) {
    ++setting;
    point("sets");
    if (!source.served) {
      source.limit_ns = std::max(deadline_ns, now_ns);
      if (heap.set(source, deadline_ns)) woken = true;
    }
    --setting;
    note_change();
  }
  void sleep_and_serve() {
    while (!moved->served || !other->served) {
      const uint64_t until = heap.begin_sleep(0, Heap::kNever, 0);
      block_until(
          [&] { return woken || (until <= now_ns || (until != Heap::kNever && setting == 0)); },
          "a deadline");
      if (!woken) now_ns = std::max(now_ns, until);
      woken = false;
      heap.end_sleep();
      while (const auto due = heap.take_due(now_ns)) {
        auto& source = static_cast<Timed&>(*due);
        check(now_ns <= source.limit_ns, "a deadline is served late");
        source.served = true;
      }
    }
  }

  Heap heap;
  std::shared_ptr<Timed> moved = std::make_shared<Timed>(), other = std::make_shared<Timed>();
  uint64_t now_ns = 0;
  int setting = 0;
  bool woken = false;
};

constexpr Property kSleeper{"deadlines, sleep",
                            "A deadline that is set or moved forward while the helper thread goes "
                            "to sleep is served in time.",
                            3};

/// A source is removed while its deadline is due.
template <class Heap>
struct End : Scenario {
  void start(Threads& threads) override {
    heap.set(*source, 10);
    heap.set(*other, 20);
    threads.add("server", [this] {
      while (const auto due = heap.take_due(10)) due->deadline_passed();
    });
    threads.add("owner", [this] { source.reset(); });
    threads.add("mover", [this] { heap.set(*other, 5); });
  }
  void finish() override {
    check(heap.first_ == nullptr || heap.first_ == other.get(), "the heap holds what has ended");
  }

  Heap heap;
  std::shared_ptr<Timed> source = make_shared<Timed>(), other = std::make_shared<Timed>();
};

constexpr Property kEnd{
    "deadlines, end",
    "No deadline of a source is served after the source has ended, and the heap "
    "does not keep it alive.",
    3};

using Heap = DeadlineHeap;

TEST(Deadlines, TheEarliestAlwaysWakes) {
  expect_holds<Sleeper<Heap>>(kSleeper);
  expect_found<Sleeper<looks_before_it_says::DeadlineHeap>>(kSleeper, "");
  expect_found<Sleeper<asks_before_it_publishes::DeadlineHeap>>(kSleeper, "");
  expect_found<Sleeper<keeps_the_later_place::DeadlineHeap>>(kSleeper, "late");
}

TEST(Deadlines, SourcesLeaveAsTheyEnd) {
  expect_holds<End<Heap>>(kEnd);
  expect_found<End<forgets_to_leave::DeadlineHeap>>(kEnd, "");
}

}  // namespace
}  // namespace uwarp::model
