// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// poll() and its like on a completion channel, in which the thread that waits serves the sockets.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{1000};
/// When somebody else begins to poll, so that the thread that waits leaves the serving to that one.
constexpr milliseconds kPollingBegins{800};
constexpr milliseconds kPollingLasts{60};

class Waits : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    channel_.reset(ibv_create_comp_channel(context()));
    ASSERT_NE(channel_, nullptr);
    pair_ = std::make_unique<Pair>(context());
    read_polling();
  }
  /// Without a rest between two polls.
  void read_polling() {
    ASSERT_EQ(pair_->a.post_rdma(IBV_WR_RDMA_READ, 1, pair_->b.address(), 0, 8), 0);
    ibv_wc completion{};
    const auto end = Clock::now() + kPatience;
    while (ibv_poll_cq(pair_->a.cq.get(), 1, &completion) == 0) ASSERT_LT(Clock::now(), end);
    EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
  }
  /// A wait in which nothing comes, while another thread begins to exchange and to poll. It does
  /// not end early, and it is over before a sleep that lasts until a wait would be over that had
  /// begun anew at that moment.
  void expect_full_wait(const std::function<int()>& wait) {
    std::atomic<int> ended{0};
    int wait_ended = 0, sleep_ended = 0;
    std::thread waiting([&] {
      const auto began = Clock::now();
      EXPECT_EQ(wait(), 0);
      EXPECT_GE(Clock::now() - began, kTimeout);
      wait_ended = ++ended;
    });
    std::thread sleeping([&] {
      std::this_thread::sleep_for(kTimeout + kPollingBegins);
      sleep_ended = ++ended;
    });
    std::this_thread::sleep_for(kPollingBegins);
    const auto end = Clock::now() + kPollingLasts;
    while (Clock::now() < end && !HasFailure()) read_polling();
    waiting.join();
    sleeping.join();
    EXPECT_LT(wait_ended, sleep_ended);
  }

  Channel channel_;
  std::unique_ptr<Pair> pair_;
};

TEST_F(Waits, PollLastsAsLongAsItShould) {
  pollfd wait{channel_->fd, POLLIN, 0};
  expect_full_wait([&] { return poll(&wait, 1, kTimeout.count()); });
}

TEST_F(Waits, PpollLastsAsLongAsItShould) {
  pollfd wait{channel_->fd, POLLIN, 0};
  const timespec timeout{1, 0};
  static_assert(kTimeout == std::chrono::seconds(1));
  expect_full_wait([&] { return ppoll(&wait, 1, &timeout, nullptr); });
}

TEST_F(Waits, EpollWaitLastsAsLongAsItShould) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, channel_->fd, &event), 0);
  expect_full_wait([&] { return epoll_wait(set, &event, 1, kTimeout.count()); });
  close(set);
}

TEST_F(Waits, WrongTimesAreRefused) {
  pollfd wait{channel_->fd, POLLIN, 0};
  for (const timespec timeout : {timespec{-1, 0}, timespec{0, -1}, timespec{0, 1'000'000'000}}) {
    errno = 0;
    EXPECT_EQ(ppoll(&wait, 1, &timeout, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
  }
}

}  // namespace
