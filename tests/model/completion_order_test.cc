// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/receive/inbound_stream.h: one thread sends, another receives the answers.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/explorer.h"
#include "qp/receive/inbound_stream.h"

namespace uwarp::model {
namespace {

enum class OrderFault { kNone, kAsksLate, kNotesLate, kDropsTheEnd, kLooksFirst };

/// When a request is complete: when the kernel has its bytes, when the peer has acknowledged them,
/// or when the peer has read them from our memory.
enum class Completes { kWithKernel, kAcknowledged, kRead };

// The part of SendCompleter that is modelled.
struct ModelSender {
  ModelSender(OrderFault fault, bool lends) : fault(fault), lends(lends) {}
  RetireRequest& retire_request() { return wish; }
  bool in_flight() const { return true; }
  void retire() {
    if (fault == OrderFault::kLooksFirst) look();
    uint32_t asked = wish.asked();
    if (fault != OrderFault::kLooksFirst && !wish.granted(asked)) look();
    completed.store(std::min(sent, acknowledged.load()));
    if (fault == OrderFault::kAsksLate) asked = wish.asked();
    wish.grant(asked);
  }
  void look() {
    if (lends) sent = read.load();
  }
  const OrderFault fault;
  const bool lends;
  RetireRequest wish;
  int sent = 0;  // guarded by the side
  Atomic<int> read{0};
  Atomic<int> acknowledged{1'000'000};
  Atomic<int> completed{0};
};

struct Answers : Scenario {
  explicit Answers(int messages, bool helper, Completes completes,
                   OrderFault fault = OrderFault::kNone)
      : messages(messages), helper(helper), completes(completes), fault(fault) {
    if (completes == Completes::kAcknowledged) sender.acknowledged.store(0);
  }

  void start(Threads& threads) override {
    threads.add("poster", [this] {
      for (int i = 0; i < messages; ++i) {
        posted.fetch_add(1);
        transmit();
      }
    });
    if (helper) threads.add("helper", [this] { transmit(); });
    threads.add("receiver", [this] {
      for (int answer = 1; answer <= messages; ++answer) {
        block_until([&] { return with_peer.peek() >= answer; }, "answer");
        // Like Stream::receive().
        order.begin();
        if (completes == Completes::kAcknowledged) sender.acknowledged.store(answer);
        if (completes == Completes::kRead) sender.read.store(answer);
        if (completes != Completes::kWithKernel) order.note_acknowledged();
        const bool again = order.complete_sent() == AfterTurn::kCheckAgain;
        check(sender.completed.load() >= answer, "an answer comes before what it answers");
        if (again && fault != OrderFault::kDropsTheEnd) transmit();
      }
    });
  }
  void transmit() {
    while (auto turn = side.begin()) {
      int late = 0;
      while (with_peer.load() != posted.load()) {
        // The send call: from now on the peer may answer.
        const int now = with_peer.fetch_add(1) + 1;
        if (fault == OrderFault::kNotesLate) {
          late = now;
          continue;
        }
        if (completes != Completes::kRead) sender.sent = now;
        sender.retire();
      }
      if (late != 0) {
        const AfterTurn after = turn.end();
        sender.sent = late;
        sender.retire();
        if (after == AfterTurn::kNothing) return;
      } else if (turn.end() == AfterTurn::kNothing) {
        return;
      }
    }
  }
  void finish() override { check(with_peer.peek() == posted.peek(), "work is left behind"); }

  const int messages;
  const bool helper;
  const Completes completes;
  const OrderFault fault;
  HandoffLock side;
  Atomic<int> posted{0}, with_peer{0};
  ModelSender sender{fault, completes == Completes::kRead};
  BasicCompletionOrder<ModelSender> order{side, sender};
};

constexpr Property kOrder{"Completion order",
                          "The completion of a Send is stored before that of the answer to it.", 3};

TEST(CompletionOrderModel, SendsCompleteFirst) {
  expect_holds<Answers>(kOrder, 1, false, Completes::kWithKernel);
  expect_holds<Answers>(kOrder, 2, false, Completes::kWithKernel);
  expect_holds<Answers>(kOrder, 2, false, Completes::kAcknowledged);
  expect_holds<Answers>(kOrder, 2, false, Completes::kRead);
  expect_holds<Answers>(kOrder, 1, true, Completes::kWithKernel);
}

TEST(CompletionOrderModel, FindsSwappedOrders) {
  const auto expect_swapped = [](Completes completes, OrderFault fault) {
    expect_found<Answers>(kOrder, "before what it answers", 1, false, completes, fault);
  };
  expect_swapped(Completes::kAcknowledged, OrderFault::kAsksLate);
  expect_swapped(Completes::kWithKernel, OrderFault::kNotesLate);
  expect_swapped(Completes::kRead, OrderFault::kLooksFirst);
  expect_found<Answers>(kOrder, "all sleep", 2, false, Completes::kWithKernel,
                        OrderFault::kDropsTheEnd);
}

}  // namespace
}  // namespace uwarp::model
