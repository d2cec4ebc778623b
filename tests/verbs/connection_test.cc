// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connections made with ibv_modify_qp alone: both sides in any order, to the same queue pair, many
// at a time, and to a peer that does not exist.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

class Connection : public VerbsTest {
 protected:
  /// One message in each direction; both complete.
  void exchange(End& a, End& b) {
    for (End* end : {&a, &b}) ASSERT_EQ(end->post_receive(1, 512), 0);
    for (End* end : {&a, &b}) ASSERT_EQ(end->post_send(2), 0);
    for (End* end : {&a, &b}) {
      for (int i = 0; i < 2; ++i) {
        const auto wc = next_completion(end->cq.get());
        ASSERT_TRUE(wc.has_value());
        EXPECT_STREQ(ibv_wc_status_str(wc->status), "success");
      }
    }
  }
};

TEST_F(Connection, EveryOrderOfSteps) {
  // Which side takes the next step (0 or 1). Each side goes to RTR and then to RTS.
  const int orders[][4] = {{0, 0, 1, 1}, {1, 1, 0, 0}, {0, 1, 0, 1},
                           {0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 1, 0}};
  for (const auto& order : orders) {
    End ends[] = {End(context()), End(context())};
    bool ready[2] = {};
    for (int side : order) {
      End& end = ends[side];
      if (!ready[side]) {
        ASSERT_EQ(to_rtr(end.qp.get(), ends[1 - side].address()), 0);
      } else {
        ASSERT_EQ(to_rts(end.qp.get(), end.psn), 0);
      }
      ready[side] = true;
      std::this_thread::sleep_for(milliseconds(5));  // so that a dialer may get ahead
    }
    exchange(ends[0], ends[1]);
  }
}

TEST_F(Connection, WorkPostedBeforeThePeerComes) {
  End a(context()), b(context());
  a.connect(b.address(), {20, 7});
  ASSERT_EQ(a.post_send(1), 0);
  std::this_thread::sleep_for(milliseconds(100));
  ASSERT_EQ(b.post_receive(2), 0);
  b.connect(a.address());
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Connection, ReceiverMayStayInRtr) {
  End a(context()), b(context());
  ASSERT_EQ(to_rtr(b.qp.get(), a.address()), 0);
  ASSERT_EQ(b.post_receive(2), 0);
  a.connect(b.address());
  ASSERT_EQ(a.post_send(1), 0);
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
}

// In RTR the queue pair has no rnr_retry yet (it belongs to RTS). So the device's own time-out for
// held messages applies, not the shortest of InfiniBand.
TEST_F(Connection, ReceiverInRtrMayPostLate) {
  End a(context()), b(context());
  ASSERT_EQ(to_rtr(b.qp.get(), a.address()), 0);
  a.connect(b.address());
  ASSERT_EQ(a.post_send(1), 0);
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_EQ(b.post_receive(2), 0);
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Connection, ToItself) {
  End end(context());
  end.connect(end.address());
  ASSERT_EQ(end.post_receive(1, 512), 0);
  ASSERT_EQ(end.post_send(2), 0);
  uint64_t seen = 0;
  for (int i = 0; i < 2; ++i) {
    const auto wc = next_completion(end.cq.get());
    ASSERT_TRUE(wc.has_value());
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    seen |= uint64_t{1} << wc->wr_id;
  }
  EXPECT_EQ(seen, 6u);
  end.memory[700] = 0x77;
  ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_READ, 3, end.address(), 640, 64), 0);
  EXPECT_COMPLETION(end.cq.get(), 3, IBV_WC_SUCCESS);
}

TEST_F(Connection, ThousandQueuePairs) {
  constexpr int kPairs = 500;
  Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 8 * kPairs, nullptr, nullptr, 0));
  std::vector<uint8_t> memory(2 * kPairs * 64);
  Mr mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
  ibv_gid gid = {};
  ASSERT_EQ(ibv_query_gid(context(), 1, 0, &gid), 0);
  std::vector<Qp> qps;
  for (int i = 0; i < 2 * kPairs; ++i) {
    ibv_qp_init_attr init = init_attributes(cq.get(), 2);
    qps.emplace_back(ibv_create_qp(pd.get(), &init));
    ASSERT_NE(qps.back(), nullptr) << i << ": " << std::strerror(errno);
    ASSERT_EQ(to_init(qps.back().get()), 0);
  }
  const auto address_of = [&](int i) {
    return Address{gid, qps[i]->qp_num, static_cast<uint32_t>(i), 0, 0};
  };
  const auto sge_of = [&](int i) {
    return ibv_sge{reinterpret_cast<uint64_t>(memory.data() + 64 * i), 64, mr->lkey};
  };
  for (int i = 0; i < 2 * kPairs; ++i) {
    ibv_sge sge = sge_of(i);
    ibv_recv_wr wr = {static_cast<uint64_t>(i), nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(qps[i].get(), &wr, &bad), 0);
    ASSERT_EQ(to_rtr(qps[i].get(), address_of(i ^ 1)), 0) << i;
    ASSERT_EQ(to_rts(qps[i].get(), static_cast<uint32_t>(i), {20, 7}), 0) << i;
  }
  for (int i = 0; i < 2 * kPairs; i += 2) {
    ibv_sge sge = sge_of(i);
    std::memset(memory.data() + 64 * i, i / 2 + 1, 64);
    ibv_send_wr wr = {};
    wr.wr_id = static_cast<uint64_t>(i);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qps[i].get(), &wr, &bad), 0) << i;
  }
  for (int received = 0; received < kPairs; ++received) {
    const auto wc = next_completion(cq.get());
    ASSERT_TRUE(wc.has_value()) << received << " messages came";
    ASSERT_STREQ(ibv_wc_status_str(wc->status), "success");
    ASSERT_EQ(wc->opcode, IBV_WC_RECV);
    EXPECT_EQ(memory[64 * wc->wr_id + 63], static_cast<uint8_t>(wc->wr_id / 2 + 1));
  }
}

// A program may learn by other means that its peer is done, and end its queue pair before it polls.
TEST_F(Connection, WhatHasArrivedCompletesBeforeTheError) {
  for (int round = 0; round < 50; ++round) {
    Pair pair(context());
    exchange(pair.a, pair.b);
    ASSERT_EQ(pair.b.post_receive(3), 0);
    ASSERT_EQ(pair.a.post_send(4), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 4, IBV_WC_SUCCESS);
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    ASSERT_EQ(ibv_modify_qp(pair.b.qp.get(), &error, IBV_QP_STATE), 0);
    EXPECT_COMPLETION(pair.b.cq.get(), 3, IBV_WC_SUCCESS);
  }
}

TEST_F(Connection, PeerThatNeverComes) {
  End a(context());
  Address nobody;
  {
    End gone(context());
    nobody = gone.address();
  }
  a.connect(nobody, {8, 1});
  ASSERT_EQ(a.post_receive(9), 0);
  for (int i = 1; i <= 3; ++i) ASSERT_EQ(a.post_send(i), 0);
  const std::map<uint64_t, ibv_wc_status> expected = {{1, IBV_WC_RETRY_EXC_ERR},
                                                      {2, IBV_WC_WR_FLUSH_ERR},
                                                      {3, IBV_WC_WR_FLUSH_ERR},
                                                      {9, IBV_WC_WR_FLUSH_ERR}};
  EXPECT_EQ(next_completions(a.cq.get(), 4), expected);
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_ERR);
}

TEST_F(Connection, PeerThatNeverGetsReady) {
  End a(context()), b(context());  // b stays in INIT, so it does not answer
  a.connect(b.address(), {12, 2});
  ASSERT_EQ(a.post_send(1), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Connection, WrongSequenceNumberIsNotConnected) {
  End a(context()), b(context());
  Address address = a.address();
  address.psn ^= 1;
  // `b` answers, but expects another queue pair number than a has.
  ASSERT_EQ(to_rtr(b.qp.get(), address), 0);
  a.connect(b.address(), {12, 1});
  ASSERT_EQ(a.post_send(1), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Connection, AgainAfterReset) {
  End a(context()), b(context());
  for (int round = 0; round < 5; ++round) {
    a.connect(b.address());
    b.connect(a.address());
    exchange(a, b);
    for (End* end : {&a, &b}) {
      ASSERT_EQ(to_state(end->qp.get(), IBV_QPS_RESET), 0);
      ASSERT_EQ(to_init(end->qp.get()), 0);
    }
  }
}

TEST_F(Connection, PassiveTargetIsServedWhileItSleeps) {
  Pair pair(context(), 1 << 20);
  const Address b = pair.b.address();
  // The application does not poll for b: the engine's helper thread answers.
  std::memset(pair.b.memory.data(), 0x42, pair.b.memory.size());
  ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 1, b, 0, 1 << 20), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(pair.a.memory[(1 << 20) - 1], 0x42);
  pair.a.memory[5] = 0x43;
  ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 2, b, 5, 1), 0);
  volatile uint8_t* watched = &pair.b.memory[5];
  EXPECT_TRUE(wait_until([&] { return *watched == 0x43; }));
}

}  // namespace
