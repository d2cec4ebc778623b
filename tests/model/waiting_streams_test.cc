// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// stream/waiting_streams.h: streams with posts that wait, a poller that sends them, and a thread
// that destroys such a stream meanwhile.
#include "stream/waiting_streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "model/explorer.h"

namespace uwarp::model {
namespace {

using Marks = WaitingFlags;

// The part of Stream that is modelled.
template <class Group>
struct ModelStream {
  explicit ModelStream(Group& group, Atomic<bool>& timer) : group(group), timer(timer) {
    marks.reset(false);
  }
  bool& member_of(const Group&) { return member; }

  void attach() {
    group.add(*this);
    attached.store(true);
  }
  void post() { posted.fetch_add(1); }
  void transmit_soon() {
    const AfterTurn after = marks.announce(side, attached, [&](uint8_t senders) {
      if ((senders & Marks::kGroup) != 0) group.add_waiting(*this);
      if ((senders & Marks::kTimer) != 0) timer.store(true);
    });
    if (after == AfterTurn::kCheckAgain) transmit();
  }
  void transmit_waiting() {
    alive.touch("stream");
    marks.take(Marks::kGroup);
    transmit();
  }
  void transmit_overdue() {
    marks.take(Marks::kTimer);
    transmit();
  }
  void transmit() {
    while (auto turn = side.begin()) {
      alive.touch("stream");
      if (attached.load()) sent += posted.exchange(0);
      if (turn.end() == AfterTurn::kNothing) break;
    }
  }
  void detach() {
    {
      const auto held = side.lock_exclusive();
      attached.store(false);
    }
    group.remove(*this);
  }

  Group& group;
  Atomic<bool>& timer;
  HandoffLock side;
  Marks marks;
  Atomic<bool> attached{false};
  Atomic<int> posted{0};
  int sent = 0;
  bool member = false;
  Alive alive;
};

// The part of PollGroup that is modelled.
struct Group {
  using Stream = ModelStream<Group>;
  void add(Stream& stream) { streams.join(streams.stay(), stream); }
  void remove(Stream& stream) { streams.leave(streams.stay(), stream); }
  void add_waiting(Stream& stream) { streams.post(stream); }
  void transmit_waiting() {
    while (streams.any()) {
      const auto stay = streams.try_stay();
      if (!stay) return;
      while (Stream* const stream = streams.take(stay)) stream->transmit_waiting();
    }
  }
  WaitingStreams<Stream, Group> streams{*this};
};

// The old code: it removed a stream from the direct list first and from the waiting list last.
// Neither step kept other threads from using the stream.
struct OldGroup {
  using Stream = ModelStream<OldGroup>;
  void add(Stream& stream) { stream.member = true; }
  void add_waiting(Stream& stream) {
    const std::lock_guard guard(waiting_lock);
    waiting.push_back(&stream);
    count.store(waiting.size());
  }
  void remove(Stream& stream) {
    {
      const std::lock_guard guard(lock);
      stream.member = false;
    }
    const std::lock_guard guard(waiting_lock);
    std::erase(waiting, &stream);
    count.store(waiting.size());
  }
  Stream* take() {
    const std::lock_guard guard(waiting_lock);
    if (waiting.empty()) return nullptr;
    Stream* const stream = waiting.back();
    waiting.pop_back();
    count.store(waiting.size());
    return stream;
  }
  void transmit_waiting() {
    while (count.load() != 0 && lock.try_lock()) {
      const std::lock_guard guard(lock, std::adopt_lock);
      while (Stream* const stream = take()) stream->transmit_waiting();
    }
  }
  SpinLock lock, waiting_lock;
  std::vector<Stream*> waiting;
  Atomic<size_t> count{0};
};

template <class Group>
struct Destroyed : Scenario {
  Destroyed() {
    stream->attach();
    stream->post();
    stream->transmit_soon();
  }
  void start(Threads& threads) override {
    threads.add("poller", [this] { group.transmit_waiting(); });
    threads.add("destroyer", [this] {
      stream->detach();
      stream.destroy();
    });
  }
  Group group;
  Atomic<bool> timer{false};
  Object<ModelStream<Group>> stream{group, timer};
};

constexpr Property kDestroyed{"Waiting stream, detached",
                              "No poller uses a stream after its detach() has returned.", 3};

TEST(WaitingStreamsModel, NoStreamIsUsedAfterItsEnd) { expect_holds<Destroyed<Group>>(kDestroyed); }

TEST(WaitingStreamsModel, FindsTheOldUseAfterFree) {
  expect_found<Destroyed<OldGroup>>(kDestroyed, "use after free");
}

// The same while another thread still posts, which an application may do until it destroys the
// queue pair.
template <class Group>
struct PostedLate : Destroyed<Group> {
  void start(Threads& threads) override {
    threads.add("poller", [this] { this->group.transmit_waiting(); });
    threads.add("poster", [this] {
      this->stream->post();
      this->stream->transmit_soon();
      posting.store(false);
    });
    threads.add("destroyer", [this] {
      this->stream->detach();
      while (posting.load()) yield();
      this->stream.destroy();
    });
  }
  void finish() override { check(!this->group.streams.any(), "a stream is listed after its end"); }
  Atomic<bool> posting{true};
};

TEST(WaitingStreamsModel, NoStreamIsListedAfterItsEnd) {
  expect_holds<PostedLate<Group>>(kDestroyed);
}

// No waiting post is forgotten: it is sent, or a thread that will send it is on its way.
struct Kept : Scenario {
  enum class Fault { kNone, kTakesLate };
  explicit Kept(Fault fault = Fault::kNone) : fault(fault) { stream->attach(); }
  void start(Threads& threads) override {
    threads.add("poster", [this] { post(); });
    threads.add("other", [this] { post(); });
    threads.add("poller", [this] {
      if (fault == Fault::kNone) return group.transmit_waiting();
      while (group.streams.any()) {
        const auto stay = group.streams.try_stay();
        if (!stay) return;
        while (auto* const listed = group.streams.take(stay)) {
          listed->transmit();
          listed->marks.take(Marks::kGroup);
        }
      }
    });
  }
  void post() {
    stream->post();
    stream->transmit_soon();
    ++posts;
  }
  void finish() override {
    check(stream->posted.peek() == 0 || group.streams.any(), "no poll will send what waits");
    check(stream->posted.peek() == 0 || timer.peek(), "no timer will send what waits");
    check(stream->sent + stream->posted.peek() == posts, "posts are lost");
    group.transmit_waiting();
    check(stream->posted.peek() == 0, "a poll has not sent what waits");
    stream->detach();
  }
  const Fault fault;
  Group group;
  Atomic<bool> timer{false};
  int posts = 0;
  Object<ModelStream<Group>> stream{group, timer};
};

constexpr Property kKept{"Waiting posts",
                         "A post that waits is sent, or a later poll or a timer will send it.", 2};

TEST(WaitingStreamsModel, NoPostIsForgotten) { expect_holds<Kept>(kKept); }

TEST(WaitingStreamsModel, FindsAMarkThatIsClearedAfterTheLook) {
  expect_found<Kept>(kKept, "will send what waits", Kept::Fault::kTakesLate);
}

}  // namespace
}  // namespace uwarp::model
