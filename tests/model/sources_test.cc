// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sources that get edges and revisits while they are removed and end.
#include <gtest/gtest.h>

#include "model/explorer.h"
#include "progress/revisit_queue.h"
#include "progress/source_slots.h"

// Mutant keeps_the_generation: progress/source_slots.h
// - if (++slot->generation == 0) slot->generation = 1;
// + if (slot->generation == 0) slot->generation = 1;
//
// Mutant finds_by_index: progress/source_slots.h
// - return slot.generation == registration >> 32 && slot.fd >= 0 ? &slot : nullptr;
// + return slot.fd >= 0 ? &slot : nullptr;
//
// Mutant says_nothing: progress/revisit_queue.h
// - waiting_.store(true);
// - return true;
// + return waiting_.load();
//
// Mutant stays_marked: progress/revisit_queue.h
// - place.queued = false;
// + place.queued = first_ != nullptr || waiting_.load();
//
// Mutant forgets_to_leave: progress/revisit_queue.h
// - if (source.revisit_.queued) take_out_locked(source);
// + (void)source;
#include "mutants/sources_test.h"

namespace uwarp::model {
namespace {

struct Served : Source {
  bool ready(uint32_t) override {
    alive.touch("ready");
    point("in ready()");
    alive.touch("ready");
    ++calls;
    return false;
  }
  Alive alive;
  int calls = 0;
};

/// Two threads have the same event when the source is removed and another source takes its slot.
template <class Slots>
struct Removal : Scenario {
  void start(Threads& threads) override {
    registration = slots.add(*first, 1);
    for (const char* name : {"server", "helper"}) {
      threads.add(name, [this] {
        const bool late = removed;
        std::shared_ptr<Source> found;
        slots.find(
            1, [this](size_t) { return registration; }, &found);
        if (found == nullptr) return;
        check(!late, "found after remove()");
        found->ready(1);
      });
    }
    threads.add("owner", [this] {
      slots.remove(registration, [](int fd) { check(fd == 1, "another's descriptor"); });
      removed = true;
      first.reset();
      (void)slots.add(*second, 2);
    });
  }
  void finish() override {
    check(second->calls == 0, "called for the event of another");
    check(slots.slots_.size() == 1, "a slot is lost");
  }

  Slots slots;
  std::shared_ptr<Served> first = make_shared<Served>(), second = make_shared<Served>();
  uint64_t registration = 0;
  bool removed = false;
};

constexpr Property kRemoval{"removal of sources",
                            "A removed source is no longer found, a call that has begun keeps it "
                            "alive, and the next source "
                            "in its slot is not called in its place.",
                            4};

/// Two threads have work for one source; each asks for a revisit.
template <class Revisits>
struct Posts : Scenario {
  void start(Threads& threads) override {
    for (const char* name : {"one", "two"}) {
      threads.add(name, [this] {
        work.fetch_add(1);
        if (revisits.add(*source)) wake.store(true);
      });
    }
    threads.add("server", [this] {
      while (done != 2) {
        block_until([this] { return wake.peek(); }, "a revisit");
        wake.store(false);
        if (!revisits.waiting()) continue;
        std::shared_ptr<Source> found;
        if (revisits.take({&found, 1}) != 0) done += work.exchange(0);
      }
    });
  }
  Revisits revisits;
  std::shared_ptr<Served> source = std::make_shared<Served>();
  Atomic<int> work{0};
  Atomic<bool> wake{false};
  int done = 0;
};

constexpr Property kPosts{"revisits, work",
                          "Work that exists before a revisit is asked for is seen by a call that "
                          "begins afterwards.",
                          4};

/// A source ends while it stands in the middle of the queue of revisits.
template <class Revisits>
struct Ending : Scenario {
  void start(Threads& threads) override {
    (void)revisits.add(*first);
    threads.add("asks", [this] {
      if (const std::shared_ptr<Served> held = middle.lock()) (void)revisits.add(*held);
      (void)revisits.add(*last);
    });
    threads.add("server", [this] {
      for (int i = 0; i < 2; ++i) {
        std::shared_ptr<Source> found;
        if (revisits.take({&found, 1}) != 0 && found != nullptr) found->ready(0);
      }
    });
    threads.add("owner", [this] { owned.reset(); });
  }
  void finish() override {
    std::shared_ptr<Source> rest[3];
    check(revisits.first_ == nullptr || revisits.first_ == first.get() ||
              revisits.first_ == last.get(),
          "the queue holds what has ended");
    for (size_t i = 0, count = revisits.take(rest); i < count; ++i) rest[i]->ready(0);
    check(first->calls == 1 && last->calls == 1, "a revisit is lost or doubled");
    check(!revisits.waiting() && revisits.last_ == nullptr, "not empty");
  }
  Revisits revisits;
  std::shared_ptr<Served> first = std::make_shared<Served>(), last = std::make_shared<Served>();
  std::shared_ptr<Served> owned = make_shared<Served>();
  std::weak_ptr<Served> middle = owned;
};

constexpr Property kEnding{
    "revisits, end",
    "A source that ends leaves the queue, and its neighbours are called once each.", 3};

TEST(Sources, AreNotCalledInEachOthersPlace) {
  expect_holds<Removal<SourceSlots>>(kRemoval);
  expect_found<Removal<keeps_the_generation::SourceSlots>>(kRemoval, "");
  expect_found<Removal<finds_by_index::SourceSlots>>(kRemoval, "");
}

TEST(Sources, RevisitsAreNotLost) {
  expect_holds<Posts<RevisitQueue>>(kPosts);
  expect_found<Posts<says_nothing::RevisitQueue>>(kPosts, "all sleep");
  expect_found<Posts<stays_marked::RevisitQueue>>(kPosts, "");
}

TEST(Sources, EndWhileTheyWaitForARevisit) {
  expect_holds<Ending<RevisitQueue>>(kEnding);
  expect_found<Ending<forgets_to_leave::RevisitQueue>>(kEnding, "");
}

}  // namespace
}  // namespace uwarp::model
