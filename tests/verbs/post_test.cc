// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Posting: data arrives; a wrong request is refused with the right errno and bad_wr, and no request
// behind it is posted.
#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

class Post : public VerbsTest {};

void fill(std::vector<uint8_t>& memory, uint8_t seed) {
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i * 31 + seed);
}

TEST_F(Post, SendArrives) {
  Pair pair(context());
  fill(pair.a.memory, 1);
  for (uint32_t length : {0u, 1u, 64u, 4096u, 100'000u, 1u << 20}) {
    fill(pair.b.memory, 2);
    ASSERT_EQ(pair.b.post_receive(7, 0, 1 << 20), 0);
    ASSERT_EQ(pair.a.post_send(8, 0, length), 0);
    const auto received = next_completion(pair.b.cq.get());
    ASSERT_TRUE(received.has_value()) << length;
    EXPECT_EQ(received->status, IBV_WC_SUCCESS);
    EXPECT_EQ(received->opcode, IBV_WC_RECV);
    EXPECT_EQ(received->wr_id, 7u);
    EXPECT_EQ(received->byte_len, length);
    EXPECT_EQ(received->qp_num, pair.b.qp->qp_num);
    EXPECT_COMPLETION(pair.a.cq.get(), 8, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(pair.a.memory.data(), pair.b.memory.data(), length), 0) << length;
    if (length < pair.b.memory.size()) {
      EXPECT_EQ(pair.b.memory[length], static_cast<uint8_t>(length * 31 + 2)) << "guard";
    }
  }
}

TEST_F(Post, WriteAndReadMoveBytes) {
  Pair pair(context());
  const Address b = pair.b.address();
  fill(pair.a.memory, 3);
  for (uint32_t length : {1u, 8u, 5000u, 1u << 19}) {
    std::memset(pair.b.memory.data(), 0, pair.b.memory.size());
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 1, b, 16, length), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_SUCCESS);
    ASSERT_TRUE(wait_until([&] {
      return std::memcmp(pair.a.memory.data() + 16, pair.b.memory.data() + 16, length) == 0;
    })) << length;
    EXPECT_EQ(pair.b.memory[15], 0);
    EXPECT_EQ(pair.b.memory[16 + length], 0);
  }
  fill(pair.b.memory, 4);
  for (uint32_t length : {1u, 8u, 5000u, 1u << 19}) {
    std::memset(pair.a.memory.data(), 0, pair.a.memory.size());
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 2, b, 32, length), 0);
    const auto wc = next_completion(pair.a.cq.get());
    ASSERT_TRUE(wc.has_value());
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc->opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(wc->byte_len, length);
    EXPECT_EQ(std::memcmp(pair.a.memory.data() + 32, pair.b.memory.data() + 32, length), 0);
    EXPECT_EQ(pair.a.memory[31], 0);
    EXPECT_EQ(pair.a.memory[32 + length], 0);
  }
}

// Posts of a dense burst may be collected, but must be sent even if the application never polls.
TEST_F(Post, BurstArrivesAlthoughNoThreadPolls) {
  Pair pair(context());
  const Address b = pair.b.address();
  std::memset(pair.b.memory.data(), 0, 64);
  for (uint8_t round = 1; round <= 20; ++round) {
    for (uint32_t at = 0; at < 3; ++at) {  // 60 in all: the send queue has room for 64
      pair.a.memory[at] = round;
      ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, round, b, at, 1), 0);
    }
    const volatile uint8_t* last = pair.b.memory.data() + 2;
    ASSERT_TRUE(wait_until([&] { return *last == round; })) << static_cast<int>(round);
    EXPECT_EQ(pair.b.memory[0], round);
  }
}

TEST_F(Post, BurstArrivesBeforeTheQueuePairIsDestroyed) {
  Pair pair(context());
  const Address b = pair.b.address();
  std::memset(pair.b.memory.data(), 0, 64);
  std::memset(pair.a.memory.data(), 9, 64);
  ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 100, b, 60, 1), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 100, IBV_WC_SUCCESS);  // connected
  for (uint32_t at = 0; at < 60; ++at)
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, at, b, at, 1), 0);
  pair.a.qp.reset();
  const volatile uint8_t* last = pair.b.memory.data() + 59;
  EXPECT_TRUE(wait_until([&] { return *last == 9; }));
}

/// Posts Sends of `a` until one is refused, which must be with ENOMEM. Returns how many were
/// accepted.
int post_until_full(Pair& pair, unsigned flags = IBV_SEND_SIGNALED) {
  int posted = 0, result = 0;
  while ((result = pair.a.post_rdma(IBV_WR_RDMA_WRITE, 1, pair.b.address(), 0, 8, flags)) == 0)
    ++posted;
  EXPECT_EQ(result, ENOMEM);
  return posted;
}

// Programs count the free places of a send queue by the completions that they poll, so a completion
// queue as deep as the send queue never overflows.
TEST_F(Post, ASlotIsFreeWhenItsCompletionIsPolled) {
  Pair pair(context());
  ASSERT_EQ(post_until_full(pair), 64);
  for (int polled = 0; polled < 200; ++polled) {
    EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_SUCCESS);
    ASSERT_EQ(post_until_full(pair), 1) << polled;
  }
}

TEST_F(Post, ASlotWithoutACompletionIsFreeWithTheNextThatHasOne) {
  Pair pair(context());
  ASSERT_EQ(post_until_full(pair, 0), 64) << "nothing can be polled that would free one";
  pair.a.qp.reset();
  Pair other(context());
  const Address b = other.b.address();
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 31; ++i)
      ASSERT_EQ(other.a.post_rdma(IBV_WR_RDMA_WRITE, 3, b, 0, 8, 0), 0) << round;
    ASSERT_EQ(other.a.post_rdma(IBV_WR_RDMA_WRITE, 4, b, 0, 8), 0) << round;
    EXPECT_COMPLETION(other.a.cq.get(), 4, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(post_until_full(other), 64);
}

TEST_F(Post, AResetQueuePairHasAllItsSlots) {
  Pair pair(context());
  ASSERT_EQ(post_until_full(pair), 64);
  for (End* end : {&pair.a, &pair.b}) ASSERT_EQ(to_state(end->qp.get(), IBV_QPS_RESET), 0);
  for (End* end : {&pair.a, &pair.b}) ASSERT_EQ(to_init(end->qp.get()), 0);
  pair.a.connect(pair.b.address());
  pair.b.connect(pair.a.address());
  EXPECT_EQ(post_until_full(pair), 64);
}

TEST_F(Post, FlushedRequestsKeepTheirSlotsUntilTheyArePolled) {
  Pair pair(context());
  ASSERT_EQ(to_state(pair.a.qp.get(), IBV_QPS_ERR), 0);
  ASSERT_EQ(post_until_full(pair, 0), 64);
  EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(post_until_full(pair, 0), 1);
}

TEST_F(Post, InlineDataMayBeOverwrittenAtOnce) {
  Pair pair(context());
  ASSERT_EQ(pair.b.post_receive(1), 0);
  std::memset(pair.a.memory.data(), 0x11, 64);
  ibv_sge sge = pair.a.sge(0, 64);
  sge.lkey = 0;  // not checked
  ibv_send_wr wr = {};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pair.a.qp.get(), &wr, &bad), 0);
  std::memset(pair.a.memory.data(), 0x22, 64);
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  for (int i = 0; i < 64; ++i) ASSERT_EQ(pair.b.memory[i], 0x11) << i;
}

TEST_F(Post, RefusedSendsNameTheRequest) {
  struct Row {
    const char* what;
    std::function<void(ibv_send_wr&)> spoil;
    int error;
  };
  ibv_sge many[40] = {};
  const Row rows[] = {
      {"unknown flag", [](auto& wr) { wr.send_flags |= 1u << 20; }, EINVAL},
      {"negative SGE count", [](auto& wr) { wr.num_sge = -5; }, EINVAL},
      {"SGEs beyond the queue pair's", [&](auto& wr) { wr.sg_list = many, wr.num_sge = 5; },
       EINVAL},
      {"SGEs beyond all", [&](auto& wr) { wr.sg_list = many, wr.num_sge = 40; }, EINVAL},
      {"SGEs without a list", [](auto& wr) { wr.sg_list = nullptr; }, EINVAL},
      {"unknown opcode", [](auto& wr) { std::memset(&wr.opcode, 0x11, sizeof wr.opcode); }, EINVAL},
      {"TSO", [](auto& wr) { wr.opcode = IBV_WR_TSO; }, EOPNOTSUPP},
      {"driver's own", [](auto& wr) { wr.opcode = IBV_WR_DRIVER1; }, EOPNOTSUPP},
      {"inline Read",
       [](auto& wr) { wr.opcode = IBV_WR_RDMA_READ, wr.send_flags |= IBV_SEND_INLINE; }, EINVAL},
      {"too much inline", [](auto& wr) { wr.send_flags |= IBV_SEND_INLINE; }, EINVAL},
  };
  for (const Row& row : rows) {
    Pair pair(context());
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(pair.b.post_receive(2), 0);
    ibv_sge sge = pair.a.sge(0, 64), large = pair.a.sge(0, 600);
    ibv_send_wr last = {}, wrong = {}, first = {};
    first.wr_id = 1, wrong.wr_id = 2, last.wr_id = 3;
    first.next = &wrong, wrong.next = &last;
    for (ibv_send_wr* wr : {&first, &wrong, &last}) {
      wr->sg_list = &sge;
      wr->num_sge = 1;
      wr->opcode = IBV_WR_SEND;
      wr->send_flags = IBV_SEND_SIGNALED;
    }
    wrong.sg_list = &large;
    row.spoil(wrong);
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(pair.a.qp.get(), &first, &bad), row.error) << row.what;
    EXPECT_EQ(bad, &wrong) << row.what;
    // The request before the wrong one was posted, the one behind it was not.
    EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_FALSE(next_completion(pair.b.cq.get(), std::chrono::milliseconds(20))) << row.what;
    EXPECT_EQ(state_of(pair.a.qp.get()), IBV_QPS_RTS) << row.what;
  }
}

TEST_F(Post, RefusedReceivesNameTheRequest) {
  End end(context());
  ibv_sge sge = end.sge();
  ibv_sge many[5] = {};
  ibv_recv_wr last = {3, nullptr, &sge, 1}, wrong = {2, &last, many, 5},
              first = {1, &wrong, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(end.qp.get(), &first, &bad), EINVAL);
  EXPECT_EQ(bad, &wrong);
  wrong.num_sge = -1;
  EXPECT_EQ(ibv_post_recv(end.qp.get(), &wrong, &bad), EINVAL);
  // One receive is in the queue.
  ASSERT_EQ(to_state(end.qp.get(), IBV_QPS_ERR), 0);
  EXPECT_COMPLETION(end.cq.get(), 1, IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(next_completion(end.cq.get(), std::chrono::milliseconds(20)));
}

TEST_F(Post, StatesThatTakeNothing) {
  Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  ibv_qp_init_attr init = init_attributes(cq.get());
  Qp qp(ibv_create_qp(pd.get(), &init));
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad_receive = nullptr;
  ibv_send_wr send = {};
  ibv_send_wr* bad_send = nullptr;
  send.opcode = IBV_WR_SEND;
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad_receive), EINVAL) << "RESET";
  EXPECT_EQ(bad_receive, &receive);
  EXPECT_EQ(ibv_post_send(qp.get(), &send, &bad_send), EINVAL) << "RESET";
  EXPECT_EQ(bad_send, &send);
  ASSERT_EQ(to_init(qp.get()), 0);
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad_receive), 0) << "INIT";
  EXPECT_EQ(ibv_post_send(qp.get(), &send, &bad_send), EINVAL) << "INIT";
}

TEST_F(Post, FullQueuesFailWithEnomem) {
  End end(context());
  uint64_t posted = 0;
  while (end.post_receive(posted) == 0) ASSERT_LT(++posted, 1000u);
  EXPECT_GE(posted, 64u);
  EXPECT_EQ(end.post_receive(posted), ENOMEM);

  // The peer does not answer, so no request leaves the send queue.
  End silent(context());
  end.connect(silent.address(), {31, 7});
  posted = 0;
  while (end.post_send(posted) == 0) ASSERT_LT(++posted, 1000u);
  EXPECT_GE(posted, 64u);
  EXPECT_EQ(end.post_send(posted), ENOMEM);
}

TEST_F(Post, ErrorStateFlushesInOrder) {
  Pair pair(context());
  for (int i = 0; i < 5; ++i) ASSERT_EQ(pair.a.post_receive(i), 0);
  ASSERT_EQ(to_state(pair.a.qp.get(), IBV_QPS_ERR), 0);
  for (int i = 0; i < 5; ++i) EXPECT_COMPLETION(pair.a.cq.get(), i, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.a.post_send(10), 0) << "taken, and flushed";
  EXPECT_EQ(pair.a.post_receive(11), 0);
  const std::map<uint64_t, ibv_wc_status> expected = {{10, IBV_WC_WR_FLUSH_ERR},
                                                      {11, IBV_WC_WR_FLUSH_ERR}};
  EXPECT_EQ(next_completions(pair.a.cq.get(), 2), expected);
}

TEST_F(Post, BadLocalKeyFailsTheRequestThenFlushes) {
  Pair pair(context());
  ibv_sge sge = pair.a.sge();
  sge.lkey ^= 0x5a5a;
  ibv_send_wr next = {}, wr = {};
  wr.wr_id = 1, next.wr_id = 2;
  wr.next = &next;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = next.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pair.a.qp.get(), &wr, &bad), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_LOC_PROT_ERR);
  EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(pair.a.qp.get()), IBV_QPS_ERR);
}

TEST_F(Post, BadRemoteKeyFailsTheRequestThenFlushes) {
  for (ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
    Pair pair(context());
    ASSERT_EQ(pair.a.post_receive(77), 0);
    Address wrong = pair.b.address();
    wrong.rkey ^= 0x1010;
    const std::vector<uint8_t> before = pair.b.memory;
    // A Write completes once the kernel has it. So only a Read is sure to get the peer's error,
    // unless completions wait for the peer.
    const bool verdict = opcode == IBV_WR_RDMA_READ || roce();
    ASSERT_EQ(pair.a.post_rdma(opcode, 1, wrong), 0);
    const std::map<uint64_t, ibv_wc_status> expected = {
        {1, verdict ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS}, {77, IBV_WC_WR_FLUSH_ERR}};
    EXPECT_EQ(next_completions(pair.a.cq.get(), 2), expected);
    EXPECT_TRUE(wait_until([&] { return state_of(pair.a.qp.get()) == IBV_QPS_ERR; }));
    EXPECT_TRUE(wait_until([&] { return state_of(pair.b.qp.get()) == IBV_QPS_ERR; }));
    EXPECT_EQ(pair.b.memory, before);
  }
}

TEST_F(Post, SharedReceiveQueueServesSeveral) {
  Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 64, nullptr, nullptr, 0));
  ibv_srq_init_attr srq_init = {nullptr, {32, 1, 0}};
  Srq srq(ibv_create_srq(pd.get(), &srq_init));
  ASSERT_NE(srq, nullptr);
  std::vector<uint8_t> memory(4096);
  Mr mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
  End senders[] = {End(context()), End(context())};
  Qp receivers[2];
  for (int i = 0; i < 2; ++i) {
    ibv_qp_init_attr init = init_attributes(cq.get());
    init.srq = srq.get();
    receivers[i].reset(ibv_create_qp(pd.get(), &init));
    ASSERT_NE(receivers[i], nullptr);
    EXPECT_EQ(init.cap.max_recv_wr, 0u);
    ASSERT_EQ(to_init(receivers[i].get()), 0);
    ASSERT_EQ(to_rtr(receivers[i].get(), senders[i].address()), 0);
    ASSERT_EQ(to_rts(receivers[i].get(), 5), 0);
    Address address = senders[i].address();
    address.qpn = receivers[i]->qp_num;
    address.psn = 5;
    senders[i].connect(address);
  }
  // The first message comes before its receive: the stream is held, not ended.
  ASSERT_EQ(senders[0].post_send(1), 0);
  EXPECT_FALSE(next_completion(cq.get(), std::chrono::milliseconds(50)));
  for (uint64_t i = 0; i < 4; ++i) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory.data()) + 64 * i, 64, mr->lkey};
    ibv_recv_wr wr = {100 + i, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
  }
  EXPECT_COMPLETION(cq.get(), 100, IBV_WC_SUCCESS);
  ASSERT_EQ(senders[1].post_send(2), 0);
  const auto second = next_completion(cq.get());
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->wr_id, 101u);
  EXPECT_EQ(second->qp_num, receivers[1]->qp_num);
}

}  // namespace
