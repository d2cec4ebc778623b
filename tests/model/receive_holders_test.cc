// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/datagram_queue_pair.h: a line holds a datagram because no receive is posted. An application
// posts one, the hold expires, and the queue pair may stop taking datagrams.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "model/explorer.h"
#include "qp/datagram_queue_pair.h"
#include "qp/handoff_lock.h"
#include "qp/receive_queue.h"

namespace uwarp::model {
namespace {

// The parts of DatagramQueuePair and TrunkConnection that are modelled, with one datagram to
// deliver.
struct HeldLine : Scenario {
  enum class Fault { kNone, kNoSecondLook, kTellsFirst, kForgetsTheEnd };
  HeldLine(bool expires, bool ends, Fault fault = Fault::kNone)
      : expires(expires), ends(ends), fault(fault) {}

  struct Line : DatagramHolder {
    explicit Line(HeldLine& all) : all(all) {}
    void receive_came() override {
      const auto held = side.hold();
      check(holds, "told without holding");
      holds = false;
      if (open) go_on();
    }
    // The caller has the side.
    void go_on() {
      while (!deliver()) {
        if (holds) return;
        holds = true;
        if (all.hold()) return;
        holds = false;
      }
      open = false;
      if (holds && all.holders.stop(*this)) holds = false;
    }
    // True if the datagram was taken, or if the queue pair no longer takes any.
    bool deliver() {
      RecvWqe receive;
      if (all.over.load()) return true;
      if (!all.queue.take(receive, ticket)) {
        all.queue.cancel(ticket);
        return false;
      }
      ++taken;
      return true;
    }
    void expire() {
      const auto held = side.hold();
      open = false;
      if (holds && all.holders.stop(*this)) holds = false;
    }
    HeldLine& all;
    HandoffLock side;
    ReceiveToken ticket;
    bool open = true;
    bool holds = false;
    int taken = 0;
  };

  bool hold() {
    return holders.hold(line, [&] {
      if (fault == Fault::kNoSecondLook) return false;
      return !queue.empty() || (over.load() && fault != Fault::kForgetsTheEnd);
    });
  }
  void start(Threads& threads) override {
    threads.add("line", [this] {
      const auto held = line->side.hold();
      if (line->open) line->go_on();
    });
    threads.add("poster", [this] {
      if (fault == Fault::kTellsFirst) holders.posted();
      check(queue.post(1, {}) == 0, "full");
      if (fault != Fault::kTellsFirst) holders.posted();
    });
    if (expires) threads.add("patience", [this] { line->expire(); });
    if (ends)
      threads.add("end", [this] {
        over.store(true);
        holders.tell();
      });
  }
  void finish() override {
    check(!line->open, "held although there is a receive");
    check(!line->holds && line.use_count() == 1, "still in line");
    if (!expires && !ends) check(line->taken == 1, "not taken");
  }

  const bool expires, ends;
  const Fault fault;
  ReceiveQueue queue{4, 1};
  ReceiveHolders holders;
  Atomic<bool> over{false};
  std::shared_ptr<Line> line = std::make_shared<Line>(*this);
};

// No thread posts a receive; the queue pair just ends.
struct EndingLine : HeldLine {
  explicit EndingLine(Fault fault = Fault::kNone) : HeldLine(false, true, fault) {}
  void start(Threads& threads) override {
    threads.add("line", [this] {
      const auto held = line->side.hold();
      line->go_on();
    });
    threads.add("end", [this] {
      over.store(true);
      holders.tell();
    });
  }
};

constexpr Property kHeld{"Held datagram",
                         "A held datagram goes on once there is a receive for it, or no queue "
                         "pair to wait for; its holder is told once.",
                         2};

TEST(ReceiveHoldersModel, AHeldDatagramContinues) {
  for (const bool expires : {false, true})
    for (const bool ends : {false, true}) expect_holds<HeldLine>(kHeld, expires, ends);
  expect_holds<EndingLine>(kHeld);
}

TEST(ReceiveHoldersModel, FindsOneThatIsForgotten) {
  using Fault = HeldLine::Fault;
  expect_found<HeldLine>(kHeld, "held although", false, false, Fault::kNoSecondLook);
  expect_found<HeldLine>(kHeld, "held although", false, false, Fault::kTellsFirst);
  expect_found<EndingLine>(kHeld, "held although", Fault::kForgetsTheEnd);
}

}  // namespace
}  // namespace uwarp::model
