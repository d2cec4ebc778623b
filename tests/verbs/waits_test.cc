// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All ways to wait for a completion channel. The waiting thread serves the sockets.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "verbs/verbs_fixture.h"

// Programs built with _FORTIFY_SOURCE call these functions, which not all headers declare.
extern "C" {
int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals,
                size_t room);
ssize_t __read_chk(int fd, void* bytes, size_t length, size_t room);
ssize_t __recv_chk(int fd, void* bytes, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* bytes, size_t length, size_t room, int flags, sockaddr* from,
                       socklen_t* from_room);
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{1000};
/// When another thread begins to poll. It then serves the sockets instead of the waiting thread.
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
  /// Does a Read and polls without a pause.
  void read_polling() {
    ASSERT_EQ(pair_->a.post_rdma(IBV_WR_RDMA_READ, 1, pair_->b.address(), 0, 8), 0);
    ibv_wc completion{};
    const auto end = Clock::now() + kPatience;
    while (ibv_poll_cq(pair_->a.cq.get(), 1, &completion) == 0) ASSERT_LT(Clock::now(), end);
    EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
  }
  /// Nothing arrives during this wait, while another thread begins a Read and polls. The wait must
  /// not end early. Nor may it start again when the polling begins: so it must end before a sleep
  /// of the length that such a wait would have.
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

// Each way in which a program can wait for a channel, without a time limit.
struct Way {
  const char* name;
  int (*wait)(int fd, const sigset_t* signals);
  bool takes_signals;
};

int wait_by_epoll(int fd, const std::function<int(int, epoll_event*)>& wait) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  const int result = wait(set, &event);
  const int error = errno;
  close(set);
  errno = error;
  return result;
}

int wait_by_sets(int fd, const std::function<int(int, fd_set*)>& wait) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  const int result = wait(fd + 1, &set);
  // A call that fails does not change the set.
  EXPECT_TRUE(FD_ISSET(fd, &set));
  return result;
}

constexpr Way kWays[] = {
    {"poll",
     [](int fd, const sigset_t*) {
       pollfd wait{fd, POLLIN, 0};
       return poll(&wait, 1, -1);
     },
     false},
    {"ppoll",
     [](int fd, const sigset_t* signals) {
       pollfd wait{fd, POLLIN, 0};
       return ppoll(&wait, 1, nullptr, signals);
     },
     true},
    {"__poll_chk",
     [](int fd, const sigset_t*) {
       pollfd wait{fd, POLLIN, 0};
       return __poll_chk(&wait, 1, -1, sizeof wait);
     },
     false},
    {"__ppoll_chk",
     [](int fd, const sigset_t* signals) {
       pollfd wait{fd, POLLIN, 0};
       return __ppoll_chk(&wait, 1, nullptr, signals, sizeof wait);
     },
     true},
    {"select",
     [](int fd, const sigset_t*) {
       return wait_by_sets(
           fd, [](int end, fd_set* set) { return select(end, set, nullptr, nullptr, nullptr); });
     },
     false},
    {"pselect",
     [](int fd, const sigset_t* signals) {
       return wait_by_sets(fd, [&](int end, fd_set* set) {
         return pselect(end, set, nullptr, nullptr, nullptr, signals);
       });
     },
     true},
    {"epoll_wait",
     [](int fd, const sigset_t*) {
       return wait_by_epoll(
           fd, [](int set, epoll_event* event) { return epoll_wait(set, event, 1, -1); });
     },
     false},
    {"epoll_pwait",
     [](int fd, const sigset_t* signals) {
       return wait_by_epoll(fd, [&](int set, epoll_event* event) {
         return epoll_pwait(set, event, 1, -1, signals);
       });
     },
     true},
    {"epoll_pwait2",
     [](int fd, const sigset_t* signals) {
       return wait_by_epoll(fd, [&](int set, epoll_event* event) {
         return epoll_pwait2(set, event, 1, nullptr, signals);
       });
     },
     true},
    {"poll of an epoll set",
     [](int fd, const sigset_t*) -> int {
       return wait_by_epoll(fd, [](int set, epoll_event*) {
         pollfd wait{set, POLLIN, 0};
         return poll(&wait, 1, -1);
       });
     },
     false},
    {"an epoll set in another",
     [](int fd, const sigset_t*) {
       return wait_by_epoll(fd, [](int inner, epoll_event*) {
         return wait_by_epoll(
             inner, [](int set, epoll_event* event) { return epoll_wait(set, event, 1, -1); });
       });
     },
     false},
};

class WaysToWait : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    channel_.reset(ibv_create_comp_channel(context()));
    ASSERT_NE(channel_, nullptr);
    pair_ = std::make_unique<Pair>(context(), 1 << 20, channel_.get());
  }
  void TearDown() override {
    pair_.reset();
    channel_.reset();
  }
  /// The queue is armed, and another thread posts the request that raises its event.
  void with_event_on_its_way(const std::function<void()>& wait) {
    ASSERT_EQ(pair_->b.post_receive(1), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair_->b.cq.get(), 0), 0);
    std::thread sender([&] { EXPECT_EQ(pair_->a.post_send(2), 0); });
    wait();
    sender.join();
    EXPECT_COMPLETION(pair_->b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair_->a.cq.get(), 2, IBV_WC_SUCCESS);
  }

  Channel channel_;
  std::unique_ptr<Pair> pair_;
};

TEST_F(WaysToWait, EachReturnsForAnEvent) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    for (int i = 0; i < 20 && !HasFailure(); ++i) {
      with_event_on_its_way([&] {
        EXPECT_EQ(way.wait(channel_->fd, nullptr), 1);
        ibv_cq* cq = nullptr;
        void* cq_context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(channel_.get(), &cq, &cq_context), 0);
        EXPECT_EQ(cq, pair_->b.cq.get());
        ibv_ack_cq_events(cq, 1);
      });
    }
  }
}

TEST_F(WaysToWait, EachHasItsEventReadByAnyRead) {
  static constexpr size_t kEvent = sizeof(uint64_t);
  struct {
    const char* name;
    ssize_t (*read)(int fd, const iovec* pieces, int count);
  } const reads[] = {
      {"readv", [](int fd, const iovec* pieces, int count) { return readv(fd, pieces, count); }},
      {"preadv2",
       [](int fd, const iovec* pieces, int count) { return preadv2(fd, pieces, count, -1, 0); }},
      {"preadv64v2",
       [](int fd, const iovec* pieces, int count) { return preadv64v2(fd, pieces, count, -1, 0); }},
      {"__read_chk", [](int fd, const iovec* pieces,
                        int) { return __read_chk(fd, pieces->iov_base, kEvent, kEvent); }},
      {"recv",
       [](int fd, const iovec* pieces, int) { return recv(fd, pieces->iov_base, kEvent, 0); }},
      {"__recv_chk", [](int fd, const iovec* pieces,
                        int) { return __recv_chk(fd, pieces->iov_base, kEvent, kEvent, 0); }},
      {"recvfrom", [](int fd, const iovec* pieces,
                      int) { return recvfrom(fd, pieces->iov_base, kEvent, 0, nullptr, nullptr); }},
      {"__recvfrom_chk",
       [](int fd, const iovec* pieces, int) {
         return __recvfrom_chk(fd, pieces->iov_base, kEvent, kEvent, 0, nullptr, nullptr);
       }},
      {"recvmsg",
       [](int fd, const iovec* pieces, int count) {
         msghdr message{};
         message.msg_iov = const_cast<iovec*>(pieces);
         message.msg_iovlen = static_cast<size_t>(count);
         return recvmsg(fd, &message, 0);
       }},
      {"recvmmsg",
       [](int fd, const iovec* pieces, int count) {
         mmsghdr message{};
         message.msg_hdr.msg_iov = const_cast<iovec*>(pieces);
         message.msg_hdr.msg_iovlen = static_cast<size_t>(count);
         const int got = recvmmsg(fd, &message, 1, 0, nullptr);
         return got == 1 ? static_cast<ssize_t>(message.msg_len) : -1;
       }},
  };
  for (const auto& way : reads) {
    SCOPED_TRACE(way.name);
    // libibverbs does not see such a read, so a queue gives only one event.
    pair_ = std::make_unique<Pair>(context(), 1 << 20, channel_.get());
    with_event_on_its_way([&] {
      // One event is one word. It is read in two parts; calls that take one buffer fill both.
      uint64_t handle = 0;
      char* const bytes = reinterpret_cast<char*>(&handle);
      const iovec pieces[] = {{bytes, kEvent / 2}, {bytes + kEvent / 2, kEvent / 2}};
      ASSERT_EQ(way.read(channel_->fd, pieces, 2), static_cast<ssize_t>(kEvent));
      EXPECT_NE(handle, 0u);
      ibv_ack_cq_events(pair_->b.cq.get(), 1);
    });
  }
}

void count_signal(int) {}

// For programs that want a signal only while they wait: it is blocked otherwise, and may be pending
// when the wait begins.
TEST_F(WaysToWait, TheMaskOfAWaitLetsItsSignalsIn) {
  struct sigaction action {
  }, before{};
  action.sa_handler = count_signal;
  action.sa_flags = SA_RESTART;  // has no effect on these waits
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  sigset_t blocked, saved;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &saved), 0);
  const pthread_t waiting = pthread_self();
  for (const Way& way : kWays) {
    if (!way.takes_signals) continue;
    SCOPED_TRACE(way.name);
    pthread_kill(waiting, SIGUSR1);
    errno = 0;
    EXPECT_EQ(way.wait(channel_->fd, &saved), -1);
    EXPECT_EQ(errno, EINTR);
    // And a signal that comes while the thread sleeps, or just before.
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(20));
      pthread_kill(waiting, SIGUSR1);
    });
    EXPECT_EQ(way.wait(channel_->fd, &saved), -1);
    EXPECT_EQ(errno, EINTR);
    other.join();
  }
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(WaysToWait, SelectReportsHowMuchTimeIsLeft) {
  timeval timeout{0, 1000};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(channel_->fd, &set);
  EXPECT_EQ(select(channel_->fd + 1, &set, nullptr, nullptr, &timeout), 0);
  EXPECT_FALSE(FD_ISSET(channel_->fd, &set));
  EXPECT_EQ(timeout.tv_sec, 0);
  EXPECT_EQ(timeout.tv_usec, 0);
  for (const timeval wrong : {timeval{-1, 0}, timeval{0, -1}}) {
    timeout = wrong;
    FD_SET(channel_->fd, &set);
    errno = 0;
    EXPECT_EQ(select(channel_->fd + 1, &set, nullptr, nullptr, &timeout), -1);
    EXPECT_EQ(errno, EINVAL);
  }
}

}  // namespace
