// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Progress::drive(): which thread serves while an application thread waits, and how the wait ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "os/clock.h"
#include "progress/progress.h"
#include "unit/eventually.h"

namespace uwarp {
namespace {

using namespace std::chrono_literals;

void signal_fd(int fd) {
  const uint64_t one = 1;
  ASSERT_EQ(write(fd, &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

class CountingSource : public Source {
 public:
  ~CountingSource() override { close(fd); }
  bool ready(uint32_t) override {
    server.store(pthread_self());
    ++calls;
    if (std::atomic<bool>* flag = raises.load()) *flag = true;
    return false;
  }
  void deadline_passed() override { ++deadlines; }

  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::atomic<std::atomic<bool>*> raises{nullptr};
  std::atomic<int> calls{0};
  std::atomic<int> deadlines{0};
  std::atomic<pthread_t> server{};
};

class Flag : public Awaited {
 public:
  Flag() : fd_{.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .events = POLLIN, .revents = 0} {}
  ~Flag() override { close(fd_.fd); }
  bool arrived() override { return set.load(); }
  std::span<const pollfd> fds() const override { return {&fd_, 1}; }
  void raise_from_elsewhere() {
    set = true;
    signal_fd(fd_.fd);
  }

  std::atomic<bool> set{false};

 private:
  const pollfd fd_;
};

struct Driven : ::testing::Test {
  Driven() {
    EXPECT_EQ(progress.start_helper(), 0);
    EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
    auto added = progress.add(*source, source->fd);
    EXPECT_TRUE(added);
    EXPECT_TRUE(eventually([&] { return source->calls.load() != 0; }));  // the first edge
  }
  /// Runs drive() in its own thread until it sleeps.
  std::thread start(Flag& flag, std::atomic<int>& result) {
    std::thread thread([&] { result = progress.drive(flag); });
    EXPECT_TRUE(eventually([&] { return !progress.helper_armed(); }));
    return thread;
  }

  Progress progress;
  std::shared_ptr<CountingSource> source = std::make_shared<CountingSource>();
};

TEST_F(Driven, TheWaitingThreadServes) {
  Flag flag;
  std::atomic<int> result{-1};
  source->raises = &flag.set;
  std::thread thread = start(flag, result);
  const pthread_t driver = thread.native_handle();
  const int before = source->calls.load();
  signal_fd(source->fd);
  thread.join();
  EXPECT_EQ(result.load(), 0);
  EXPECT_EQ(source->calls.load(), before + 1);
  EXPECT_TRUE(pthread_equal(source->server.load(), driver));
}

TEST_F(Driven, TheHelperTakesOverAfterwards) {
  Flag flag;
  std::atomic<int> result{-1};
  std::thread thread = start(flag, result);
  flag.raise_from_elsewhere();
  thread.join();
  EXPECT_EQ(result.load(), 0);
  EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
  const int before = source->calls.load();
  signal_fd(source->fd);
  EXPECT_TRUE(eventually([&] { return source->calls.load() > before; }));
}

TEST_F(Driven, DeadlinesAndRevisitsGoOnWhileTheDriverSleeps) {
  Flag flag;
  std::atomic<int> result{-1};
  std::thread thread = start(flag, result);
  progress.set_deadline(*source, now_ns() + kNsPerMs);
  EXPECT_TRUE(eventually([&] { return source->deadlines.load() == 1; }));
  const int before = source->calls.load();
  progress.revisit(*source);
  EXPECT_TRUE(eventually([&] { return source->calls.load() > before; }));
  flag.raise_from_elsewhere();
  thread.join();
}

TEST_F(Driven, OneThreadDrivesAndAnImpatientOneGoesFirst) {
  Flag patient, eager, third;
  patient.patient = true;
  std::atomic<int> patient_result{-1}, eager_result{-1};
  std::thread first = start(patient, patient_result);
  std::thread second([&] { eager_result = progress.drive(eager); });
  // The patient driver finds at its next wake-up that it has lost its place.
  EXPECT_TRUE(eventually([&] {
    signal_fd(source->fd);
    return patient_result.load() == EBUSY;
  }));
  EXPECT_EQ(progress.drive(third), EBUSY);
  EXPECT_EQ(eager_result.load(), -1);
  eager.raise_from_elsewhere();
  first.join();
  second.join();
  EXPECT_EQ(eager_result.load(), 0);
}

TEST_F(Driven, NoThreadDrivesWhileAnotherWaitsForTheHelper) {
  Flag flag;
  {
    const Progress::Waiter waiter(progress);
    EXPECT_EQ(progress.drive(flag), EBUSY);
    EXPECT_TRUE(progress.helper_armed());
  }
  flag.set = true;
  EXPECT_EQ(progress.drive(flag), 0);
}

TEST_F(Driven, EndsAtItsDeadline) {
  Flag flag;
  flag.deadline_ns = now_ns() + 2 * kNsPerMs;
  EXPECT_EQ(progress.drive(flag), ETIMEDOUT);
  EXPECT_GE(now_ns(), flag.deadline_ns);
}

TEST_F(Driven, SignalsInterruptUnlessCallsRestart) {
  for (const int flags : {0, SA_RESTART}) {
    struct sigaction action {
    }, before{};
    action.sa_handler = [](int) {};
    action.sa_flags = flags;
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    Flag flag;
    std::atomic<int> result{-1};
    std::thread thread = start(flag, result);
    if (flags == 0) {
      EXPECT_TRUE(eventually([&] {
        pthread_kill(thread.native_handle(), SIGUSR1);
        return result.load() != -1;
      }));
      EXPECT_EQ(result.load(), EINTR);
    } else {
      // Some signals arrive while it sleeps.
      for (int i = 0; i < 20; ++i) {
        pthread_kill(thread.native_handle(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(result.load(), -1);
      flag.raise_from_elsewhere();
    }
    thread.join();
    sigaction(SIGUSR1, &before, nullptr);
    EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
  }
}

TEST_F(Driven, ACancelledDriverLeavesItsPlace) {
  Flag flag;
  std::atomic<int> result{-1};
  std::thread thread = start(flag, result);
  ASSERT_EQ(pthread_cancel(thread.native_handle()), 0);
  thread.join();
  EXPECT_EQ(result.load(), -1);
  EXPECT_TRUE(eventually([&] { return progress.helper_armed(); }));
  flag.set = true;
  EXPECT_EQ(progress.drive(flag), 0);
}

}  // namespace
}  // namespace uwarp
