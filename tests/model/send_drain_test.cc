// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/stream_state.h: a queue pair enters SQD and asks for the event, while another thread sends and
// completes.
#include <gtest/gtest.h>

#include "model/explorer.h"
#include "qp/handoff_lock.h"
#include "qp/stream_state.h"

namespace uwarp::model {
namespace {

struct Drained : Scenario {
  enum class Fault { kNone, kNoTransmitSide, kDoesNotLook, kWishFollowsState };
  explicit Drained(bool resumed, Fault fault = Fault::kNone) : resumed(resumed), fault(fault) {}

  void start(Threads& threads) override {
    threads.add("poster", [this] {
      posted.fetch_add(1);
      transmit();
    });
    threads.add("progress", [this] {
      answers.fetch_add(1);
      transmit();
    });
    threads.add("modify", [this] {
      posted.fetch_add(1);
      to_sqd();
      if (resumed) {
        drain.end();
        ended = true;
      }
      transmit();
    });
  }

  // Like the transmitter: starts the requests that may start, and completes those that are
  // answered.
  void transmit() {
    while (auto turn = side.begin()) {
      retire();
      while (started.load() != posted.load() && !drain.paused()) started.fetch_add(1);
      retire();
      if (turn.end() == AfterTurn::kNothing) break;
    }
  }
  void retire() {
    while (retired.load() != started.load() && retired.load() < answers.load())
      retired.fetch_add(1);
    look();
  }
  void look() {
    if (!drain.due([this] { return retired.load() == started.load(); })) return;
    check(retired.peek() == started.peek(), "told too early");
    ++events;
  }
  void to_sqd() {
    if (fault == Fault::kNoTransmitSide) {
      drain.begin(true);
      if (retired.load() == started.load()) look();
      return;
    }
    if (fault == Fault::kWishFollowsState) {  // the old code
      drain.begin(false);
      const bool idle = retired.load() == started.load();
      if (idle) ++events;
      if (!idle) drain.begin(true);
      return;
    }
    const auto held = side.lock_exclusive();
    drain.begin(true);
    if (fault != Fault::kDoesNotLook) look();
  }
  void finish() override {
    check(events <= 1, "told twice");
    if (ended) return;
    // The other answers arrive.
    answers.store(2);
    const int before = started.peek();
    transmit();
    check(started.peek() == before, "a request has started in SQD");
    check(events == 1, "the application is not told");
  }

  const bool resumed;
  const Fault fault;
  HandoffLock side;
  SendDrain drain;
  Atomic<int> posted{0}, started{0}, retired{0}, answers{0};
  int events = 0;
  bool ended = false;
};

// In the other scenarios the calls after to_sqd() would notice the missed event too, so here
// nothing follows.
struct OnlyPaused : Drained {
  using Drained::Drained;
  void start(Threads& threads) override {
    threads.add("sender", [this] {
      posted.fetch_add(1);
      answers.fetch_add(1);
      transmit();
    });
    threads.add("modify", [this] { to_sqd(); });
  }
  void finish() override { check(events == 1 || retired.peek() != started.peek(), "not told"); }
};

constexpr Property kDrained{
    "SQD", "One event, when all started requests are complete, and none starts after it.", 2};

TEST(SendDrainModel, ReportedOnceAndInTime) {
  expect_holds<Drained>(kDrained, false);
  expect_holds<Drained>(kDrained, true);
  expect_holds<OnlyPaused>(kDrained, false);
}

TEST(SendDrainModel, FindsAMissedNotification) {
  expect_found<OnlyPaused>(kDrained, "told", false, Drained::Fault::kDoesNotLook);
  expect_found<OnlyPaused>(kDrained, "told", false, Drained::Fault::kWishFollowsState);
}

TEST(SendDrainModel, FindsADrainBesideTheTransmitSide) {
  expect_found<Drained>(kDrained, "told too early", false, Drained::Fault::kNoTransmitSide);
}

}  // namespace
}  // namespace uwarp::model
