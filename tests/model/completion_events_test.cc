// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A completion queue that is armed, polled and waited for while queue pairs store completions.
#include <gtest/gtest.h>

#include "model/explorer.h"
#include "qp/completion_queue.h"

// Mutant looks_before_it_arms: qp/completion_queue.h qp/completion_queue.cc
// - const Lock lock(producer_lock_);
// - if (!solicited_only) {
// + const uint64_t tail = tail_.load();
// + const Lock lock(producer_lock_);
// + if (!solicited_only) {
// - stored_end_ = armed_ == Armed::kAny ? tail_.load(std::memory_order_relaxed) : solicited_end_;
// + stored_end_ = armed_ == Armed::kAny ? tail : solicited_end_;
//
// Mutant stays_armed: qp/completion_queue.h qp/completion_queue.cc
// - armed_ = Armed::kNo;
// - held_back_ = 0;
// + held_back_ = 0;
//
// Mutant forgets_what_is_stored: qp/completion_queue.h qp/completion_queue.cc
// - stored_end_ = armed_ == Armed::kAny ? tail_.load(std::memory_order_relaxed) : solicited_end_;
// + stored_end_ = head_.load();
//
// Mutant weakens_a_wish: qp/completion_queue.h qp/completion_queue.cc
// - } else if (armed_ == Armed::kNo) {
// + } else {
//
// Mutant forgets_the_error: qp/completion_queue.h qp/completion_queue.cc
// - const bool at_once = solicited || completion.status != WcStatus::kSuccess;
// + const bool at_once = solicited;
#include "mutants/completion_events_test.h"

namespace uwarp::model {
namespace {

WorkCompletion completion(WcStatus status) {
  WorkCompletion one{};
  one.status = status;
  return one;
}

/// The consumer arms, may poll, and waits, until it has both completions. Two queue pairs store one
/// completion each.
template <class Queue, class Notifier>
struct Consumer : Scenario {
  struct Events final : Notifier {
    void completion_event() override {
      ++events;
      ++raised;
      note_change();
    }
    void completion_overrun() override { fail("overrun", Where::current()); }
    int events = 0, raised = 0;
  };

  explicit Consumer(bool solicited_only) : solicited_only(solicited_only) {}
  void start(Threads& threads) override {
    threads.add("consumer", [this] {
      const bool wakes_twice = solicited_only && choose(2) == 1;
      while (got < 2) {
        // If the queue is armed for any completion, arming it for solicited ones changes nothing.
        if (wakes_twice) arm(false);
        const bool stored = arm(solicited_only);
        // The consumer may poll, perhaps finding all, or wait at once.
        if (choose(2) == 0) poll();
        if (got == 2) break;
        // If only solicited completions and errors raise the event, it waits for the error. The
        // other completion may come before or after.
        if (solicited_only && !wakes_twice && failed_taken) break;
        if (stored) queue.raise_stored();  // ChannelWait
        block_until([this] { return notifier.events != 0; }, "an event");
        --notifier.events;
        poll();
      }
    });
    threads.add("succeeds", [this] { queue.push(completion(WcStatus::kSuccess), false); });
    threads.add("fails", [this] { queue.push(completion(WcStatus::kWrFlushErr), false); });
  }
  bool arm(bool solicited) {
    ++armings;
    return queue.arm(solicited);
  }
  void poll() {
    WorkCompletion one;
    while (queue.poll(&one, 1) == 1) {
      ++got;
      if (one.status != WcStatus::kSuccess) failed_taken = true;
    }
  }
  void finish() override { check(notifier.raised <= armings, "two events for one arming"); }

  const bool solicited_only;
  Events notifier;
  Queue queue{4, &notifier};
  int got = 0, armings = 0;
  bool failed_taken = false;
};

constexpr Property kAny{"completion events",
                        "A thread that arms a queue and waits is woken by a completion, new or "
                        "already stored, and once for each arming.",
                        2};
constexpr Property kSolicited{
    "completion events, solicited",
    "The same for completions that are solicited or failed; a queue armed "
    "for any completion stays so.",
    2};

using Queue = Consumer<CompletionQueue, CompletionNotifier>;
#define MUTANT(name) Consumer<name::CompletionQueue, name::CompletionNotifier>

TEST(CompletionEvents, NoneIsLostAndNoneComesTwice) {
  expect_holds<Queue>(kAny, false);
  expect_found<MUTANT(looks_before_it_arms)>(kAny, "all sleep", false);
  expect_found<MUTANT(stays_armed)>(kAny, "two events", false);
  expect_found<MUTANT(forgets_what_is_stored)>(kAny, "all sleep", false);
}

TEST(CompletionEvents, SolicitedAndFailedOnes) {
  expect_holds<Queue>(kSolicited, true);
  expect_found<MUTANT(weakens_a_wish)>(kSolicited, "all sleep", true);
  expect_found<MUTANT(forgets_the_error)>(kSolicited, "all sleep", true);
}

}  // namespace
}  // namespace uwarp::model
