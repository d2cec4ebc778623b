// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma_cm while memory, threads and files run out: the call returns an error or an event reports
// it, nothing leaks, and the next connection works.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "faults/connection_ends.h"
#include "faults/denied_calls.h"
#include "faults/failing_allocations.h"
#include "verbs/verbs_fixture.h"

namespace {

using namespace std::chrono_literals;

// Memory that waits for an obsolete deadline is freed when that deadline passes, so deadlines are
// short here.
[[maybe_unused]] const int deadlines_are_short = setenv("UWARP_CONNECT_TIMEOUT_MS", "4000", 1);

constexpr int kAllocationsMax = 3000;
std::atomic<bool> wall_clock_jumps{false};

void connect_once(ConnectionEnds& ends) {
  int error = 0;
  ASSERT_EQ(ends.resolve(), 0);
  ASSERT_EQ(ends.connect(kPatience, error), Outcome::kConnected) << std::strerror(error);
  EXPECT_TRUE(ends.one_exchange());
  ends.disconnect();
  ends.destroy_connection();
}

int connections(const char* variable, int otherwise) {
  const char* wanted = std::getenv(variable);
  return wanted == nullptr ? otherwise : std::atoi(wanted);
}

/// Runs `body` in a new process, in which the engine has not been used.
void in_a_process(const std::function<void()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&] {
    alarm(60);
    body();
    // GoogleTest prints nothing in the child process, but shows its stderr.
    const auto& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
    for (int i = 0; i < result.total_part_count(); ++i) {
      const auto& part = result.GetTestPartResult(i);
      std::fprintf(stderr, "line %d: %s\n", part.line_number(), part.message());
    }
    std::_Exit(result.Failed() ? 1 : 0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace

/// Replaces libc's function, for this program and all its libraries.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  static std::atomic<uint32_t> calls{0};
  // One day forward and back.
  if (clock == CLOCK_REALTIME && wall_clock_jumps.load() && calls.fetch_add(1) % 2 == 0)
    time->tv_sec += 24 * 3600;
  return result;
}

namespace {

// No time-out may depend on the wall clock.
TEST(Connections, WhileTheWallClockJumps) {
  wall_clock_jumps.store(true);
  {
    ConnectionEnds ends;
    ASSERT_EQ(ends.listen(), 0);
    for (int i = 0; i < 20; ++i) connect_once(ends);
  }
  wall_clock_jumps.store(false);
}

// One allocation fails, in any thread. The attempt to connect may fail, but its outcome is
// reported.
TEST(Connections, WithoutMemory) {
  ConnectionEnds ends;
  ASSERT_EQ(ends.listen(), 0);
  connect_once(ends);
  connect_once(ends);
  const size_t files = open_files();
  for (int n = 1;; ++n) {
    ASSERT_LT(n, kAllocationsMax);
    ASSERT_EQ(ends.resolve(), 0);
    fail_allocation(n, Whose::kAnyThread);
    int error = 0;
    const Outcome outcome = ends.connect(kPatience, error);
    const bool failed = stop_failing_allocations();
    EXPECT_NE(outcome, Outcome::kSilence) << "allocation " << n;
    EXPECT_TRUE(error == 0 || error == ENOMEM || error == ECONNRESET)
        << "allocation " << n << ": " << std::strerror(error);
    ends.disconnect();
    ends.destroy_connection();
    EXPECT_TRUE(wait_until([&] { return open_files() <= files; })) << "allocation " << n;
    if (HasFailure()) return;
    if (!failed) {
      EXPECT_EQ(outcome, Outcome::kConnected);
      break;
    }
  }
  connect_once(ends);
  EXPECT_TRUE(wait_until([&] { return open_files() <= files; }));
}

// The memory for the event of the end is allocated with the connection.
TEST(Connections, EndingWithoutMemory) {
  ConnectionEnds ends;
  ASSERT_EQ(ends.listen(), 0);
  connect_once(ends);
  for (int n = 1;; ++n) {
    ASSERT_LT(n, kAllocationsMax);
    int error = 0;
    ASSERT_EQ(ends.resolve(), 0);
    ASSERT_EQ(ends.connect(kPatience, error), Outcome::kConnected) << std::strerror(error);
    fail_allocation(n, Whose::kAnyThread);
    error = ends.disconnect_client();
    if (error != 0) {
      EXPECT_EQ(error, ENOMEM) << std::strerror(error);
      EXPECT_EQ(ends.disconnect_client(), 0);
    }
    EXPECT_TRUE(ends.both_ended(kPatience)) << "allocation " << n;
    const bool failed = stop_failing_allocations();
    ends.destroy_connection();
    if (HasFailure() || !failed) return;
  }
}

TEST(Connections, ListeningWithoutMemory) {
  for (int n = 1;; ++n) {
    ASSERT_LT(n, kAllocationsMax);
    ConnectionEnds ends;
    fail_allocation(n);
    const int error = ends.listen();
    const bool failed = stop_failing_allocations();
    EXPECT_TRUE(error == 0 || error == ENOMEM) << std::strerror(error);
    if (!failed) break;
  }
}

// If no thread polls, the engine needs its helper thread, and reports that it has none.
TEST(Connections, WithoutThreads) {
  in_a_process([] {
    no_threads.store(true);
    ConnectionEnds ends;
    EXPECT_EQ(ends.listen(), EAGAIN);
    ends.destroy_listener();
    no_threads.store(false);
    ASSERT_EQ(ends.listen(), 0);
    connect_once(ends);
  });
}

TEST(Connections, QueuePairsWithoutThreads) {
  in_a_process([] {
    no_threads.store(true);
    const Context context = open_device();
    ASSERT_NE(context, nullptr);
    const Pd pd(ibv_alloc_pd(context.get()));
    const Cq cq(ibv_create_cq(context.get(), 16, nullptr, nullptr, 0));
    ibv_qp_init_attr shape = init_attributes(cq.get());
    const Qp qp(ibv_create_qp(pd.get(), &shape));
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(to_init(qp.get()), EAGAIN);
    no_threads.store(false);
    EXPECT_EQ(to_init(qp.get()), 0);
  });
}

// The process has no free file descriptors but `spare` ones, one more in each round, until the
// connection succeeds.
TEST(Connections, WithoutFiles) {
  in_a_process([] {
    ConnectionEnds ends;
    ASSERT_EQ(ends.listen(), 0);
    connect_once(ends);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const size_t files = open_files();
    Outcome outcome = Outcome::kRefused;
    // The engine's own descriptors have high numbers, so the test uses up the low ones.
    for (int spare = 0; outcome != Outcome::kConnected; ++spare) {
      ASSERT_LT(spare, 40);
      ASSERT_EQ(ends.resolve(), 0);
      std::vector<int> fill;
      rlimit low = before;
      low.rlim_cur = 2048;
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
      for (int fd = dup(0); fd >= 0; fd = dup(0)) fill.push_back(fd);
      for (int i = 0; i < spare; ++i) {
        close(fill.back());
        fill.pop_back();
      }
      int error = 0;
      outcome = ends.connect(3s, error);
      for (const int fd : fill) close(fd);
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
      EXPECT_TRUE(error == 0 || error == EMFILE || error == ECONNRESET) << std::strerror(error);
      ends.disconnect();
      ends.destroy_connection();
    }
    connect_once(ends);
    EXPECT_TRUE(wait_until([&] { return open_files() <= files; }));
  });
}

// UWARP_TEST_CONNECTIONS=10000 for the long run.
TEST(Connections, Many) {
  ConnectionEnds ends;
  ASSERT_EQ(ends.listen(), 0);
  for (int i = 0; i < 20; ++i) connect_once(ends);
  const size_t files = open_files();
  const int64_t live = live_allocations();
  const int count = connections("UWARP_TEST_CONNECTIONS", 300);
  for (int i = 0; i < count && !HasFailure(); ++i) connect_once(ends);
  EXPECT_TRUE(wait_until([&] { return open_files() <= files; }));
  EXPECT_TRUE(wait_until([&] { return live_allocations() <= live + 16; }))
      << live_allocations() - live << " allocations more after " << count << " connections";
}

}  // namespace
