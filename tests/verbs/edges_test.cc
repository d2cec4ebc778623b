// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Event loops with EPOLLET: each channel is read until EAGAIN after an edge. What a descriptor
// reports must be readable by then, since there is no second edge for it. Each event is awaited
// before the next is made, so that no later event hides a lost one.
#include <fcntl.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "verbs/cm_ends.h"

namespace {

/// A thread that calls `read_all` after each edge of `fd`.
class EdgeReader {
 public:
  EdgeReader(int fd, std::function<void()> read_all)
      : set_(epoll_create1(EPOLL_CLOEXEC)), stop_(eventfd(0, EFD_CLOEXEC)) {
    EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    watch(fd);
    watch(stop_);
    thread_ = std::thread([this, fd, read_all = std::move(read_all)] {
      for (epoll_event found = {};;) {
        if (epoll_wait(set_, &found, 1, -1) != 1) continue;
        if (found.data.fd != fd) return;
        read_all();
      }
    });
  }
  ~EdgeReader() {
    const uint64_t one = 1;
    EXPECT_EQ(write(stop_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
    close(stop_);
    close(set_);
  }
  EdgeReader(const EdgeReader&) = delete;
  EdgeReader& operator=(const EdgeReader&) = delete;

 private:
  void watch(int fd) {
    epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
    EXPECT_EQ(epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event), 0);
  }

  const int set_;
  const int stop_;
  std::thread thread_;
};

/// Counts what the reader has found.
class Found {
 public:
  Found() { sem_init(&count_, 0, 0); }
  ~Found() { sem_destroy(&count_); }
  void add() { sem_post(&count_); }
  /// False: nothing came in time, so an edge was lost.
  bool wait() {
    timespec limit = {};
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += kPatience.count();
    while (sem_timedwait(&count_, &limit) != 0)
      if (errno != EINTR) return false;
    return true;
  }

 private:
  sem_t count_;
};

class Edges : public VerbsTest {};

TEST_F(Edges, OfAConnectionManagersChannel) {
  const CmChannel channel = make_cm_channel();
  Found found;
  const EdgeReader reader(channel->fd, [&] {
    rdma_cm_event* event = nullptr;
    while (rdma_get_cm_event(channel.get(), &event) == 0) {
      rdma_ack_cm_event(event);
      found.add();
    }
    EXPECT_EQ(errno, EAGAIN);
  });
  for (int i = 0; i < 10'000; ++i) {
    const CmId id = make_cm_id(channel.get());
    sockaddr_storage to = cm_address("127.0.0.1", 1);
    ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, generic(to), 2000), 0);
    ASSERT_TRUE(found.wait()) << "event " << i;
  }
}

TEST_F(Edges, OfACompletionChannel) {
  Channel channel(ibv_create_comp_channel(context()));
  End a(context(), 4096), b(context(), 4096, channel.get());
  a.connect(b.address());
  b.connect(a.address());
  Found found;
  uint32_t events = 0;
  ASSERT_EQ(ibv_req_notify_cq(b.cq.get(), 0), 0);
  {
    const EdgeReader reader(channel->fd, [&] {
      ibv_cq* cq = nullptr;
      void* its_context = nullptr;
      while (ibv_get_cq_event(channel.get(), &cq, &its_context) == 0) ++events;
      EXPECT_EQ(errno, EAGAIN);
      EXPECT_EQ(ibv_req_notify_cq(b.cq.get(), 0), 0);
      ibv_wc wc;
      while (ibv_poll_cq(b.cq.get(), 1, &wc) == 1) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        found.add();
      }
    });
    for (int i = 0; i < 10'000; ++i) {
      ASSERT_EQ(b.post_receive(1, 512), 0);
      ASSERT_EQ(a.post_send(2), 0);
      EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
      ASSERT_TRUE(found.wait()) << "message " << i;
    }
  }
  ibv_ack_cq_events(b.cq.get(), events);
}

// When the event can be read, the queue pair is already in the state that it reports.
TEST_F(Edges, OfAnAsynchronousChannel) {
  Found found;
  const EdgeReader reader(context()->async_fd, [&] {
    ibv_async_event event = {};
    while (ibv_get_async_event(context(), &event) == 0) {
      if (event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
        EXPECT_EQ(state_of(event.element.qp), IBV_QPS_ERR);
        found.add();
      }
      ibv_ack_async_event(&event);
    }
    EXPECT_EQ(errno, EAGAIN);
  });
  for (int i = 0; i < 200; ++i) {
    Pair pair(context(), 4096);
    Address wrong = pair.b.address();
    wrong.rkey ^= 0x5a00;
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 1, wrong), 0);
    ASSERT_TRUE(found.wait()) << "event " << i;
  }
}

}  // namespace
