// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// qp/receive_queue.h: streams that are held because no receive is posted, a thread that posts some,
// and the end of a hold.
#include "qp/receive_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/explorer.h"
#include "qp/handoff_lock.h"

namespace uwarp::model {
namespace {

using Queue = SharedReceiveQueue;

struct SharedQueue;

// The parts of Stream and Receiver that are modelled, with one message to receive.
struct HeldStream : ReceiveWaiter {
  explicit HeldStream(Queue& queue, SharedQueue* shared = nullptr)
      : shared(shared), place(queue, shared != nullptr ? this : nullptr) {}

  void receive_posted() override;
  void message_arrives() {
    const auto held = side.lock_exclusive();
    if (!closed) consume();
  }
  void resume(bool without_side = false) {
    if (without_side && !place.rnr_blocked()) return;
    const auto held = side.lock_exclusive();
    if (closed || !place.rnr_blocked()) return;
    place.go_on();
    consume();
  }
  // The grace time is over.
  void expire() {
    const auto held = side.lock_exclusive();
    if (closed || !place.rnr_blocked()) return;
    closed = true;
    place.leave();
  }
  void consume() {
    RecvWqe buffer;
    if (place.take(buffer)) taken.push_back(buffer.wr_id);
  }
  bool held() { return place.rnr_blocked() && !closed; }

  SharedQueue* const shared;
  HandoffLock side;
  ReceivePlace place;
  std::vector<uint64_t> taken;
  bool closed = false;
};

// The receive queue of one queue pair: the thread that posts resumes the stream.
struct OwnQueue : Scenario {
  enum class Fault { kNone, kLooksBesideTheSide, kClaimsFirst };
  explicit OwnQueue(Fault fault = Fault::kNone) : fault(fault) {}
  void start(Threads& threads) override {
    threads.add("receiver", [this] { stream.message_arrives(); });
    threads.add("poster", [this] { post(1); });
    threads.add("other", [this] { post(2); });
  }
  void post(uint64_t id) {
    if (fault == Fault::kClaimsFirst && !queue.claim_wakeup()) return void(queue.post(id, {}));
    check(queue.post(id, {}) == 0, "full");
    if (queue.claim_wakeup()) stream.resume(fault == Fault::kLooksBesideTheSide);
  }
  void finish() override {
    check(!stream.held(), "held although there is a buffer");
    check(stream.taken.size() == 1, "taken");
  }
  const Fault fault;
  Queue queue{4, 1};
  HeldStream stream{queue};
};

constexpr Property kOfOwnQueue{"Held stream",
                               "A held stream goes on once there is a receive for it.", 3};

TEST(ReceiveQueueModel, AHeldStreamContinues) { expect_holds<OwnQueue>(kOfOwnQueue); }

TEST(ReceiveQueueModel, FindsAHeldStreamThatIsForgotten) {
  expect_found<OwnQueue>(kOfOwnQueue, "held although", OwnQueue::Fault::kLooksBesideTheSide);
  expect_found<OwnQueue>(kOfOwnQueue, "held although", OwnQueue::Fault::kClaimsFirst);
}

// A shared receive queue with two streams, one of which may end while it is in line.
struct SharedQueue : Scenario {
  enum class Fault { kNone, kNoRevisit };
  explicit SharedQueue(int posts, bool expires, Fault fault = Fault::kNone)
      : posts(posts), expires(expires), fault(fault) {}
  void start(Threads& threads) override {
    threads.add("poster", [this] {
      for (int i = 1; i <= posts; ++i) check(queue.post(static_cast<uint64_t>(i), {}) == 0, "full");
      for (HeldStream* stream : promised) stream->resume();
    });
    threads.add("receiver", [this] {
      first.message_arrives();
      second.message_arrives();
    });
    if (!expires) return;
    threads.add("progress", [this] {
      first.expire();
      for (HeldStream* stream : revisits)
        if (fault != Fault::kNoRevisit) stream->resume();
    });
  }
  void finish() override {
    const size_t taken = first.taken.size() + second.taken.size();
    if (!expires) check(static_cast<int>(taken) == std::min(posts, 2), "held beside a buffer");
    check(!second.held() || queue.empty(), "held beside a buffer");
    check(first.taken.empty() || second.taken.empty() || first.taken[0] != second.taken[0],
          "a buffer was taken twice");
    first.place.leave();
    second.place.leave();
    RecvWqe buffer;
    ReceivePlace last(queue, nullptr);
    for (size_t left = static_cast<size_t>(posts) - taken; left > 0; --left)
      check(last.take(buffer), "a buffer is lost");
    check(!last.take(buffer), "a buffer too many");
    last.leave();
  }
  const int posts;
  const bool expires;
  const Fault fault;
  std::vector<HeldStream*> promised, revisits;
  Queue queue{4, 1};
  HeldStream first{queue, this}, second{queue, this};
};

// The posting thread resumes the streams in its own PromisedStreams. Streams that other threads get
// receives for are passed to Progress as revisits.
void HeldStream::receive_posted() {
  (self() == 0 ? shared->promised : shared->revisits).push_back(this);
}

constexpr Property kShared{
    "Held streams of a shared queue",
    "Each receive goes to one stream, and no stream is held while a receive is free.", 3};

TEST(ReceiveQueueModel, PromisesAreKept) {
  expect_holds<SharedQueue>(kShared, 1, false);
  expect_holds<SharedQueue>(kShared, 2, false);
  expect_holds<SharedQueue>(kShared, 1, true);
  expect_holds<SharedQueue>(kShared, 2, true);
}

TEST(ReceiveQueueModel, FindsAPromiseThatEndsWithItsStream) {
  expect_found<SharedQueue>(kShared, "held beside a buffer", 1, true,
                            SharedQueue::Fault::kNoRevisit);
}

}  // namespace
}  // namespace uwarp::model
