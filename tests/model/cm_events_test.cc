// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The events of an rdma_cm channel, its eventfd, and readers that poll or block.
#include "rdma_cm/cm_events.h"

#include <gtest/gtest.h>

#include <mutex>

#include "model/explorer.h"

// Mutant says_so_too_early: rdma_cm/cm_events.h
// - signals.post_token();
// - signals.make_readable();
// + signals.make_readable();
// + signals.post_token();
//
// Mutant forgets_to_clear: rdma_cm/cm_events.h
// - if (!taken.empty()) clear_if_empty();
// + if (taken.size() > 2) clear_if_empty();
//
// Mutant clears_too_much: rdma_cm/cm_events.h
// - if (entries_.empty()) signals.clear_readable();
// + signals.clear_readable();
//
// Mutant keeps_the_token: rdma_cm/cm_events.h
// - taken.splice(taken.end(), entries_, at);
// - (void)signals.try_token();  // a reader that holds it already finds nothing and waits again
// + taken.splice(taken.end(), entries_, at);
// + while (signals.try_token()) {
// + }
#include "mutants/cm_events_test.h"

namespace uwarp::model {
namespace {

/// A semaphore and an eventfd.
struct Signals {
  void post_token() { tokens.fetch_add(1); }
  bool try_token() {
    for (int seen = tokens.load(); seen != 0;)
      if (tokens.compare_exchange_strong(seen, seen - 1)) return true;
    return false;
  }
  void make_readable() { count.fetch_add(1); }
  void clear_readable() { check(count.exchange(0) != 0, "would block under the lock"); }
  Atomic<int> tokens{0}, count{0};
};

#define TYPES_OF(name, space)                     \
  struct name {                                   \
    using Events = space::BasicCmEvents<Signals>; \
    using Source = space::CmEventSource;          \
    using Room = space::CmEventReservation;       \
  }
TYPES_OF(Product, uwarp);
TYPES_OF(SaysSoTooEarly, says_so_too_early);
TYPES_OF(ForgetsToClear, forgets_to_clear);
TYPES_OF(ClearsTooMuch, clears_too_much);
TYPES_OF(KeepsTheToken, keeps_the_token);
#undef TYPES_OF

/// Two events arrive. The only reader polls the descriptor, then reads without waiting.
template <class Types>
struct Channel : Scenario {
  using Room = typename Types::Room;

  Channel() {
    for (auto& room : rooms) room.emplace_back();
  }
  void push(Room& room, const std::shared_ptr<typename Types::Source>& source) {
    room.front().source = source;
    const std::lock_guard guard(lock);
    events.add(room, false);
  }
  /// Does what CmEventQueue::take() does, for a blocking or a non-blocking descriptor.
  bool take(bool may_block) {
    for (;;) {
      if (may_block) block_until([this] { return events.signals.tokens.peek() != 0; }, "a token");
      if (!events.signals.try_token()) {
        if (may_block) continue;
        return false;
      }
      Room taken;
      const std::lock_guard guard(lock);
      if (events.take(taken)) return true;
    }
  }
  /// Called under the lock, or after all threads have ended.
  void check_readiness() {
    check((events.signals.count.peek() != 0) == !events.entries_.empty(),
          "readable though there is no event, or the other way round");
  }
  void finish() override {
    check_readiness();
    check(static_cast<size_t>(events.signals.tokens.peek()) >= events.entries_.size(),
          "an event without a token");
  }

  Mutex lock;
  typename Types::Events events;
  Room rooms[3];
  std::shared_ptr<typename Types::Source> kept = std::make_shared<typename Types::Source>(),
                                          closed = std::make_shared<typename Types::Source>();
};

template <class Types>
struct Polling : Channel<Types> {
  void start(Threads& threads) override {
    threads.add("reader", [this] {
      for (int i = 0; i < 2; ++i) {
        block_until([this] { return this->events.signals.count.peek() != 0; }, "the descriptor");
        check(this->take(false), "readable, but there is no event");
      }
    });
    threads.add("first", [this] { this->push(this->rooms[0], this->kept); });
    threads.add("second", [this] { this->push(this->rooms[1], this->kept); });
  }
};

/// A reader blocks while the events of one id, which is destroyed, are dropped, and those of
/// another id arrive.
template <class Types>
struct Closing : Channel<Types> {
  void start(Threads& threads) override {
    this->push(this->rooms[0], this->closed);
    threads.add("reader", [this] { (void)this->take(true); });
    threads.add("closes", [this] {
      const std::lock_guard guard(this->lock);
      (void)this->events.extract(*this->closed);
      this->check_readiness();
    });
    threads.add("comes", [this] {
      this->push(this->rooms[1], this->kept);
      this->push(this->rooms[2], this->kept);
    });
  }
};

constexpr Property kPolling{
    "rdma_cm events, polling",
    "The descriptor is readable only after an event is queued, and as long as one is.", 4};
constexpr Property kClosing{
    "rdma_cm events, closing",
    "Events that are dropped with their id take no token and no readiness from others.", 4};

TEST(CmEvents, AreQueuedBeforeTheDescriptorIsReadable) {
  expect_holds<Polling<Product>>(kPolling);
  expect_found<Polling<SaysSoTooEarly>>(kPolling, "there is no event");
  expect_found<Polling<ClearsTooMuch>>(kPolling, "");
}

TEST(CmEvents, RemovedOnesLeaveOthersAlone) {
  expect_holds<Closing<Product>>(kClosing);
  expect_found<Closing<ForgetsToClear>>(kClosing, "readable though");
  expect_found<Closing<KeepsTheToken>>(kClosing, "");
}

}  // namespace
}  // namespace uwarp::model
