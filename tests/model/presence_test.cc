// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which thread serves while the helper thread, a driver, another waiting thread and a poller come,
// sleep and go. The helper thread and drive() take the steps of progress/progress.cc and
// progress/progress.cc; the epoll set, the descriptors and the clock belong to the model.
#include "progress/presence.h"

#include <gtest/gtest.h>

#include "model/explorer.h"
#include "progress/deadline_heap.h"
#include "progress/epoll_muted_sources.h"
#include "progress/revisit_queue.h"

// Before this model found the fault, a driver that had lost its place could announce that it slept
// although no thread drove any more.
// Mutant sleeps_without_driving: progress/presence.h
// - if (who.driven_by(turn)) who.driver_sleeps = asleep;
// + who.driver_sleeps = asleep || (who.driver_sleeps && !who.driven_by(turn));
//
// Mutant leaves_the_rest: progress/presence.h
// - wake = who.driven_by(turn) && (who.parked || who.waiters != 0);
// + wake = who.driven_by(turn) && who.waiters != 0;
//
// Mutant leaves_the_waiters: progress/presence.h
// - wake = who.driven_by(turn) && (who.parked || who.waiters != 0);
// - if (!who.driven_by(turn)) return;
// + wake = false;
// + if (!who.driven_by(turn)) return;
//
// Mutant rests_in_two_steps: progress/presence.h
// - return change([](Who& who) { who.parked = who.driver_sleeps; }).parked;
// + const bool park = who_.load().driver_sleeps;
// + change([park](Who& who) { who.parked = park; });
// + return park;
//
// Mutant arms_unseen: progress/presence.h
// - who.armed = on;
// + who.parked = !on;
//
// Mutant forgets_the_driver: progress/presence.h progress/epoll_muted_sources.h
// progress/epoll_muted_sources.cc
// - next.next_turn();
// - ++next.sleepers;
// + next.next_turn();
//
// Mutant looks_before_the_lock: progress/presence.h progress/epoll_muted_sources.h
// progress/epoll_muted_sources.cc
// - const Lock guard(lock_);
// - if (presence_.anybody_sleeps() || count_ == kMost) return false;
// + if (presence_.anybody_sleeps() || count_ == kMost) return false;
// + const Lock guard(lock_);
//
// Mutant keeps_it_quiet: progress/presence.h progress/epoll_muted_sources.h
// progress/epoll_muted_sources.cc
// - if (!source.polled_since() || !add(source)) source.unmute();
// + if (!source.polled_since()) source.unmute();
#include "mutants/presence_test.h"

namespace uwarp::model {
namespace {

/// The source that gets work.
struct Busy : Source {
  bool ready(uint32_t) override {
    served.fetch_add(1);
    return false;
  }
  Atomic<int> served{0};
};

/// A model of Progress. It has faulty steps of its own where no mutant of the product can show a
/// fault.
template <class Presence>
struct World : Scenario {
  // ---- What Progress does.

  void wake_helper() { wake.store(true); }

  void revisit() {
    if (!revisits.add(*source)) return;
    if (presence.driver_sleeps() || (presence.armed() && heap.sleeping())) wake_helper();
  }
  void serve_revisits() {
    if (edges_only) return;
    std::shared_ptr<Source> found;
    if (revisits.waiting() && revisits.take({&found, 1}) != 0) (void)found->ready(0);
  }
  bool revisits_wait() const { return !edges_only && revisits.waiting(); }
  void pass() {
    serve_revisits();
    if (edge.exchange(false)) (void)source->ready(1);
  }

  /// The helper thread. It ticks without being woken, but a tick alone is no reason to look again.
  void help(bool others = false) {
    bool news = true;
    uint32_t drives = 0, polls = presence.polls();
    if (!others) (void)presence.arm(true);
    while (!stopping.load()) {
      const bool armed = !others;
      if (armed) {
        if (!edges_only) (void)heap.begin_sleep(0, Heap::kNever, 0);
        if (!revisits_wait() && !stopping.load())
          block_until([this] { return edge.peek() || wake.peek(); }, "an edge or a wake-up");
        if (!edges_only) heap.end_sleep();
        if (edge.exchange(false)) (void)source->ready(1);
        wake.store(false);
        serve_revisits();
      } else {
        bool rest = presence.polls() == polls && presence.park();
        if (rest && revisits_wait()) rest = false;
        if (!edges_only) (void)heap.begin_sleep(0, rest ? Heap::kNever : 100, 0);
        if (rest && !stopping.load())
          block_until([this] { return wake.peek(); }, "a wake-up");
        else
          news ? relax() : yield();
        wake.store(false);
        presence.unpark();
        if (!edges_only) heap.end_sleep();
        if (!edges_only && presence.driver_sleeps()) serve_revisits();
      }
      const uint32_t drives_before = drives;
      const bool driven = presence.driven_since(drives);
      const bool polled = presence.polls() != polls && presence.polls_that_count() != 0;
      news = polls != presence.polls() || drives != drives_before;
      polls = presence.polls();
      others = driven || polled;
      (void)presence.arm(!others);
    }
  }

  /// drive(), then waiting where the thread may not drive. The descriptor of `awaited` reports it.
  void drive(const Atomic<bool>& awaited) {
    drive(presence.begin_drive(Presence::kEager, 1), awaited);
  }
  void drive(uint32_t turn, const Atomic<bool>& awaited) {
    while (turn != 0 && presence.drives(turn) && !awaited.load()) {
      if (!presence.driver_sleeps(turn, true)) break;
      if (presence.armed()) wake_helper();
      if (!revisits_wait())
        block_until([&] { return edge.peek() || awaited.peek(); }, "an edge or its event");
      presence.driver_sleeps(turn, false);
      pass();
    }
    if (turn != 0 && presence.end_drive(turn)) wake_helper();
    if (awaited.load()) return;
    if (presence.begin_wait()) wake_helper();
    block_until([&] { return awaited.peek(); }, "its event");
    presence.end_wait();
  }

  // ---- What happens from outside.

  /// One edge or one revisit, which some thread must serve.
  void work_comes() {
    if (choose(2) == 0)
      edge.store(true);
    else
      revisit();
    block_until([this] { return source->served.peek() != 0; }, "being served");
  }
  /// The last application thread that leaves also stops the helper thread.
  void leave() {
    if (--left != 0) return;
    stopping.store(true);
    wake_helper();
  }

  using Heap = DeadlineHeap;
  Presence presence;
  Heap heap;
  RevisitQueue revisits;
  std::shared_ptr<Busy> source = std::make_shared<Busy>();
  Atomic<bool> edge{false}, wake{false}, stopping{false};
  Atomic<bool> first_event{false};
  int left = 0;
  bool edges_only = false;  // fewer steps, where the scenario is about something else
};

/// Work arrives while a thread drives. The thread's own event may end its drive at any time.
template <class Presence>
struct OneDriver : World<Presence> {
  using World<Presence>::first_event;
  void start(Threads& threads) override {
    this->left = 2;
    threads.add("helper", [this] { this->help(); });
    threads.add("driver", [this] {
      this->drive(first_event);
      this->leave();
    });
    threads.add("peer", [this] {
      first_event.store(true);
      this->work_comes();
      this->leave();
    });
  }
};

/// A patient driver is driving. An eager one takes its place and leaves at once.
template <class Presence>
struct TwoDrivers : World<Presence> {
  using World<Presence>::first_event;
  void start(Threads& threads) override {
    this->left = 3;
    this->edges_only = true;
    const uint32_t turn = this->presence.begin_drive(Presence::kPatient, 1);
    threads.add("helper", [this] { this->help(true); });
    threads.add("patient", [this, turn] {
      this->drive(turn, first_event);
      this->leave();
    });
    threads.add("eager", [this] {
      const uint32_t turn = this->presence.begin_drive(Presence::kEager, 1);
      if (turn != 0 && this->presence.end_drive(turn)) this->wake_helper();
      this->leave();
    });
    threads.add("peer", [this] {
      first_event.store(true);
      this->edge.store(true);
      block_until([this] { return this->source->served.peek() != 0; }, "being served");
      this->leave();
    });
  }
};

/// A second thread waits while the first one drives. The work is what it waits for.
template <class Presence>
struct Waiting : World<Presence> {
  using World<Presence>::first_event;
  void start(Threads& threads) override {
    this->left = 2;
    this->edges_only = true;
    threads.add("helper", [this] { this->help(); });
    threads.add("driver", [this] {
      this->drive(first_event);
      this->leave();
    });
    threads.add("waiter", [this] {
      if (this->presence.begin_wait()) this->wake_helper();
      first_event.store(true);
      this->edge.store(true);
      block_until([this] { return this->source->served.peek() != 0; }, "being served");
      this->presence.end_wait();
      this->leave();
    });
  }
};

/// A thread polls, announces that it sleeps, and waits for work.
template <class Presence>
struct Poller : World<Presence> {
  void start(Threads& threads) override {
    this->left = 2;
    threads.add("helper", [this] { this->help(); });
    threads.add("poller", [this] {
      for (int i = 0; i < 2; ++i) {
        this->presence.note_polls(1);
        this->pass();
      }
      if (this->presence.note_sleep()) this->wake_helper();
      block_until([this] { return this->source->served.peek() != 0; }, "being served");
      this->leave();
    });
    threads.add("peer", [this] {
      this->work_comes();
      this->leave();
    });
  }
};

constexpr const char* kServed =
    "All work is served: the threads never all sleep or leave while an edge or a revisit waits.";
constexpr Property kOneDriver{"presence, driver", kServed, 2};
constexpr Property kTwoDrivers{"presence, two drivers", kServed, 1};
constexpr Property kWaiting{"presence, waiter", kServed, 2};
constexpr Property kPoller{"presence, poller", kServed, 2};

TEST(Presence, WorkIsServedBesideADriver) {
  expect_holds<OneDriver<Presence>>(kOneDriver);
  expect_found<OneDriver<leaves_the_rest::Presence>>(kOneDriver, "all sleep");
  expect_found<OneDriver<rests_in_two_steps::Presence>>(kOneDriver, "all sleep");
}

TEST(Presence, WorkIsServedWhereOneDriverFollowsAnother) {
  expect_holds<TwoDrivers<Presence>>(kTwoDrivers);
  expect_found<TwoDrivers<sleeps_without_driving::Presence>>(kTwoDrivers, "all sleep");
}

TEST(Presence, AWaiterHasTheHelper) {
  expect_holds<Waiting<Presence>>(kWaiting);
  expect_found<Waiting<leaves_the_waiters::Presence>>(kWaiting, "all sleep");
}

TEST(Presence, TheHelperFollowsAPoller) {
  expect_holds<Poller<Presence>>(kPoller);
  expect_found<Poller<arms_unseen::Presence>>(kPoller, "all sleep");
}

// ---- Quiet sources

/// A socket: while it is quiet, epoll does not report its data. Its lock is that of a side.
struct Socket : Source {
  bool ready(uint32_t) override { return false; }
  bool polled_since() override { return looks.exchange(0) != 0; }
  void unmute() override {
    const std::lock_guard guard(side);
    quiet.store(false);
    if (data.load()) edge.store(true);  // data that has arrived raises an edge
  }
  void data_comes() {
    data.store(true);
    if (!quiet.load()) edge.store(true);
  }
  Mutex side;
  Atomic<int> looks{1};
  Atomic<bool> quiet{false}, data{false}, edge{false};
};

/// A poller makes a socket quiet and leaves, another thread passes, and a driver sleeps in epoll.
template <class Presence, class Quiet>
struct Muted : Scenario {
  void start(Threads& threads) override {
    threads.add("poller", [this] {
      const std::lock_guard guard(socket->side);
      if (quiet.add(*socket)) socket->quiet.store(true);
    });
    threads.add("passes", [this] { quiet.end_idle(); });
    threads.add("driver", [this] {
      const uint32_t turn = presence.begin_drive(Presence::kEager, 1);
      quiet.end_all();
      block_until([this] { return socket->edge.peek(); }, "an edge");
      (void)presence.end_drive(turn);
    });
    threads.add("peer", [this] { socket->data_comes(); });
  }
  Presence presence;
  Quiet quiet{presence};
  std::shared_ptr<Socket> socket = std::make_shared<Socket>();
};

constexpr Property kMuted{"quiet sources",
                          "A thread that sleeps in epoll is woken by data, even if the source was "
                          "quiet or about to become quiet.",
                          2};

TEST(EpollMutedSources, NoneIsMutedWhileAThreadSleeps) {
  expect_holds<Muted<Presence, EpollMutedSources>>(kMuted);
  expect_found<Muted<forgets_the_driver::Presence, forgets_the_driver::EpollMutedSources>>(
      kMuted, "all sleep");
  expect_found<Muted<looks_before_the_lock::Presence, looks_before_the_lock::EpollMutedSources>>(
      kMuted, "all sleep");
  expect_found<Muted<keeps_it_quiet::Presence, keeps_it_quiet::EpollMutedSources>>(kMuted,
                                                                                   "all sleep");
}

}  // namespace
}  // namespace uwarp::model
