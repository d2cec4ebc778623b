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
struct WaitingConnection : Scenario {
  enum class Fault { kNone, kNoSecondLook, kTellsFirst, kForgetsTheEnd };
  WaitingConnection(bool expires, bool ends, Fault fault = Fault::kNone)
      : expires(expires), ends(ends), fault(fault) {}

  struct Line : PendingDatagram {
    explicit Line(WaitingConnection& all) : all(all) {}
    void receive_came() override {
      const auto held = side.lock_exclusive();
      check(holds, "told without holding");
      holds = false;
      if (open) go_on();
    }
    // The caller has the side.
    void go_on() {
      while (!deliver()) {
        if (holds) return;
        holds = true;
        if (all.wait_for_receive()) return;
        holds = false;
      }
      open = false;
      if (holds && all.waiters.stop(*this)) holds = false;
    }
    // True if the datagram was taken, or if the queue pair no longer takes any.
    bool deliver() {
      RecvWqe receive;
      if (all.over.load()) return true;
      if (!all.queue.take(receive, registration)) {
        all.queue.cancel(registration);
        return false;
      }
      ++taken;
      return true;
    }
    void expire() {
      const auto held = side.lock_exclusive();
      open = false;
      if (holds && all.waiters.stop(*this)) holds = false;
    }
    WaitingConnection& all;
    HandoffLock side;
    ReceiveToken registration;
    bool open = true;
    bool holds = false;
    int taken = 0;
  };

  bool wait_for_receive() {
    return waiters.add(line, [&] {
      if (fault == Fault::kNoSecondLook) return false;
      return !queue.empty() || (over.load() && fault != Fault::kForgetsTheEnd);
    });
  }
  void start(Threads& threads) override {
    threads.add("line", [this] {
      const auto held = line->side.lock_exclusive();
      if (line->open) line->go_on();
    });
    threads.add("poster", [this] {
      if (fault == Fault::kTellsFirst) waiters.posted();
      check(queue.post(1, {}) == 0, "full");
      if (fault != Fault::kTellsFirst) waiters.posted();
    });
    if (expires) threads.add("patience", [this] { line->expire(); });
    if (ends)
      threads.add("end", [this] {
        over.store(true);
        waiters.notify_all();
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
  PendingDatagrams waiters;
  Atomic<bool> over{false};
  std::shared_ptr<Line> line = std::make_shared<Line>(*this);
};

// No thread posts a receive; the queue pair just ends.
struct EndingConnection : WaitingConnection {
  explicit EndingConnection(Fault fault = Fault::kNone) : WaitingConnection(false, true, fault) {}
  void start(Threads& threads) override {
    threads.add("line", [this] {
      const auto held = line->side.lock_exclusive();
      line->go_on();
    });
    threads.add("end", [this] {
      over.store(true);
      waiters.notify_all();
    });
  }
};

constexpr Property kHeld{"Held datagram",
                         "A held datagram goes on once there is a receive for it, or no queue "
                         "pair to wait for; its holder is told once.",
                         2};

TEST(PendingDatagramsModel, AHeldDatagramContinues) {
  for (const bool expires : {false, true})
    for (const bool ends : {false, true}) expect_holds<WaitingConnection>(kHeld, expires, ends);
  expect_holds<EndingConnection>(kHeld);
}

TEST(PendingDatagramsModel, FindsOneThatIsForgotten) {
  using Fault = WaitingConnection::Fault;
  expect_found<WaitingConnection>(kHeld, "held although", false, false, Fault::kNoSecondLook);
  expect_found<WaitingConnection>(kHeld, "held although", false, false, Fault::kTellsFirst);
  expect_found<EndingConnection>(kHeld, "held although", Fault::kForgetsTheEnd);
}

}  // namespace
}  // namespace uwarp::model
