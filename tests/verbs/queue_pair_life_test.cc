// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The states of a queue pair: draining and going on, ERR from every state, and use after RESET.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

class QueuePairLife : public VerbsTest {
 protected:
  int drain(ibv_qp* qp, bool notify) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = notify;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
  }
  ibv_qp_attr attributes(ibv_qp* qp) {
    ibv_qp_attr attr = {};
    ibv_qp_init_attr init = {};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT - 1, &init), 0);
    return attr;
  }
  /// One message from `a` to `b`.
  void exchange(End& a, End& b) {
    ASSERT_EQ(b.post_receive(1), 0);
    ASSERT_EQ(a.post_send(2), 0);
    EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  }
};

TEST_F(QueuePairLife, DrainsAndContinues) {
  Pair pair(context());
  exchange(pair.a, pair.b);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i)
      ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, i, pair.b.address(), 0, 1 << 18), 0);
    ASSERT_EQ(drain(pair.a.qp.get(), true), 0);
    EXPECT_EQ(state_of(pair.a.qp.get()), IBV_QPS_SQD);
    EXPECT_EQ(attributes(pair.a.qp.get()).en_sqd_async_notify, 1);
    auto event = next_async_event(context());
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_SQ_DRAINED);
    EXPECT_EQ(event->element.qp, pair.a.qp.get());
    ibv_ack_async_event(&*event);
    EXPECT_EQ(attributes(pair.a.qp.get()).sq_draining, 0);
    // Requests that had started are complete. New ones wait, and so may the last of the earlier
    // ones.
    ASSERT_EQ(pair.b.post_receive(20), 0);
    ASSERT_EQ(pair.a.post_send(10), 0);
    EXPECT_FALSE(next_completion(pair.b.cq.get(), milliseconds(30)));
    // Receiving goes on meanwhile.
    ASSERT_EQ(pair.a.post_receive(11), 0);
    ASSERT_EQ(pair.b.post_send(21), 0);
    EXPECT_COMPLETION(pair.b.cq.get(), 21, IBV_WC_SUCCESS);
    ASSERT_EQ(to_state(pair.a.qp.get(), IBV_QPS_RTS), 0);
    EXPECT_EQ(state_of(pair.a.qp.get()), IBV_QPS_RTS);
    EXPECT_COMPLETION(pair.b.cq.get(), 20, IBV_WC_SUCCESS);
    const auto all = next_completions(pair.a.cq.get(), 10);
    for (const auto& [id, status] : all) EXPECT_EQ(status, IBV_WC_SUCCESS) << id;
    EXPECT_FALSE(next_async_event(context(), milliseconds(20))) << "once per request";
  }
}

TEST_F(QueuePairLife, DrainingGivesNoEventUnlessAsked) {
  Pair pair(context());
  exchange(pair.a, pair.b);
  ASSERT_EQ(drain(pair.a.qp.get(), false), 0);
  EXPECT_FALSE(next_async_event(context(), milliseconds(50)));
  // ERR from SQD flushes the requests that wait.
  ASSERT_EQ(pair.a.post_send(7), 0);
  ASSERT_EQ(to_state(pair.a.qp.get(), IBV_QPS_ERR), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 7, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(QueuePairLife, AttributesMayChangeWhileDrained) {
  Pair pair(context());
  exchange(pair.a, pair.b);
  ASSERT_EQ(drain(pair.a.qp.get(), false), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_SQD;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  attr.timeout = 17;
  attr.retry_cnt = 2;
  ASSERT_EQ(ibv_modify_qp(pair.a.qp.get(), &attr,
                          IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT),
            0);
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(pair.a.qp.get(), &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL)
      << "it is in SQD";
  attr.cur_qp_state = IBV_QPS_SQD;
  ASSERT_EQ(ibv_modify_qp(pair.a.qp.get(), &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
  const ibv_qp_attr now = attributes(pair.a.qp.get());
  EXPECT_EQ(now.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(now.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(now.timeout, 17);
  EXPECT_EQ(now.retry_cnt, 2);
  exchange(pair.a, pair.b);
  // The rights of the queue pair apply: the region would allow the Write, the queue pair does not.
  ASSERT_EQ(pair.b.post_rdma(IBV_WR_RDMA_WRITE, 3, pair.a.address()), 0);
  EXPECT_TRUE(wait_until([&] { return state_of(pair.a.qp.get()) == IBV_QPS_ERR; }));
}

TEST_F(QueuePairLife, ErrorFromEveryState) {
  End peer(context());
  for (ibv_qp_state from :
       {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR}) {
    Cq cq(ibv_create_cq(context(), 64, nullptr, nullptr, 0));
    ibv_qp_init_attr init = init_attributes(cq.get());
    Qp qp(ibv_create_qp(peer.pd.get(), &init));
    if (from >= IBV_QPS_INIT) {
      ASSERT_EQ(to_init(qp.get()), 0);
    }
    if (from >= IBV_QPS_RTR) {
      ASSERT_EQ(to_rtr(qp.get(), peer.address()), 0);
    }
    if (from >= IBV_QPS_RTS) {
      ASSERT_EQ(to_rts(qp.get(), 1, {31, 7}), 0);
    }
    if (from >= IBV_QPS_SQD) {
      ASSERT_EQ(to_state(qp.get(), from), 0);
    }
    int posted = 0;
    if (from != IBV_QPS_RESET) {
      ibv_recv_wr wr = {};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
      ++posted;
    }
    if (roce() && from == IBV_QPS_RESET) {
      ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), EINVAL) << "RNICs have no RESET";
      continue;
    }
    ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0) << from;
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_ERR) << from;
    for (int i = 0; i < posted; ++i) EXPECT_COMPLETION(cq.get(), 0, IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(next_completion(cq.get(), milliseconds(5)));
    // Only RESET leaves ERR.
    EXPECT_NE(to_init(qp.get()), 0) << from;
    ASSERT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0) << from;
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_RESET) << from;
    EXPECT_EQ(to_init(qp.get()), 0) << from;
  }
}

TEST_F(QueuePairLife, UsedAgainWithOtherPeers) {
  End a(context()), b(context()), c(context());
  const auto renew = [&](End& end) {
    ASSERT_EQ(to_state(end.qp.get(), IBV_QPS_RESET), 0);
    EXPECT_FALSE(next_completion(end.cq.get(), milliseconds(0))) << "RESET drops silently";
    ASSERT_EQ(to_init(end.qp.get()), 0);
  };
  for (int round = 0; round < 4; ++round) {
    End& peer = round % 2 == 0 ? b : c;
    a.connect(peer.address());
    peer.connect(a.address());
    exchange(a, peer);
    exchange(peer, a);
    ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_READ, 3, peer.address(), 0, 4096), 0);
    EXPECT_COMPLETION(a.cq.get(), 3, IBV_WC_SUCCESS);
    if (round >= 2) {
      // After a failure too.
      ASSERT_EQ(a.post_receive(4), 0);
      ASSERT_EQ(to_state(a.qp.get(), IBV_QPS_ERR), 0);
      EXPECT_COMPLETION(a.cq.get(), 4, IBV_WC_WR_FLUSH_ERR);
    } else {
      ASSERT_EQ(a.post_receive(4), 0) << "gone with RESET";
    }
    renew(a);
    renew(peer);
    EXPECT_EQ(attributes(a.qp.get()).dest_qp_num, 0u);
  }
}

TEST_F(QueuePairLife, CommunicationEstablishedInRtr) {
  End a(context()), b(context());
  ASSERT_EQ(to_rtr(b.qp.get(), a.address()), 0);
  ASSERT_EQ(b.post_receive(2), 0);
  a.connect(b.address());
  ASSERT_EQ(a.post_send(1), 0);
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  ASSERT_TRUE(readable(context()->async_fd));
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(context(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(event.element.qp, b.qp.get());
  ibv_ack_async_event(&event);
  EXPECT_EQ(state_of(b.qp.get()), IBV_QPS_RTR) << "where it was moved to";
}

/// Queue pairs that have flushed `each` receives into one completion queue.
struct Flushed {
  Flushed(ibv_context* context, ibv_cq* cq, int count, int each) : pd(ibv_alloc_pd(context)) {
    ibv_qp_init_attr init = init_attributes(cq);
    for (int i = 0; i < count; ++i) {
      qps.emplace_back(ibv_create_qp(pd.get(), &init));
      EXPECT_EQ(to_init(qps.back().get()), 0);
    }
    for (int wr_id = 0; wr_id < each; ++wr_id)
      for (Qp& qp : qps) EXPECT_EQ(post(qp.get(), static_cast<uint64_t>(wr_id)), 0);
    for (Qp& qp : qps) EXPECT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  }
  static int post(ibv_qp* qp, uint64_t wr_id) {
    ibv_recv_wr wr = {};
    wr.wr_id = wr_id;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  Pd pd;
  std::vector<Qp> qps;
};

TEST_F(QueuePairLife, ResetTakesItsCompletionsAlong) {
  Cq cq(ibv_create_cq(context(), 256, nullptr, nullptr, 0));
  Flushed all(context(), cq.get(), 3, 8);
  ASSERT_EQ(to_state(all.qps[1].get(), IBV_QPS_RESET), 0);
  std::map<uint32_t, uint64_t> next;
  ibv_wc wc = {};
  while (ibv_poll_cq(cq.get(), 1, &wc) == 1) EXPECT_EQ(wc.wr_id, next[wc.qp_num]++);
  EXPECT_EQ(next[all.qps[0]->qp_num], 8u);
  EXPECT_EQ(next[all.qps[1]->qp_num], 0u);
  EXPECT_EQ(next[all.qps[2]->qp_num], 8u);
}

TEST_F(QueuePairLife, DestroyTakesItsFlushesAlong) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 256;
  ibv_cq_ex* const extended = ibv_create_cq_ex(context(), &init);
  ASSERT_NE(extended, nullptr);
  Cq cq(ibv_cq_ex_to_cq(extended));
  Flushed all(context(), cq.get(), 2, 4);
  const uint32_t stays = all.qps[1]->qp_num;
  // Also between the start and the end of an extended poll.
  ibv_poll_cq_attr attr = {};
  ASSERT_EQ(ibv_start_poll(extended, &attr), 0);
  all.qps[0].reset();
  int found = 0;
  while (ibv_next_poll(extended) == 0) {
    EXPECT_EQ(ibv_wc_read_qp_num(extended), stays);
    ++found;
  }
  ibv_end_poll(extended);
  EXPECT_EQ(found, 4);
}

TEST_F(QueuePairLife, DestroyLeavesWhatWasDone) {
  Pair pair(context());
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(pair.b.post_receive(2), 0);
  ASSERT_EQ(pair.a.post_send(3), 0);
  // The Read is answered after the message, so the message has completed although b has not been
  // polled.
  ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 4, pair.b.address(), 0, 8), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(pair.a.cq.get(), 4, IBV_WC_SUCCESS);
  pair.b.qp.reset();
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_FALSE(next_completion(pair.b.cq.get(), milliseconds(20))) << "a flushed completion";
}

TEST_F(QueuePairLife, ResetWhileAnotherThreadPolls) {
  Cq cq(ibv_create_cq(context(), 4096, nullptr, nullptr, 0));
  Flushed idle(context(), cq.get(), 1, 0);
  ibv_qp* const stays = idle.qps[0].get();
  std::atomic<uint64_t> found{0};
  std::atomic<bool> over{false};
  std::thread poller([&] {
    ibv_wc wc[8];
    while (!over) {
      const int count = ibv_poll_cq(cq.get(), 8, wc);
      for (int i = 0; i < count; ++i) {
        if (wc[i].qp_num != stays->qp_num) continue;
        EXPECT_EQ(wc[i].wr_id, found);
        ++found;
      }
    }
  });
  constexpr uint64_t kRounds = 300;
  Flushed other(context(), cq.get(), 1, 4);
  for (uint64_t round = 0; round < kRounds; ++round) {
    ibv_qp* const qp = other.qps[0].get();
    EXPECT_EQ(Flushed::post(stays, round), 0);
    EXPECT_EQ(to_state(qp, IBV_QPS_RESET), 0);
    EXPECT_EQ(to_init(qp), 0);
    for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Flushed::post(qp, i), 0);
    EXPECT_EQ(to_state(qp, IBV_QPS_ERR), 0);
  }
  EXPECT_TRUE(wait_until([&] { return found == kRounds; })) << found;
  over = true;
  poller.join();
}

}  // namespace
