// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completion channels and asynchronous events: one event per arming, which event comes when, and
// that destroying an object waits until its events are acknowledged.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kNothingComes{50};
/// When a queue that was armed with completions in it raises its event in any case.
constexpr milliseconds kLateEvent{100};
constexpr milliseconds kNothingComesLate = 2 * kLateEvent;

class Events : public VerbsTest {
 protected:
  /// Reads one event of the channel and acknowledges it.
  void take_event(ibv_comp_channel* channel, ibv_cq* expected) {
    ASSERT_TRUE(readable(channel->fd));
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel, &cq, &cq_context), 0);
    EXPECT_EQ(cq, expected);
    ibv_ack_cq_events(cq, 1);
  }
  /// Of a key that `pair.b` does not have, so that it gets an event.
  void post_refused_read(Pair& pair) {
    Address wrong = pair.b.address();
    wrong.rkey ^= 0x77;
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 1, wrong), 0);
  }
  ibv_async_event next_async() {
    const auto event = next_async_event(context());
    EXPECT_TRUE(event.has_value()) << "no asynchronous event";
    return event.value_or(ibv_async_event{});
  }
};

TEST_F(Events, OneEventPerArming) {
  Channel channel(ibv_create_comp_channel(context()));
  ASSERT_NE(channel, nullptr);
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 10; ++i) ASSERT_EQ(pair.b.post_receive(i), 0);
  ASSERT_EQ(pair.a.post_send(1), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 0, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(channel->fd, kNothingComes)) << "not armed";
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  ASSERT_EQ(pair.a.post_send(2), 0);
  ASSERT_EQ(pair.a.post_send(3), 0);
  take_event(channel.get(), pair.b.cq.get());
  EXPECT_FALSE(readable(channel->fd, kNothingComes)) << "one-shot";
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(pair.b.cq.get(), 2, IBV_WC_SUCCESS);
}

/// A completion queue that is armed while it holds a completion.
class LateArming : public Events {
 protected:
  void SetUp() override {
    Events::SetUp();
    channel_.reset(ibv_create_comp_channel(context()));
    pair_ = std::make_unique<Pair>(context(), 1 << 16, channel_.get());
    complete();
  }
  ibv_cq* cq() { return pair_->b.cq.get(); }
  /// Adds one completion to the queue of b, without polling it.
  void complete() {
    ASSERT_EQ(pair_->b.post_receive(1, 512), 0);
    ASSERT_EQ(pair_->a.post_send(2), 0);
    EXPECT_COMPLETION(pair_->a.cq.get(), 2, IBV_WC_SUCCESS);
    // The Read follows the Send on the same stream and has completed at `a`, so the Send has
    // arrived.
    ASSERT_EQ(pair_->a.post_rdma(IBV_WR_RDMA_READ, 3, pair_->b.address(), 0, 8), 0);
    EXPECT_COMPLETION(pair_->a.cq.get(), 3, IBV_WC_SUCCESS);
  }
  /// The channel has an event. The adapter does not see that one looks.
  bool told() {
    std::byte record[8];
    return syscall(SYS_recvfrom, channel_->fd, record, sizeof record, MSG_PEEK | MSG_DONTWAIT,
                   nullptr, nullptr) > 0;
  }
  int poll_all() {
    ibv_wc wc[8];
    int all = 0;
    for (int found = 1; found > 0; all += found) found = ibv_poll_cq(cq(), 8, wc);
    return all;
  }
  Channel channel_;
  std::unique_ptr<Pair> pair_;
};

TEST_F(LateArming, ThreadThatWaitsInPollIsWoken) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  take_event(channel_.get(), cq());
  EXPECT_EQ(poll_all(), 1);
}

TEST_F(LateArming, ThreadThatWaitsInEpollIsWoken) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, channel_->fd, &event), 0);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
    ASSERT_EQ(epoll_wait(set, &event, 1, std::chrono::milliseconds(kPatience).count()), 1);
    take_event(channel_.get(), cq());
  }
  EXPECT_EQ(poll_all(), 1);
  close(set);
}

TEST_F(LateArming, ThreadThatReadsIsWoken) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  // Without an earlier poll(), and in another thread than the one that armed the queue.
  std::thread([&] {
    ibv_cq* found = nullptr;
    void* cq_context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel_.get(), &found, &cq_context), 0);
    EXPECT_EQ(found, cq());
    ibv_ack_cq_events(found, 1);
  }).join();
  EXPECT_EQ(poll_all(), 1);
}

// The thread that armed the queue sleeps until another one wakes it, as UCX's threads do.
TEST_F(LateArming, AThreadThatWaitsInAnotherPlaceIsWoken) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, channel_->fd, &event), 0);
  for (const bool waits_first : {false, true}) {
    SCOPED_TRACE(waits_first);
    int woken = 0;
    const auto wait = [&] {
      woken = epoll_wait(set, &event, 1, std::chrono::milliseconds(kPatience).count());
    };
    std::thread waiter;
    if (waits_first) {
      waiter = std::thread(wait);
      std::this_thread::sleep_for(milliseconds(20));
    }
    ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
    if (!waits_first) waiter = std::thread(wait);
    waiter.join();
    EXPECT_EQ(woken, 1);
    take_event(channel_.get(), cq());
  }
  EXPECT_EQ(poll_all(), 1);
  close(set);
}

// It would not see what the other has taken.
TEST_F(LateArming, AThreadIsToldOfWhatAnotherHasPolled) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  std::thread([&] { EXPECT_EQ(poll_all(), 1); }).join();
  take_event(channel_.get(), cq());
}

// The usual loop: wake up, arm, poll until the queue is empty, wait again.
TEST_F(LateArming, AThreadThatPollsAfterArmingIsNotWokenTwice) {
  EXPECT_EQ(poll_all(), 1);
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  for (int round = 0; round < 20; ++round) {
    complete();
    take_event(channel_.get(), cq());
    ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
    EXPECT_EQ(poll_all(), 1);
    EXPECT_FALSE(readable(channel_->fd, milliseconds(1))) << round;
  }
  EXPECT_FALSE(readable(channel_->fd, kNothingComesLate));
}

// perftest's -e looks for a completion for every event, and takes what it has not found for a
// failed one.
TEST_F(LateArming, AThreadThatLosesItsCoreBeforeItPollsIsNotToldOfWhatItPolls) {
  const auto before = Clock::now();
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  std::this_thread::sleep_for(kLateEvent / 3);
  EXPECT_EQ(poll_all(), 1);
  const bool told_of_it = told();
  EXPECT_TRUE(!told_of_it || Clock::now() - before >= kLateEvent);
}

TEST_F(LateArming, AThreadThatOnlySleepsIsTold) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  EXPECT_TRUE(wait_until([&] { return told(); }));
}

TEST_F(LateArming, AThreadThatDoesSomethingElseIsTold) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  const auto end = Clock::now() + kPatience;
  while (!told() && Clock::now() < end) {
  }
  EXPECT_TRUE(told());
}

TEST_F(LateArming, AThreadThatHasEndedIsTold) {
  std::thread([&] { ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0); }).join();
  EXPECT_TRUE(wait_until([&] { return told(); }));
}

TEST_F(LateArming, OneEventForOneArming) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  take_event(channel_.get(), cq());
  EXPECT_FALSE(readable(channel_->fd, kNothingComesLate)) << "not armed again";
}

TEST_F(LateArming, UnreadEventIsEnough) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  complete();  // raises an event
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  take_event(channel_.get(), cq());
  EXPECT_EQ(poll_all(), 2);
  EXPECT_FALSE(readable(channel_->fd, kNothingComesLate));
}

TEST_F(LateArming, QueueMayGoAway) {
  ASSERT_EQ(ibv_req_notify_cq(cq(), 0), 0);
  pair_.reset();
  EXPECT_FALSE(readable(channel_->fd, kNothingComesLate));
}

TEST_F(Events, SolicitedOnly) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.b.post_receive(i), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 1), 0);
  ASSERT_EQ(pair.a.post_send(1), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 0, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(channel->fd, kNothingComes));
  ASSERT_EQ(pair.a.post_send(2, 0, 64, IBV_SEND_SOLICITED), 0);
  take_event(channel.get(), pair.b.cq.get());
  // An error counts as solicited.
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 1), 0);
  ASSERT_EQ(to_state(pair.b.qp.get(), IBV_QPS_ERR), 0);
  take_event(channel.get(), pair.b.cq.get());
}

TEST_F(Events, NonBlockingChannelFailsWithEagain) {
  Channel channel(ibv_create_comp_channel(context()));
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(channel.get(), &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Events, ChannelInUseCannotBeDestroyed) {
  Channel channel(ibv_create_comp_channel(context()));
  Cq cq(ibv_create_cq(context(), 4, nullptr, channel.get(), 0));
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_destroy_comp_channel(channel.get()), EBUSY);
}

TEST_F(Events, ManyUnreadArmingsDoNotBlock) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
    ASSERT_EQ(pair.b.post_receive(i), 0);
    ASSERT_EQ(pair.a.post_send(i), 0);
    EXPECT_COMPLETION(pair.b.cq.get(), i, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair.a.cq.get(), i, IBV_WC_SUCCESS);
  }
  take_event(channel.get(), pair.b.cq.get());
  while (readable(channel->fd, kNothingComes)) take_event(channel.get(), pair.b.cq.get());
}

TEST_F(Events, UnreadEventOfADestroyedQueueDisappears) {
  Channel channel(ibv_create_comp_channel(context()));
  {
    Pair pair(context(), 1 << 16, channel.get());
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
    ASSERT_EQ(pair.a.post_send(1), 0);
    ASSERT_TRUE(readable(channel->fd));
  }
  EXPECT_FALSE(readable(channel->fd, kNothingComes));
}

TEST_F(Events, DestroyWaitsForTheAcknowledgement) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  ASSERT_EQ(pair.a.post_send(1), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel.get(), &cq, &cq_context), 0);
  pair.b.qp.reset();
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    pair.b.cq.reset();
    destroyed = true;
  });
  std::this_thread::sleep_for(kNothingComes);
  EXPECT_FALSE(destroyed);
  ibv_ack_cq_events(cq, 1);
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

// ibv_get_cq_event() and ibv_get_async_event() use the object after they have read its event.
TEST_F(Events, DestroyWaitsForAThreadThatHasJustRead) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(pair.a.post_send(1), 0);
  ibv_cq* cq = nullptr;
  ASSERT_EQ(read(channel->fd, &cq, sizeof cq), static_cast<ssize_t>(sizeof cq));
  ASSERT_EQ(cq, pair.b.cq.get());
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(pair.b.qp.get(), &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  struct {
    ibv_qp* element;
    uint32_t type, reserved;
  } record = {};
  do {
    ASSERT_TRUE(readable(context()->async_fd));
    ASSERT_EQ(read(context()->async_fd, &record, sizeof record),
              static_cast<ssize_t>(sizeof record));
  } while (record.type == IBV_EVENT_COMM_EST);
  ASSERT_EQ(record.element, pair.b.qp.get());
  std::atomic<int> destroyed{0};
  std::thread destroyer([&] {
    pair.b.qp.reset();
    ++destroyed;
    pair.b.cq.reset();
    ++destroyed;
  });
  std::this_thread::sleep_for(kNothingComes);
  EXPECT_EQ(destroyed, 0);
  ibv_async_event event = {};
  event.element.qp = record.element;
  event.event_type = static_cast<ibv_event_type>(record.type);
  if (destroyed == 0) ibv_ack_async_event(&event);
  std::this_thread::sleep_for(kNothingComes);
  EXPECT_EQ(destroyed, 1);
  if (destroyed == 1) ibv_ack_cq_events(cq, 1);
  destroyer.join();
}

// As NCCL does for its log, in a thread that takes events while another one destroys the queue
// pair.
TEST_F(Events, TheQueuePairOfAnEventCanBeAskedForUntilItIsAcknowledged) {
  Pair pair(context());
  post_refused_read(pair);
  EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
  const ibv_async_event event = next_async();
  ASSERT_NE(event.element.qp, nullptr);
  ASSERT_EQ(state_of(event.element.qp), IBV_QPS_ERR);
  auto& destroyed = event.element.qp == pair.a.qp.get() ? pair.a.qp : pair.b.qp;
  std::thread destroyer([&] { destroyed.reset(); });
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_TRUE(wait_until([&] {
    const int error = ibv_query_qp(event.element.qp, &attr, IBV_QP_STATE, &init);
    EXPECT_TRUE(error == 0 || error == EINVAL) << error;
    return error == EINVAL;
  }));
  std::this_thread::sleep_for(kNothingComes);
  EXPECT_EQ(ibv_query_qp(event.element.qp, &attr, IBV_QP_STATE, &init), EINVAL);
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(event.element.qp, &attr, IBV_QP_STATE), EINVAL);
  ibv_async_event taken = event;
  ibv_ack_async_event(&taken);
  destroyer.join();
}

TEST_F(Events, AccessErrorAtTheTarget) {
  Pair pair(context());
  post_refused_read(pair);
  EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
  // The target's event gives the reason. The requester, which got a Terminate, only reports that
  // its connection failed, and between InfiniBand adapters not even that.
  bool target = false;
  for (int i = 0; i < (roce() ? 1 : 2); ++i) {
    ibv_async_event event = next_async();
    if (event.element.qp == nullptr) break;
    if (event.element.qp == pair.b.qp.get()) {
      target = true;
      EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    } else {
      EXPECT_EQ(event.element.qp, pair.a.qp.get());
      EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
    }
    ibv_ack_async_event(&event);
  }
  EXPECT_TRUE(target);
  EXPECT_FALSE(next_async_event(context(), kNothingComes)) << "one event per failure";
}

TEST_F(Events, DestroyQpWaitsForTheAcknowledgement) {
  Pair pair(context());
  post_refused_read(pair);
  ibv_async_event event = next_async();
  ASSERT_NE(event.element.qp, nullptr);
  Qp& failed = event.element.qp == pair.b.qp.get() ? pair.b.qp : pair.a.qp;
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    failed.reset();
    destroyed = true;
  });
  std::this_thread::sleep_for(kNothingComes);
  EXPECT_FALSE(destroyed);
  ibv_ack_async_event(&event);
  destroyer.join();
}

TEST_F(Events, DrainedSendQueue) {
  Pair pair(context());
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(pair.a.qp.get(), &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ibv_async_event event = next_async();
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event.element.qp, pair.a.qp.get());
  if (event.element.qp != nullptr) ibv_ack_async_event(&event);
}

TEST_F(Events, OverrunOfACompletionQueue) {
  End a(context()), b(context());
  Cq small(ibv_create_cq(context(), 1, nullptr, nullptr, 0));
  ASSERT_NE(small, nullptr);
  const int depth = small->cqe;
  ibv_qp_init_attr init = init_attributes(small.get(), static_cast<uint32_t>(depth) + 8);
  Qp qp(ibv_create_qp(b.pd.get(), &init));
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp.get()), 0);
  for (int i = 0; i < depth + 4; ++i) {
    ibv_recv_wr wr = {};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
  }
  Address address = b.address();
  address.qpn = qp->qp_num;
  ASSERT_EQ(to_rtr(qp.get(), a.address()), 0);
  a.connect(address);
  ASSERT_EQ(to_rts(qp.get(), address.psn), 0);
  for (int i = 0; i < depth + 2; ++i) ASSERT_EQ(a.post_send(i, 0, 0), 0);
  bool overrun = false, fatal = false;
  while (readable(context()->async_fd, overrun ? kNothingComes : milliseconds(kPatience))) {
    ibv_async_event event = {};
    ASSERT_EQ(ibv_get_async_event(context(), &event), 0);
    if (event.event_type == IBV_EVENT_CQ_ERR) {
      EXPECT_EQ(event.element.cq, small.get());
      EXPECT_FALSE(overrun) << "once per queue";
      overrun = true;
    }
    if (event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp.get()) fatal = true;
    ibv_ack_async_event(&event);
  }
  EXPECT_TRUE(overrun);
  EXPECT_TRUE(fatal);
  EXPECT_TRUE(wait_until([&] { return state_of(qp.get()) == IBV_QPS_ERR; }));
  // The stored completions can be polled; then the queue reports the overrun.
  ibv_wc wc;
  for (int i = 0; i < depth; ++i) EXPECT_EQ(ibv_poll_cq(small.get(), 1, &wc), 1) << i;
  EXPECT_LT(ibv_poll_cq(small.get(), 1, &wc), 0);
}

}  // namespace
