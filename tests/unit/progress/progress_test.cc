// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Progress: edges, removal during use, deadlines, revisits, and which thread serves while a thread
// polls.
#include "progress/progress.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "os/clock.h"
#include "progress/deadline_heap.h"
#include "unit/eventually.h"

namespace uwarp {
namespace {

using namespace std::chrono_literals;

/// An eventfd whose edges call a function.
class EventSource : public Source {
 public:
  EventSource() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~EventSource() override { close(fd_); }

  bool ready(uint32_t events) override {
    ++edges;
    server.store(pthread_self());
    return on_ready ? on_ready(events) : false;
  }
  void deadline_passed() override {
    ++deadlines;
    if (on_deadline) on_deadline();
  }
  void signal() const {
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  int fd() const { return fd_; }

  std::function<bool(uint32_t)> on_ready;
  std::function<void()> on_deadline;
  std::atomic<int> edges{0};
  std::atomic<int> deadlines{0};
  std::atomic<pthread_t> server{};

 private:
  const int fd_;
};

TEST(DeadlineHeap, FiresInOrderAndOnce) {
  DeadlineHeap heap;
  auto a = std::make_shared<EventSource>();
  auto b = std::make_shared<EventSource>();
  heap.set(*a, 200);
  heap.set(*b, 100);
  EXPECT_EQ(heap.earliest_ns(), 100u);
  EXPECT_EQ(heap.take_due(99), nullptr);
  EXPECT_EQ(heap.take_due(250), b);
  EXPECT_EQ(heap.take_due(250), a);
  EXPECT_EQ(heap.take_due(1000), nullptr);
  EXPECT_EQ(heap.earliest_ns(), DeadlineHeap::kNever);
}

TEST(DeadlineHeap, MovedAndClearedDeadlines) {
  DeadlineHeap heap;
  auto a = std::make_shared<EventSource>();
  heap.set(*a, 100);
  heap.set(*a, 300);  // the old entry is corrected when it comes up
  EXPECT_EQ(heap.take_due(150), nullptr);
  EXPECT_EQ(heap.earliest_ns(), 300u);
  heap.set(*a, 200);  // earlier
  EXPECT_EQ(heap.take_due(250), a);
  EXPECT_EQ(heap.take_due(1000), nullptr) << "the entry for 300 is stale";
  heap.set(*a, 400);
  heap.set(*a, 0);
  EXPECT_EQ(heap.take_due(1000), nullptr);
  heap.set(*a, 500);
  a.reset();
  EXPECT_EQ(heap.take_due(1000), nullptr) << "the source is gone";
}

TEST(DeadlineHeap, ReportsWhetherTheSleeperSleepsPastIt) {
  DeadlineHeap heap;
  auto a = std::make_shared<EventSource>();
  auto b = std::make_shared<EventSource>();
  EXPECT_FALSE(heap.set(*a, 200)) << "no thread sleeps";
  EXPECT_EQ(heap.begin_sleep(0, DeadlineHeap::kNever, 0), 200u);
  EXPECT_TRUE(heap.sleeping());
  EXPECT_FALSE(heap.set(*b, 250));
  EXPECT_TRUE(heap.set(*b, 150));
  EXPECT_FALSE(heap.set(*a, 180)) << "woken for b already";
  heap.end_sleep();
  EXPECT_FALSE(heap.sleeping());
  EXPECT_FALSE(heap.set(*b, 100));
  // Deadlines that may be late.
  EXPECT_EQ(heap.begin_sleep(0, 1000, 30), 130u);
  EXPECT_FALSE(heap.set(*a, 120));
  EXPECT_TRUE(heap.set(*a, 90));
  EXPECT_EQ(heap.begin_sleep(500, 1000, 30), 530u)
      << "for an overdue deadline the lateness counts from now";
  EXPECT_EQ(heap.begin_sleep(0, 100, 30), 100u);
}

// Like a connection that watches its peer and posts now and then.
TEST(DeadlineHeap, ManyNearDeadlinesBeforeAFarOne) {
  DeadlineHeap heap;
  const auto source = std::make_shared<EventSource>();
  for (uint64_t now = 1; now < 1000; now += 2) {
    heap.set(*source, 5000 + now);
    heap.set(*source, now + 1);
    EXPECT_EQ(heap.take_due(now + 1), source);
  }
  heap.set(*source, 6500);
  EXPECT_EQ(heap.take_due(6499), nullptr);
  EXPECT_EQ(heap.take_due(6500), source);
  EXPECT_EQ(heap.take_due(9000), nullptr);
}

// Sources come and go, with and without a deadline. Each leaves the heap when it ends, wherever it
// stands there.
TEST(DeadlineHeap, AgreesWithAPlainList) {
  std::mt19937 random(5);
  DeadlineHeap heap;
  std::vector<std::shared_ptr<EventSource>> sources;
  for (int i = 0; i < 12; ++i) sources.push_back(std::make_shared<EventSource>());
  std::map<std::shared_ptr<Source>, uint64_t> expected;
  for (uint64_t now = 1; now < 20'000; ++now) {
    auto& source = sources[random() % sources.size()];
    if (random() % 32 == 0) {
      expected.erase(source);
      source = std::make_shared<EventSource>();
    }
    const uint64_t distance[] = {0, 1, 2, 7, 40, 300};
    if (random() % 2 == 0) {
      const uint64_t far = distance[random() % std::size(distance)];
      heap.set(*source, far == 0 ? 0 : now + far);
      expected.erase(source);
      if (far != 0) expected[source] = now + far;
    }
    while (const auto due = heap.take_due(now)) {
      ASSERT_TRUE(expected.contains(due)) << now;
      ASSERT_LE(expected[due], now);
      expected.erase(due);
    }
    for (const auto& [left, deadline] : expected) {
      ASSERT_GT(deadline, now);
      ASSERT_LE(heap.earliest_ns(), deadline);
    }
  }
}

TEST(Progress, HelperServesEdges) {
  Progress progress;
  ASSERT_EQ(progress.start_helper(), 0);
  auto source = std::make_shared<EventSource>();
  const auto registration = progress.add(*source, source->fd(), EPOLLIN | EPOLLET);
  ASSERT_TRUE(registration.ok());
  for (int i = 1; i <= 5; ++i) {
    source->signal();
    ASSERT_TRUE(eventually([&] { return source->edges >= i; }));
  }
  EXPECT_FALSE(pthread_equal(source->server, pthread_self()));
  progress.remove(*registration);
  source->signal();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(source->edges, 5);
}

TEST(Progress, PassServesInTheCaller) {
  Progress progress;
  auto source = std::make_shared<EventSource>();
  ASSERT_TRUE(progress.add(*source, source->fd(), EPOLLIN | EPOLLET).ok());
  source->on_ready = [&](uint32_t) {
    EXPECT_FALSE(progress.pass()) << "no second turn inside a turn";
    return false;
  };
  source->signal();
  EXPECT_TRUE(progress.pass());
  EXPECT_EQ(source->edges, 1);
  EXPECT_TRUE(progress.pass());
  EXPECT_EQ(source->edges, 1) << "an edge is reported once";
}

TEST(Progress, RemoveInsideTheCall) {
  Progress progress;
  auto source = std::make_shared<EventSource>();
  auto registration = progress.add(*source, source->fd(), EPOLLIN | EPOLLET);
  ASSERT_TRUE(registration.ok());
  std::weak_ptr<EventSource> weak = source;
  source->on_ready = [&](uint32_t) {
    progress.remove(*registration);
    source.reset();  // now only Progress holds it
    return true;     // the revisit of a source that has ended is dropped
  };
  source->signal();
  progress.pass();
  EXPECT_TRUE(weak.expired());
  progress.pass();
}

TEST(Progress, TicketsAreNotReusedForAnotherSource) {
  Progress progress;
  auto first = std::make_shared<EventSource>();
  const auto old_ticket = progress.add(*first, first->fd(), EPOLLIN | EPOLLET);
  progress.remove(*old_ticket);
  auto second = std::make_shared<EventSource>();
  ASSERT_TRUE(progress.add(*second, second->fd(), EPOLLIN | EPOLLET).ok());
  progress.remove(*old_ticket);  // must not remove the second source
  second->signal();
  progress.pass();
  EXPECT_EQ(second->edges, 1);
}

TEST(Progress, RemovalWhileSourcesAreCalled) {
  Progress progress;
  ASSERT_EQ(progress.start_helper(), 0);
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    while (!stop) {
      progress.note_polls(1);
      progress.pass();
    }
  });
  for (int round = 0; round < 300; ++round) {
    std::vector<std::shared_ptr<EventSource>> sources;
    std::vector<Progress::Registration> registrations;
    for (int i = 0; i < 8; ++i) {
      sources.push_back(std::make_shared<EventSource>());
      auto* source = sources.back().get();
      source->on_ready = [&progress, source](uint32_t) {
        progress.set_deadline(*source, now_ns());
        return source->edges % 3 != 0;
      };
      auto registration = progress.add(*source, source->fd(), EPOLLIN | EPOLLET);
      ASSERT_TRUE(registration.ok());
      registrations.push_back(*registration);
      source->signal();
    }
    for (const auto registration : registrations) progress.remove(registration);
  }
  stop = true;
  poller.join();
}

TEST(Progress, RevisitsUntilDone) {
  Progress progress;
  ASSERT_EQ(progress.start_helper(), 0);
  auto source = std::make_shared<EventSource>();
  source->on_ready = [&](uint32_t events) {
    EXPECT_EQ(events, 0u);
    return source->edges < 100;
  };
  progress.revisit(*source);
  EXPECT_TRUE(eventually([&] { return source->edges == 100; }));
}

TEST(Progress, DeadlinesWithHelperAndWithPollersOnly) {
  for (const bool with_helper : {true, false}) {
    Progress progress;
    if (with_helper) {
      ASSERT_EQ(progress.start_helper(), 0);
      std::this_thread::sleep_for(5ms);  // now it sleeps without a deadline
    }
    auto source = std::make_shared<EventSource>();
    const uint64_t due = now_ns() + 10 * kNsPerMs;
    std::atomic<uint64_t> fired_at{0};
    source->on_deadline = [&] { fired_at = now_ns(); };
    progress.set_deadline(*source, due);
    ASSERT_TRUE(eventually([&] {
      if (!with_helper) progress.pass();
      return fired_at != 0;
    }));
    EXPECT_GE(fired_at, due);
    EXPECT_EQ(source->deadlines, 1);
  }
}

/// A helper thread that waits in epoll serves `source`.
void have_helper_wait_for(Progress& progress, EventSource& source) {
  ASSERT_EQ(progress.start_helper(), 0);
  ASSERT_TRUE(progress.add(source, source.fd(), EPOLLIN | EPOLLET).ok());
  ASSERT_TRUE(eventually([&] { return progress.helper_armed(); }));
}

TEST(Progress, PollersDisarmTheHelperAndItTakesOver) {
  Progress progress;
  auto source = std::make_shared<EventSource>();
  ASSERT_NO_FATAL_FAILURE(have_helper_wait_for(progress, *source));
  // A message wakes the helper, which then finds that a thread polls.
  const uint64_t end = now_ns() + 20 * kNsPerSecond;
  while (progress.helper_armed() && now_ns() < end) {
    source->signal();
    for (int i = 0; i < 1000 && progress.helper_armed(); ++i) progress.note_polls(1);
  }
  ASSERT_FALSE(progress.helper_armed());
  // While polling goes on, the polling thread gets the messages.
  int to_poller = 0;
  for (int i = 0; i < 50; ++i) {
    source->signal();
    for (int j = 0; j < 200; ++j) progress.note_polls(1);
    progress.pass();
    if (pthread_equal(source->server, pthread_self())) ++to_poller;
  }
  EXPECT_GT(to_poller, 25);
  // When polling stops, the helper takes over, well within a hundred times the bound.
  const int before = source->edges;
  source->signal();
  EXPECT_TRUE(eventually([&] { return source->edges > before; }));
  EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
}

// After long polling the helper looks seldom, but deadlines are kept.
TEST(Progress, ADeadlineIsKeptThoughTheHelperLooksSeldom) {
  constexpr uint64_t kSeldomNs = 60 * kNsPerSecond;
  Progress progress({.least_polls = 1,
                     .slowest_poll_ns = kNsPerSecond,
                     .take_over_ns = kNsPerMs / 4,
                     .longest_ns = kSeldomNs,
                     .late_ns = kNsPerMs});
  auto source = std::make_shared<EventSource>();
  ASSERT_NO_FATAL_FAILURE(have_helper_wait_for(progress, *source));
  // Each time the helper finds that the thread polls, it doubles the time to its next look. By now
  // that is a quarter of a second, if this thread has not paused for long.
  ASSERT_TRUE(eventually([&] {
    source->signal();
    for (const uint64_t begin = now_ns(); now_ns() - begin < kNsPerSecond / 2;)
      progress.note_polls(1);
    return !progress.helper_armed();
  }));
  const uint64_t due = now_ns() + kNsPerMs;
  progress.set_deadline(*source, due);
  EXPECT_TRUE(eventually([&] { return source->deadlines == 1; }));
  EXPECT_GE(now_ns(), due);
  // Then it looks often again, and finds that polling has stopped.
  source->signal();
  EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
}

// If it wakes between two polls, the helper cannot know whether a thread still polls, and does not
// change its mind.
TEST(Progress, AnEarlyWakeUpDoesNotArmTheHelper) {
  constexpr uint64_t kLongNs = 60 * kNsPerSecond;
  Progress progress({.least_polls = 4,
                     .slowest_poll_ns = kLongNs,
                     .take_over_ns = kLongNs,
                     .longest_ns = kLongNs,
                     .late_ns = 0});
  auto source = std::make_shared<EventSource>();
  ASSERT_NO_FATAL_FAILURE(have_helper_wait_for(progress, *source));
  ASSERT_TRUE(eventually([&] {
    source->signal();
    progress.note_polls(4);
    return !progress.helper_armed();
  }));
  for (int i = 0; i < 20; ++i) {
    progress.wake_helper();
    std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(progress.helper_armed());
  }
  // But a thread that announces its sleep has stopped polling.
  progress.note_sleep();
  EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
}

TEST(Progress, AnnouncedSleepArmsTheHelperAtOnce) {
  Progress progress;
  ASSERT_EQ(progress.start_helper(), 0);
  auto source = std::make_shared<EventSource>();
  ASSERT_TRUE(progress.add(*source, source->fd(), EPOLLIN | EPOLLET).ok());
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 1000; ++i) progress.note_polls(1);
    source->signal();
    progress.pass();
    progress.note_sleep();
    EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
  }
}

/// Is done when it has been served so often.
class CountedWork final : public Source, public LastWork {
 public:
  CountedWork(Progress& progress, int turns) : progress_(progress), left_(turns) {}
  bool ready(uint32_t) override { return --left_ > 0; }
  void begin() override {
    begun = true;
    progress_.revisit(*this);
  }
  bool done() override { return left_ <= 0; }
  void end() override { ended = true; }
  bool begun = false;
  bool ended = false;

 private:
  Progress& progress_;
  std::atomic<int> left_;
};

TEST(Progress, TheHelperEndsAfterItsLastWork) {
  Progress progress;
  const auto work = std::make_shared<CountedWork>(progress, 100);
  ASSERT_EQ(progress.start_helper(), 0);
  progress.stop_helper(work.get());
  EXPECT_TRUE(work->begun);
  EXPECT_TRUE(work->done());
  EXPECT_TRUE(work->ended);
}

TEST(Progress, LastWorkThatDoesNotEndIsGivenUp) {
  Progress progress;
  const auto work = std::make_shared<CountedWork>(progress, 2'000'000'000);
  ASSERT_EQ(progress.start_helper(), 0);
  const uint64_t before_ns = now_ns();
  progress.stop_helper(work.get());
  EXPECT_GE(now_ns() - before_ns, Progress::kLastWorkNs);
  EXPECT_TRUE(work->ended);
}

TEST(Progress, StopIsFinal) {
  Progress progress;
  ASSERT_EQ(progress.start_helper(), 0);
  EXPECT_TRUE(progress.helper_running());
  progress.stop_helper();
  EXPECT_FALSE(progress.helper_running());
  EXPECT_EQ(progress.start_helper(), 0);
  EXPECT_FALSE(progress.helper_running());
  // Threads that poll still make progress.
  auto source = std::make_shared<EventSource>();
  ASSERT_TRUE(progress.add(*source, source->fd(), EPOLLIN | EPOLLET).ok());
  source->signal();
  progress.pass();
  EXPECT_EQ(source->edges, 1);
}

}  // namespace
}  // namespace uwarp
