// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What may happen to application threads inside a verb: signals, cancellation, and the end of the
// process.
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

#include "verbs/cm_ends.h"
#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

class Threads : public VerbsTest {
 protected:
  /// One message from `a` to `b`.
  static void exchange(End& a, End& b) {
    ASSERT_EQ(b.post_receive(1), 0);
    ASSERT_EQ(a.post_send(2), 0);
    EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  }
};

/// Connects two queue pairs and reads from one to the other, polling all the time.
bool connects_and_reads(ibv_context* context) {
  Pair pair(context, 4096);
  if (pair.a.post_rdma(IBV_WR_RDMA_READ, 1, pair.b.address()) != 0) return false;
  ibv_wc read{};
  while (ibv_poll_cq(pair.a.cq.get(), 1, &read) == 0) continue;
  return read.status == IBV_WC_SUCCESS;
}

// More pollers than cores: one that loses its core while it serves the sockets holds all others up,
// which must not take them a time slice each. Else the timers of connections run out.
TEST_F(Threads, ManyThatPollKeepNoConnectionFromBeingMade) {
  constexpr int kThreads = 256, kRounds = 3;
  std::atomic<int> successes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) successes += connects_and_reads(context());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(successes, kThreads * kRounds);
}

std::atomic<uint64_t> signals_seen{0};
std::atomic<uint64_t> signals_astray{0};
thread_local bool is_ours = false;

void on_signal(int) { (is_ours ? signals_seen : signals_astray).fetch_add(1); }

/// The next completion, awaited through the channel; calls that a signal interrupts are repeated.
ibv_wc wait_for_completion(End& end, ibv_comp_channel* channel) {
  ibv_wc wc = {};
  while (ibv_poll_cq(end.cq.get(), 1, &wc) == 0) {
    EXPECT_EQ(ibv_req_notify_cq(end.cq.get(), 0), 0);
    if (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) break;
    ibv_cq* which = nullptr;
    void* cookie = nullptr;
    while (ibv_get_cq_event(channel, &which, &cookie) != 0) EXPECT_EQ(errno, EINTR);
    ibv_ack_cq_events(which, 1);
  }
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << wc.wr_id;
  return wc;
}

// A handler without SA_RESTART interrupts all calls that can be interrupted. One end polls, the
// other sleeps.
TEST_F(Threads, SignalsDisturbNothing) {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_signal;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  Channel channel(ibv_create_comp_channel(context()));
  {
    End a(context()), b(context(), 1 << 20, channel.get());
    a.connect(b.address());
    b.connect(a.address());
    constexpr uint64_t kRounds = 1500;
    constexpr uint32_t kBytes = 100'000;
    ASSERT_EQ(b.post_receive(0, 0, kBytes), 0);
    std::atomic<bool> over{false};
    std::atomic<int> ready{0};
    std::thread sleeper([&] {
      is_ours = true;
      ++ready;
      for (uint64_t received = 0, sent = 0; received < kRounds || sent < kRounds;) {
        const ibv_wc wc = wait_for_completion(b, channel.get());
        if (wc.status != IBV_WC_SUCCESS) break;
        if (wc.opcode != IBV_WC_RECV) {
          ++sent;
          continue;
        }
        EXPECT_EQ(wc.wr_id, received);
        ++received;
        EXPECT_EQ(b.post_receive(received, 0, kBytes), 0);
        EXPECT_EQ(b.post_send(kRounds), 0);
      }
      over = true;
      while (signals_seen == 0) std::this_thread::yield();  // stays alive to get a signal
    });
    std::thread poller([&] {
      is_ours = true;
      ++ready;
      for (uint64_t i = 0; i < kRounds; ++i) {
        EXPECT_EQ(a.post_receive(i), 0);
        EXPECT_EQ(a.post_send(kRounds + i, 0, kBytes), 0);
        for (const auto& [id, status] : next_completions(a.cq.get(), 2))
          EXPECT_EQ(status, IBV_WC_SUCCESS) << id;
      }
      while (!over) std::this_thread::yield();
    });
    while (ready != 2) std::this_thread::yield();
    while (!over || signals_seen == 0) {
      // Signals for these two threads and, below, for the process. No thread of the library may
      // handle the latter.
      if (!over) pthread_kill(poller.native_handle(), SIGUSR1);
      if (!over || signals_seen == 0) pthread_kill(sleeper.native_handle(), SIGUSR1);
      std::this_thread::sleep_for(microseconds(100));
    }
    poller.join();
    sleeper.join();
  }
  EXPECT_GT(signals_seen, 0u);
#ifndef __SANITIZE_THREAD__  // it has a thread of its own
  // Besides these threads only the main thread may handle it.
  is_ours = true;
  for (int i = 0; i < 100; ++i) kill(getpid(), SIGUSR1);
  EXPECT_EQ(signals_astray, 0u);
#endif
  sigaction(SIGUSR1, &before, nullptr);
}

/// Cancels the thread and joins it; it must have been cancelled.
void cancel(pthread_t thread) {
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

struct Traffic {
  Pair* pair;
  std::atomic<uint64_t> posted{0}, taken{0}, received{0};
};

// Posts and polls, with a cancellation point in between.
void* busy_thread(void* argument) {
  auto& traffic = *static_cast<Traffic*>(argument);
  for (;;) {
    if (traffic.posted - traffic.taken < 16 && traffic.posted - traffic.received < 16) {
      EXPECT_EQ(traffic.pair->b.post_receive(0, 0, 4096), 0);
      EXPECT_EQ(traffic.pair->a.post_send(0, 0, 4096), 0);
      ++traffic.posted;
    }
    ibv_wc wc = {};
    if (ibv_poll_cq(traffic.pair->a.cq.get(), 1, &wc) == 1) ++traffic.taken;
    if (ibv_poll_cq(traffic.pair->b.cq.get(), 1, &wc) == 1) ++traffic.received;
    pthread_testcancel();
  }
}

// Neither posting nor polling is a cancellation point: a call that has begun completes.
TEST_F(Threads, CancelledWhilePostingAndPolling) {
  Pair pair(context());
  Traffic traffic{&pair};
  for (int round = 0; round < 40; ++round) {
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, nullptr, busy_thread, &traffic), 0);
    std::this_thread::sleep_for(microseconds(50 + 150 * round));
    cancel(thread);
  }
  const auto end = steady_clock::now() + kPatience;
  ibv_wc wc = {};
  while (traffic.taken < traffic.posted || traffic.received < traffic.posted) {
    ASSERT_LT(steady_clock::now(), end);
    if (ibv_poll_cq(pair.a.cq.get(), 1, &wc) == 1) ++traffic.taken;
    if (ibv_poll_cq(pair.b.cq.get(), 1, &wc) == 1) ++traffic.received;
  }
  EXPECT_EQ(traffic.taken, traffic.posted);
  EXPECT_EQ(traffic.received, traffic.posted);
  exchange(pair.a, pair.b);
}

void* completion_event_thread(void* channel) {
  ibv_cq* which = nullptr;
  void* cookie = nullptr;
  (void)ibv_get_cq_event(static_cast<ibv_comp_channel*>(channel), &which, &cookie);
  return nullptr;
}

void* async_event_thread(void* context) {
  ibv_async_event event = {};
  (void)ibv_get_async_event(static_cast<ibv_context*>(context), &event);
  return nullptr;
}

// These two calls wait, and are cancellation points like read(). A cancelled thread loses no event.
TEST_F(Threads, CancelledWhileWaitingForEvents) {
  Channel channel(ibv_create_comp_channel(context()));
  {
    End a(context()), b(context(), 1 << 20, channel.get());
    a.connect(b.address());
    b.connect(a.address());
    exchange(a, b);
    // COMM_EST may be in the queue; take it, because the cancelled threads must find nothing.
    EXPECT_FALSE(next_async_event(context(), std::chrono::milliseconds(0)));
    ASSERT_EQ(ibv_req_notify_cq(b.cq.get(), 0), 0);
    for (int round = 0; round < 5; ++round) {
      pthread_t thread;
      ASSERT_EQ(pthread_create(&thread, nullptr, completion_event_thread, channel.get()), 0);
      std::this_thread::sleep_for(microseconds(1000 * round));
      cancel(thread);
      ASSERT_EQ(pthread_create(&thread, nullptr, async_event_thread, context()), 0);
      std::this_thread::sleep_for(microseconds(1000 * round));
      cancel(thread);
    }
    ASSERT_EQ(b.post_receive(7), 0);
    ASSERT_EQ(a.post_send(8), 0);
    ASSERT_TRUE(readable(channel->fd));
    ibv_cq* which = nullptr;
    void* cookie = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel.get(), &which, &cookie), 0);
    EXPECT_EQ(which, b.cq.get());
    ibv_ack_cq_events(which, 1);
  }
}

void* cm_event_thread(void* channel) {
  rdma_cm_event* event = nullptr;
  (void)rdma_get_cm_event(static_cast<rdma_event_channel*>(channel), &event);
  return nullptr;
}

TEST_F(Threads, CancelledWhileWaitingForACmEvent) {
  const CmChannel channel = make_cm_channel();
  const CmId id = make_cm_id(channel.get());
  for (int round = 0; round < 5; ++round) {
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, nullptr, cm_event_thread, channel.get()), 0);
    std::this_thread::sleep_for(microseconds(5000 * round));
    cancel(thread);
  }
  sockaddr_storage address = cm_address("127.0.0.1");
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, generic(address), 1000), 0);
  EXPECT_EQ(expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED), id.get());
}

// ---- The end of the process. Each test runs in its own process.

Pair* pair_at_exit = nullptr;

/// Sends one message from `pair.a` to `pair.b`; true if it arrived.
bool exchanged(Pair& pair) {
  const bool posted = pair.b.post_receive(1) == 0 && pair.a.post_send(2) == 0;
  const auto received = next_completion(pair.b.cq.get());
  const auto sent = next_completion(pair.a.cq.get());
  return posted && received && received->status == IBV_WC_SUCCESS && sent &&
         sent->status == IBV_WC_SUCCESS;
}

/// An exit handler with traffic and an orderly end of everything.
void use_at_exit() {
  ibv_context* const context = pair_at_exit->a.pd->context;
  const bool fine = exchanged(*pair_at_exit);
  delete pair_at_exit;
  if (!fine || ibv_close_device(context) != 0) _exit(1);
}

class AtExit : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(AtExit, HandlersOfTheApplicationMayUseVerbs) {
  const bool before = GetParam();
  EXPECT_EXIT(
      {
        // Handlers run in the opposite order, so this one runs after the library's if it is
        // registered before it, and else before.
        if (before) std::atexit(use_at_exit);
        ibv_context* const context = open_device().release();
        pair_at_exit = new Pair(context);
        if (!exchanged(*pair_at_exit)) _exit(1);
        if (!before) std::atexit(use_at_exit);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Registered, AtExit, ::testing::Bool());

TEST_F(AtExit, WhileOtherThreadsPollAndWait) {
  EXPECT_EXIT(
      {
        ibv_context* const context = open_device().release();
        Channel channel(ibv_create_comp_channel(context));
        Pair pair(context, 1 << 20, channel.get());
        std::thread([&] {
          ibv_wc wc[4];
          for (;;) (void)ibv_poll_cq(pair.a.cq.get(), 4, wc);
        }).detach();
        std::thread([&] { completion_event_thread(channel.get()); }).detach();
        std::thread([&] {
          for (;;) (void)pair.a.post_rdma(IBV_WR_RDMA_WRITE, 0, pair.b.address(), 0, 4096);
        }).detach();
        std::this_thread::sleep_for(microseconds(20'000));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
