// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Shared receive queues: fairness to waiting streams, limit events, resizing, and their end.
#include <cerrno>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

class SharedReceive : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 1024, nullptr, nullptr, 0));
    memory_.resize(1 << 16);
    mr_.reset(ibv_reg_mr(pd_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
    make_queue(64);
    ASSERT_NE(srq_, nullptr);
  }
  void TearDown() override {
    srq_.reset();
    mr_.reset();
    cq_.reset();
    pd_.reset();
  }
  void make_queue(uint32_t depth) {
    ibv_srq_init_attr init = {nullptr, {depth, 1, 0}};
    srq_.reset(ibv_create_srq(pd_.get(), &init));
  }
  /// A queue pair that uses the shared receive queue, connected to `peer`.
  Qp receiver(End& peer, uint32_t psn) {
    ibv_qp_init_attr init = init_attributes(cq_.get());
    init.srq = srq_.get();
    Qp qp(ibv_create_qp(pd_.get(), &init));
    EXPECT_NE(qp, nullptr);
    join(qp.get(), peer, psn);
    return qp;
  }
  static void join(ibv_qp* qp, End& peer, uint32_t psn) {
    EXPECT_EQ(to_init(qp), 0);
    EXPECT_EQ(to_rtr(qp, peer.address()), 0);
    EXPECT_EQ(to_rts(qp, psn), 0);
    Address address = peer.address();
    address.qpn = qp->qp_num;
    address.psn = psn;
    peer.connect(address);
  }
  /// Sends from `first` on have left their queue. If completions wait for the peer, which has no
  /// receive yet, the Sends stay open; the test then waits, so that they arrive.
  void expect_sent(End& sender, int first, int count) {
    if (roce()) {
      EXPECT_FALSE(next_completion(sender.cq.get(), milliseconds(5)));
      return;
    }
    for (int i = 0; i < count; ++i) EXPECT_COMPLETION(sender.cq.get(), first + i, IBV_WC_SUCCESS);
  }
  int post(uint64_t id) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()) + 64 * (id % 1024), 64, mr_->lkey};
    ibv_recv_wr wr = {id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq_.get(), &wr, &bad);
  }
  Pd pd_;
  Cq cq_;
  std::vector<uint8_t> memory_;
  Mr mr_;
  Srq srq_;
};

// The receive belongs to the shared queue, and so does its memory, whichever queue pair takes it.
TEST_F(SharedReceive, MemoryIsJudgedByTheDomainOfTheQueue) {
  End peer(context());
  Pd of_queue_pair(ibv_alloc_pd(context()));
  ibv_qp_init_attr init = init_attributes(cq_.get());
  init.srq = srq_.get();
  Qp qp(ibv_create_qp(of_queue_pair.get(), &init));
  ASSERT_NE(qp, nullptr);
  join(qp.get(), peer, 0);
  ASSERT_EQ(post(1), 0);
  ASSERT_EQ(peer.post_send(1), 0);
  EXPECT_COMPLETION(cq_.get(), 1, IBV_WC_SUCCESS);
  const Mr own = std::move(mr_);
  mr_.reset(
      ibv_reg_mr(of_queue_pair.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
  ASSERT_EQ(post(2), 0);
  ASSERT_EQ(peer.post_send(2), 0);
  EXPECT_COMPLETION(cq_.get(), 2, IBV_WC_LOC_PROT_ERR);
  mr_.reset();
  qp.reset();
}

// Proves: 5040-8.1.2-8 5041-8.3.2-b
TEST_F(SharedReceive, LimitEventComesOncePerArming) {
  ibv_srq_attr attr = {};
  attr.srq_limit = 65;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), EINVAL) << "more than it holds";
  End sender(context());
  Qp qp = receiver(sender, 5);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(post(i), 0);
  attr.srq_limit = 8;
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
  EXPECT_EQ(attr.srq_limit, 8u);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(sender.post_send(i), 0);
  for (int i = 0; i < 2; ++i) EXPECT_COMPLETION(cq_.get(), i, IBV_WC_SUCCESS);
  EXPECT_FALSE(next_async_event(context(), milliseconds(30))) << "8 are left";
  for (int i = 2; i < 5; ++i) ASSERT_EQ(sender.post_send(i), 0);
  for (int i = 2; i < 5; ++i) EXPECT_COMPLETION(cq_.get(), i, IBV_WC_SUCCESS);
  auto event = next_async_event(context());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event->element.srq, srq_.get());
  ibv_ack_async_event(&*event);
  EXPECT_FALSE(next_async_event(context(), milliseconds(30))) << "disarmed";
  ASSERT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u);
  // The limit is above what is in the queue, so the event comes at once.
  attr.srq_limit = 20;
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_LIMIT), 0);
  event = next_async_event(context());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  ibv_ack_async_event(&*event);
}

TEST_F(SharedReceive, ResizeKeepsWhatWasPosted) {
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(context(), &device), 0);
  EXPECT_TRUE(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
  for (uint64_t i = 0; i < 64; ++i) ASSERT_EQ(post(i), 0);
  EXPECT_EQ(post(64), ENOMEM);
  ibv_srq_attr attr = {};
  attr.max_wr = 63;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), EINVAL) << "64 are posted";
  attr.max_wr = 0;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), EINVAL);
  attr.max_wr = 16385;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), EINVAL);
  attr.max_wr = 100;
  EXPECT_EQ(ibv_modify_srq(srq_.get(), &attr, 1 << 20), EINVAL);
  ASSERT_EQ(ibv_modify_srq(srq_.get(), &attr, IBV_SRQ_MAX_WR), 0);
  ASSERT_EQ(ibv_query_srq(srq_.get(), &attr), 0);
  EXPECT_EQ(attr.max_wr, 100u);
  for (uint64_t i = 64; i < 100; ++i) ASSERT_EQ(post(i), 0);
  EXPECT_EQ(post(100), ENOMEM);
  End sender(context(), 1 << 16, nullptr, 128);
  Qp qp = receiver(sender, 5);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(sender.post_send(i), 0);
  for (int i = 0; i < 100; ++i) EXPECT_COMPLETION(cq_.get(), i, IBV_WC_SUCCESS);
}

// Streams that wait get one receive each, in the order in which they began to wait.
TEST_F(SharedReceive, WaitingStreamsAreServedInTurn) {
  constexpr int kStreams = 12;
  std::vector<std::unique_ptr<End>> senders;
  std::vector<Qp> receivers;
  for (int i = 0; i < kStreams; ++i) {
    senders.push_back(std::make_unique<End>(context(), 4096));
    receivers.push_back(receiver(*senders.back(), 100 + static_cast<uint32_t>(i)));
  }
  for (auto& sender : senders)
    for (int i = 0; i < 3; ++i) ASSERT_EQ(sender->post_send(i), 0);
  for (auto& sender : senders) expect_sent(*sender, 0, 3);
  // When its Send completes a message may only be in the kernel. Wait, so that all streams are
  // read.
  EXPECT_FALSE(next_completion(cq_.get(), milliseconds(100)));
  std::map<uint32_t, int> served;
  for (uint64_t i = 0; i < 3 * kStreams; ++i) {
    ASSERT_EQ(post(i), 0);
    const auto wc = next_completion(cq_.get());
    ASSERT_TRUE(wc.has_value()) << i;
    ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->wr_id, i);
    ++served[wc->qp_num];
    if (i + 1 == kStreams) {
      EXPECT_EQ(served.size(), size_t{kStreams})
          << "one stream was served twice before all were served once";
    }
  }
  for (const auto& [number, count] : served) EXPECT_EQ(count, 3) << number;
}

TEST_F(SharedReceive, ListOfReceivesWakesSeveral) {
  constexpr int kStreams = 20;
  std::vector<std::unique_ptr<End>> senders;
  std::vector<Qp> receivers;
  for (int i = 0; i < kStreams; ++i) {
    senders.push_back(std::make_unique<End>(context(), 4096));
    receivers.push_back(receiver(*senders.back(), 100 + static_cast<uint32_t>(i)));
  }
  // One behind the other: a message waits for a receive for a time only.
  for (const auto& sender : senders) ASSERT_EQ(sender->post_send(1), 0);
  for (const auto& sender : senders) expect_sent(*sender, 1, 1);
  EXPECT_FALSE(next_completion(cq_.get(), milliseconds(50)));
  ibv_recv_wr list[kStreams] = {};
  ibv_sge sges[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    sges[i] = {reinterpret_cast<uint64_t>(memory_.data()) + 64u * static_cast<unsigned>(i), 64,
               mr_->lkey};
    list[i] = {static_cast<uint64_t>(i), i + 1 < kStreams ? &list[i + 1] : nullptr, &sges[i], 1};
  }
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq_.get(), list, &bad), 0);
  EXPECT_EQ(next_completions(cq_.get(), kStreams).size(), size_t{kStreams});
}

// A stream that leaves the line passes the promised receive on.
TEST_F(SharedReceive, AStreamThatStopsWaitingDelaysNoOther) {
  for (int round = 0; round < 20; ++round) {
    End first(context(), 4096), second(context(), 4096);
    Qp leaving = receiver(first, 1), staying = receiver(second, 2);
    ASSERT_EQ(first.post_send(1), 0);
    expect_sent(first, 1, 1);
    ASSERT_EQ(second.post_send(1), 0);
    expect_sent(second, 1, 1);
    std::thread leaver([&] {
      if (round % 2 == 0)
        leaving.reset();
      else
        EXPECT_EQ(to_state(leaving.get(), IBV_QPS_ERR), 0);
    });
    ASSERT_EQ(post(1), 0);
    // Either the stream that leaves has taken the first receive, or the other stream gets it.
    ASSERT_EQ(post(2), 0);
    bool served = false;
    for (int i = 0; i < 2 && !served; ++i) {
      const auto wc = next_completion(cq_.get());
      ASSERT_TRUE(wc.has_value()) << "round " << round;
      served = wc->status == IBV_WC_SUCCESS && wc->qp_num == staying->qp_num;
    }
    EXPECT_TRUE(served) << "round " << round;
    leaver.join();
    leaving.reset();
    staying.reset();
    while (next_completion(cq_.get(), milliseconds(0))) {
    }
    make_queue(64);  // without the receives that are left
  }
}

TEST_F(SharedReceive, LastWqeReached) {
  End sender(context());
  Qp qp = receiver(sender, 9);
  ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  const auto event = next_async_event(context());
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event->element.qp, qp.get());
  ibv_async_event copy = *event;
  ibv_ack_async_event(&copy);
}

TEST_F(SharedReceive, ExtendedCreation) {
  ibv_srq_init_attr_ex init = {};
  init.attr = {32, 2, 0};
  const auto result = [&] {
    errno = 0;
    Srq made(ibv_create_srq_ex(context(), &init));
    uint32_t number = 0;
    if (made != nullptr) {
      EXPECT_EQ(ibv_get_srq_num(made.get(), &number), 0);
      EXPECT_NE(number, 0u);
    }
    return made == nullptr ? errno : 0;
  };
  EXPECT_EQ(result(), EINVAL) << "no domain";
  init.comp_mask = IBV_SRQ_INIT_ATTR_PD;
  init.pd = pd_.get();
  EXPECT_EQ(result(), 0);
  init.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
  init.srq_type = IBV_SRQT_BASIC;
  EXPECT_EQ(result(), 0);
  init.srq_type = IBV_SRQT_XRC;
  EXPECT_EQ(result(), roce() ? EINVAL : EOPNOTSUPP) << "no XRC domain";
  init.srq_type = IBV_SRQT_TM;
  EXPECT_EQ(result(), EOPNOTSUPP);
  init.srq_type = IBV_SRQT_BASIC;
  init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD;
  EXPECT_EQ(result(), 0) << "what another type needs is not looked at";
  init.comp_mask = IBV_SRQ_INIT_ATTR_PD | 1u << 20;
  EXPECT_EQ(result(), EOPNOTSUPP);
}

}  // namespace
