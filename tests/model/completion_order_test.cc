// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/completion_order.h: one thread sends, another receives the answers.
#include "qp/completion_order.h"

#include <gtest/gtest.h>

#include "model/explorer.h"

namespace uwarp::model {
namespace {

enum class OrderFault { kNone, kAsksLate, kNotesLate, kDropsTheEnd };

// What Transmitter has of it.
struct ModelSender {
  explicit ModelSender(OrderFault fault) : fault(fault) {}
  BasicRetireWish<ModelAtomics>& retire_wish() { return wish; }
  void settle(bool, bool) { retire(); }
  void retire() {
    uint32_t asked = wish.asked();
    completed.store(sent);
    if (fault == OrderFault::kAsksLate) asked = wish.asked();
    wish.grant(asked);
  }
  const OrderFault fault;
  BasicRetireWish<ModelAtomics> wish;
  int sent = 0;  // under the side
  Atomic<int> completed{0};
};

struct Answers : Scenario {
  explicit Answers(int messages, bool helper, OrderFault fault = OrderFault::kNone)
      : messages(messages), helper(helper), fault(fault) {}

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
        // As Stream::receive().
        const bool again = order.complete_sent(false) == AfterTurn::kLookAgain;
        check(sender.completed.load() >= answer, "an answer comes before what it answers");
        if (again && fault != OrderFault::kDropsTheEnd) transmit();
      }
    });
  }
  void transmit() {
    while (auto turn = side.begin()) {
      int late = 0;
      while (with_peer.load() != posted.load()) {
        const int now = with_peer.fetch_add(1) + 1;  // the send call: the peer may answer
        if (fault == OrderFault::kNotesLate) {
          late = now;
          continue;
        }
        sender.sent = now;
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
  const OrderFault fault;
  BasicHandoffLock<ModelAtomics> side;
  Atomic<int> posted{0}, with_peer{0};
  ModelSender sender{fault};
  BasicCompletionOrder<ModelSender, ModelAtomics> order{side, sender};
};

constexpr Property kOrder{"Completion order",
                          "The completion of a Send is stored before that of its answer.", 3};

TEST(CompletionOrderModel, SendsCompleteFirst) {
  expect_holds<Answers>(kOrder, 1, false);
  expect_holds<Answers>(kOrder, 2, false);
  expect_holds<Answers>(kOrder, 1, true);
}

TEST(CompletionOrderModel, FindsSwappedOrders) {
  expect_found<Answers>(kOrder, "before what it answers", 1, false, OrderFault::kAsksLate);
  expect_found<Answers>(kOrder, "before what it answers", 1, false, OrderFault::kNotesLate);
  expect_found<Answers>(kOrder, "work is left behind", 2, false, OrderFault::kDropsTheEnd);
}

}  // namespace
}  // namespace uwarp::model
