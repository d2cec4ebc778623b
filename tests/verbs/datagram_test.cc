// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// UD queue pairs as an application of RoCE uses them.
#include <arpa/inet.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
constexpr uint32_t kQkey = 0x11111111;
constexpr uint32_t kRoute = sizeof(ibv_grh);

/// A queue pair and all that it needs.
struct UdEnd {
  explicit UdEnd(ibv_context* context, ibv_comp_channel* channel = nullptr, bool extended = false,
                 bool shared = false)
      : context(context), memory(1 << 18) {
    pd.reset(ibv_alloc_pd(context));
    cq.reset(ibv_create_cq(context, 1024, nullptr, channel, 0));
    mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    if (shared) {
      ibv_srq_init_attr attr = {};
      attr.attr = {64, 1, 0};
      srq.reset(ibv_create_srq(pd.get(), &attr));
    }
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = cq.get();
    init.srq = srq.get();
    init.cap = {128, 128, 2, 2, 64};
    init.qp_type = IBV_QPT_UD;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd.get();
    if (extended) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    }
    qp.reset(ibv_create_qp_ex(context, &init));
    ibv_ah_attr attr = {};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.hop_limit = 64;
    (void)ibv_query_gid(context, 1, 0, &attr.grh.dgid);
    ah.reset(ibv_create_ah(pd.get(), &attr));
  }
  int init() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    return ibv_modify_qp(qp.get(), &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  }
  int rtr() { return to_state(qp.get(), IBV_QPS_RTR); }
  int rts() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  }
  void ready() {
    ASSERT_NE(qp, nullptr);
    ASSERT_NE(ah, nullptr);
    ASSERT_EQ(init(), 0);
    ASSERT_EQ(rtr(), 0);
    ASSERT_EQ(rts(), 0);
  }
  ibv_send_wr request(ibv_sge& sge, uint32_t qpn, uint64_t id = 1) const {
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah.get();
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = kQkey;
    return wr;
  }
  ibv_sge sge(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, length, mr->lkey};
  }
  int send(uint32_t qpn, const std::string& text, uint64_t id = 1, ibv_ah* to = nullptr) {
    std::memcpy(memory.data(), text.data(), text.size());
    ibv_sge one = sge(0, static_cast<uint32_t>(text.size()));
    ibv_send_wr wr = request(one, qpn, id);
    if (to != nullptr) wr.wr.ud.ah = to;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &wr, &bad);
  }
  int receive(uint64_t id = 100, size_t offset = 8192, uint32_t room = 4096) {
    ibv_sge one = sge(offset, room + kRoute);
    ibv_recv_wr wr = {id, nullptr, &one, 1};
    ibv_recv_wr* bad = nullptr;
    return srq != nullptr ? ibv_post_srq_recv(srq.get(), &wr, &bad)
                          : ibv_post_recv(qp.get(), &wr, &bad);
  }
  /// The next completion with this id; others are skipped.
  std::optional<ibv_wc> completion(uint64_t id, std::chrono::milliseconds limit = kPatience) {
    for (;;) {
      const auto wc = next_completion(cq.get(), limit);
      if (!wc || wc->wr_id == id) return wc;
    }
  }
  std::string text(const ibv_wc& wc, size_t offset = 8192) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset + kRoute, wc.byte_len - kRoute};
  }
  uint32_t number() const { return qp->qp_num; }

  ibv_context* const context;
  std::vector<uint8_t> memory;
  Pd pd;
  Cq cq;
  Mr mr;
  Srq srq;
  Ah ah;
  Qp qp;
};

class UdQueuePairs : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (!roce()) GTEST_SKIP() << "iWARP has none";
  }
};

/// A datagram arrives in the end, perhaps not the first: datagrams on a trunk that is about to end
/// are lost.
void expect_arrival(UdEnd& from, UdEnd& to) {
  ASSERT_EQ(to.receive(), 0);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(from.send(to.number(), "arrives"), 0);
    if (const auto wc = to.completion(100, std::chrono::milliseconds(400))) {
      EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
      EXPECT_EQ(to.text(*wc), "arrives");
      return;
    }
  }
  FAIL() << "nothing arrives";
}

TEST_F(UdQueuePairs, PingPongWithAnAddressHandleFromTheCompletion) {
  UdEnd a(context()), b(context());
  a.ready();
  b.ready();
  ASSERT_EQ(b.receive(), 0);
  ASSERT_EQ(a.send(b.number(), "ping"), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  const auto wc = b.completion(100);
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->byte_len, kRoute + 4);
  EXPECT_EQ(wc->src_qp, a.number());
  EXPECT_EQ(wc->wc_flags & IBV_WC_GRH, static_cast<unsigned>(IBV_WC_GRH));
  EXPECT_EQ(b.text(*wc), "ping");
  ibv_wc copy = *wc;
  const Ah back(ibv_create_ah_from_wc(b.pd.get(), &copy,
                                      reinterpret_cast<ibv_grh*>(b.memory.data() + 8192), 1));
  ASSERT_NE(back, nullptr) << std::strerror(errno);
  ASSERT_EQ(a.receive(), 0);
  ASSERT_EQ(b.send(wc->src_qp, "pong", 1, back.get()), 0);
  const auto answer = a.completion(100);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(a.text(*answer), "pong");
}

// A datagram to itself by each GID of the device: IPv4, IPv6, and link-local ones.
TEST_F(UdQueuePairs, ByEachGid) {
  UdEnd a(context()), b(context());
  a.ready();
  b.ready();
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(context(), 1, &port), 0);
  const ibv_gid none = {};
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_ah_attr attr = {};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.sgid_index = static_cast<uint8_t>(index);
    if (ibv_query_gid(context(), 1, index, &attr.grh.dgid) != 0 ||
        std::memcmp(&attr.grh.dgid, &none, sizeof none) == 0)
      continue;
    const Ah to(ibv_create_ah(a.pd.get(), &attr));
    ASSERT_NE(to, nullptr) << index;
    ASSERT_EQ(b.receive(), 0);
    ASSERT_EQ(a.send(b.number(), "by address", 1, to.get()), 0);
    const auto wc = b.completion(100);
    ASSERT_TRUE(wc.has_value()) << index;
    EXPECT_EQ(b.text(*wc), "by address");
    // The address handle for the answer is made from the header.
    ibv_wc copy = *wc;
    ibv_ah_attr back = {};
    ASSERT_EQ(ibv_init_ah_from_wc(context(), 1, &copy,
                                  reinterpret_cast<ibv_grh*>(b.memory.data() + 8192), &back),
              0);
    EXPECT_EQ(std::memcmp(&back.grh.dgid, &attr.grh.dgid, sizeof none), 0) << index;
    EXPECT_EQ(back.grh.sgid_index, index);
  }
}

TEST_F(UdQueuePairs, BatchesOfExtendedOnes) {
  UdEnd a(context(), nullptr, true), b(context());
  a.ready();
  b.ready();
  for (uint64_t id = 0; id < 2; ++id) ASSERT_EQ(b.receive(100 + id, 8192 * (id + 1)), 0);
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a.qp.get());
  std::memcpy(a.memory.data(), "first", 5);
  char text[] = "second";
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_ud_addr(qp, a.ah.get(), b.number(), kQkey);
  ibv_wr_set_sge(qp, a.mr->lkey, reinterpret_cast<uint64_t>(a.memory.data()), 5);
  qp->wr_id = 2;
  ibv_wr_send_imm(qp, htonl(77));
  ibv_wr_set_ud_addr(qp, a.ah.get(), b.number(), kQkey);
  ibv_wr_set_inline_data(qp, text, 6);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  text[0] = 'X';
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  const auto first = b.completion(100), second = b.completion(101);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(b.text(*first, 8192), "first");
  EXPECT_EQ(b.text(*second, 16384), "second");
  EXPECT_EQ(second->wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(ntohl(second->imm_data), 77u);
  // If one request has no address, none of the batch is posted.
  ibv_wr_start(qp);
  qp->wr_id = 3;
  ibv_wr_send(qp);
  ibv_wr_set_ud_addr(qp, a.ah.get(), b.number(), kQkey);
  ibv_wr_set_sge(qp, a.mr->lkey, reinterpret_cast<uint64_t>(a.memory.data()), 5);
  qp->wr_id = 4;
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, a.mr->lkey, reinterpret_cast<uint64_t>(a.memory.data()), 5);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
  EXPECT_FALSE(next_completion(a.cq.get(), std::chrono::milliseconds(20)).has_value());
}

TEST_F(UdQueuePairs, SharedReceives) {
  UdEnd a(context()), b(context(), nullptr, false, true);
  a.ready();
  b.ready();
  for (int i = 0; i < 5; ++i) expect_arrival(a, b);
}

TEST_F(UdQueuePairs, EventsWake) {
  const Channel channel(ibv_create_comp_channel(context()));
  UdEnd a(context()), b(context(), channel.get());
  a.ready();
  b.ready();
  for (int round = 0; round < 5; ++round) {
    ASSERT_EQ(b.receive(), 0);
    ASSERT_EQ(ibv_req_notify_cq(b.cq.get(), 0), 0);
    ASSERT_EQ(a.send(b.number(), "wake up"), 0);
    ASSERT_TRUE(readable(channel->fd));
    ibv_cq* of = nullptr;
    void* its = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel.get(), &of, &its), 0);
    ibv_ack_cq_events(of, 1);
    EXPECT_COMPLETION(b.cq.get(), 100, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  }
}

TEST_F(UdQueuePairs, WrongRequestsAreNamed) {
  UdEnd a(context());
  a.ready();
  ibv_sge good = a.sge(0, 8), large = a.sge(0, 4097);
  const struct {
    const char* what;
    int error;
    void (*spoil)(ibv_send_wr&, ibv_sge&);
  } rows[] = {
      {"no address handle", EINVAL, [](ibv_send_wr& wr, ibv_sge&) { wr.wr.ud.ah = nullptr; }},
      {"too many", EINVAL, [](ibv_send_wr& wr, ibv_sge&) { wr.num_sge = 3; }},
      {"invalidates", EINVAL, [](ibv_send_wr& wr, ibv_sge&) { wr.opcode = IBV_WR_SEND_WITH_INV; }},
  };
  for (const auto& row : rows) {
    ibv_sge sges[3] = {good, good, good};
    ibv_send_wr first = a.request(sges[0], a.number(), 1), second = a.request(sges[0], 0, 2);
    first.next = &second;
    row.spoil(second, large);
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a.qp.get(), &first, &bad), row.error) << row.what;
    EXPECT_EQ(bad, &second) << row.what;
    EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);  // requests before the wrong one are sent
  }
  ibv_sge wrong = good;
  ++wrong.lkey;
  ibv_send_wr wr = a.request(wrong, a.number(), 3);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp.get(), &wr, &bad), 0);
  EXPECT_COMPLETION(a.cq.get(), 3, IBV_WC_LOC_PROT_ERR);
}

// As with mlx5 and rxe, which look at them only when they are sent.
TEST_F(UdQueuePairs, WhatNoDatagramCanDoCompletesWithAnError) {
  const struct {
    const char* what;
    ibv_wr_opcode opcode;
    uint32_t bytes;
    ibv_wc_status status;
  } rows[] = {{"a Read", IBV_WR_RDMA_READ, 8, IBV_WC_LOC_QP_OP_ERR},
              {"a Write", IBV_WR_RDMA_WRITE, 8, IBV_WC_LOC_QP_OP_ERR},
              {"an atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_LOC_QP_OP_ERR},
              {"longer than the MTU", IBV_WR_SEND, 4097, IBV_WC_LOC_LEN_ERR}};
  for (const auto& row : rows) {
    UdEnd a(context());
    a.ready();
    ibv_sge sge = a.sge(0, row.bytes);
    ibv_send_wr first = a.request(sge, a.number(), 1), second = a.request(sge, a.number(), 2);
    first.next = &second;
    first.opcode = row.opcode;
    // Instead of an address handle: it is a union.
    if (row.opcode != IBV_WR_SEND) first.wr.rdma = {~uint64_t{0}, 7};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp.get(), &first, &bad), 0) << row.what;
    EXPECT_COMPLETION(a.cq.get(), 1, row.status);
    EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_SQE);
  }
}

TEST_F(UdQueuePairs, AReceiveThatIsTooShortStaysForTheNextOne) {
  for (const bool shared : {false, true}) {
    UdEnd a(context()), b(context(), nullptr, false, shared);
    a.ready();
    b.ready();
    ASSERT_EQ(b.receive(100, 8192, 16), 0);
    ASSERT_EQ(a.send(b.number(), std::string(64, 'l')), 0);
    EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_FALSE(next_completion(b.cq.get(), std::chrono::milliseconds(50)).has_value());
    ASSERT_EQ(a.send(b.number(), "it fits"), 0);
    EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
    const auto got = b.completion(100);
    ASSERT_TRUE(got);
    EXPECT_EQ(b.text(*got), "it fits");
    // And it is flushed with the others.
    ASSERT_EQ(b.receive(100, 8192, 16), 0);
    ASSERT_EQ(a.send(b.number(), std::string(64, 'l')), 0);
    EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_FALSE(next_completion(b.cq.get(), std::chrono::milliseconds(50)).has_value());
    ASSERT_EQ(to_state(b.qp.get(), IBV_QPS_ERR), 0);
    EXPECT_COMPLETION(b.cq.get(), 100, IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_F(UdQueuePairs, StatesAskForTheirAttributes) {
  UdEnd a(context());
  EXPECT_EQ(a.send(1, "too early"), EINVAL);
  EXPECT_EQ(a.rts(), EINVAL);
  EXPECT_EQ(to_state(a.qp.get(), IBV_QPS_INIT), EINVAL);
  a.ready();
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a.qp.get(), &attr, IBV_QP_QKEY, &init), 0);
  EXPECT_EQ(attr.qkey, kQkey);
  EXPECT_EQ(init.qp_type, IBV_QPT_UD);
  attr.qkey = 5;
  EXPECT_EQ(ibv_modify_qp(a.qp.get(), &attr, IBV_QP_QKEY), 0);
}

// One list of requests for more destinations than the engine remembers, while the socket buffer is
// small.
TEST_F(UdQueuePairs, ListsToManyPlaces) {
  UdEnd a(context()), b(context());
  a.ready();
  b.ready();
  ibv_sge large = a.sge(0, 4096);
  ibv_send_wr list[32];
  uint64_t posted = 0, done = 0;
  for (int round = 0; round < 60; ++round) {
    for (size_t i = 0; i < 32; ++i) {
      // Ports without a process, and b's own.
      const uint32_t number = i % 2 == 0 ? b.number() : static_cast<uint32_t>(i + 1) << 8;
      list[i] = a.request(large, number, 5);
      list[i].next = i + 1 < 32 ? &list[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(a.qp.get(), list, &bad);
    ASSERT_TRUE(error == 0 || error == ENOMEM) << error;
    posted += error == 0 ? 32 : static_cast<uint64_t>(bad - list);
    ibv_wc wc = {};
    while (ibv_poll_cq(a.cq.get(), 1, &wc) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      ++done;
    }
  }
  while (done < posted) {
    ASSERT_TRUE(next_completion(a.cq.get()).has_value()) << done << " of " << posted;
    ++done;
  }
}

// A request that waits completes once or not at all. Peers that go on sending cause no harm.
TEST_F(UdQueuePairs, EndInEachStateWhilePeersSend) {
  UdEnd sender(context());
  sender.ready();
  std::atomic<uint32_t> target{sender.number()};
  std::atomic<bool> stop{false};
  std::thread peer([&] {
    ibv_wc wc[16];
    while (!stop) {
      (void)sender.send(target, "all the time");
      (void)ibv_poll_cq(sender.cq.get(), 16, wc);
    }
  });
  enum { kReset, kInit, kRtr, kRts, kSqd, kErr, kStates };
  for (int round = 0; round < 10; ++round) {
    for (int state = kReset; state != kStates; ++state) {
      UdEnd end(context());
      target = end.number();
      ASSERT_EQ(state < kInit ? 0 : end.init(), 0);
      for (uint64_t id = 0; state >= kInit && id < 30; ++id) ASSERT_EQ(end.receive(id), 0);
      ASSERT_EQ(state < kRtr ? 0 : end.rtr(), 0);
      ASSERT_EQ(state < kRts ? 0 : end.rts(), 0);
      ASSERT_EQ(state != kSqd ? 0 : to_state(end.qp.get(), IBV_QPS_SQD), 0);
      for (uint64_t id = 100; state >= kRts && id < 110; ++id)
        ASSERT_EQ(end.send(sender.number(), "x", id), 0);
      ASSERT_EQ(state != kErr ? 0 : to_state(end.qp.get(), IBV_QPS_ERR), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::map<uint64_t, int> seen;
      ibv_wc wc = {};
      while (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) ++seen[wc.wr_id];
      for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id << " in state " << state;
      if (state == kErr) {
        EXPECT_EQ(seen.size(), 40u);
      }
      // The region goes before the queue pair.
      if (round % 2 == 0) end.mr.reset();
    }
  }
  target = sender.number();
  stop = true;
  peer.join();
}

TEST_F(UdQueuePairs, AreResetAndUsedAgain) {
  UdEnd a(context()), b(context());
  b.ready();
  for (int round = 0; round < 5; ++round) {
    a.ready();
    for (int i = 0; i < 60; ++i) ASSERT_EQ(a.send(b.number(), "before"), 0);
    ASSERT_EQ(to_state(a.qp.get(), IBV_QPS_RESET), 0);
    EXPECT_FALSE(next_completion(a.cq.get(), std::chrono::milliseconds(1)).has_value());
  }
  a.ready();
  ASSERT_EQ(a.receive(), 0);
  expect_arrival(b, a);
}

TEST_F(UdQueuePairs, AHundredOfThem) {
  std::vector<std::unique_ptr<UdEnd>> ends;
  for (int i = 0; i < 100; ++i) {
    ends.push_back(std::make_unique<UdEnd>(context()));
    ends.back()->ready();
    ASSERT_EQ(ends.back()->receive(), 0);
  }
  for (size_t i = 0; i < ends.size(); ++i)
    ASSERT_EQ(ends[i]->send(ends[(i * 37 + 1) % ends.size()]->number(), std::to_string(i)), 0);
  for (size_t i = 0; i < ends.size(); ++i) {
    UdEnd& to = *ends[(i * 37 + 1) % ends.size()];
    const auto wc = to.completion(100);
    ASSERT_TRUE(wc.has_value()) << i;
    EXPECT_EQ(to.text(*wc), std::to_string(i));
  }
}

TEST_F(UdQueuePairs, ACompletionQueueThatIsFull) {
  UdEnd a(context());
  const Cq small(ibv_create_cq(context(), 1, nullptr, nullptr, 0));
  ibv_qp_init_attr init = init_attributes(small.get());
  init.qp_type = IBV_QPT_UD;
  a.qp.reset(ibv_create_qp(a.pd.get(), &init));
  a.ready();
  for (int i = 0; i < 8; ++i) ASSERT_EQ(a.send(1, "too many"), 0);
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_ERR);
  bool queue_told = false, pair_told = false;
  for (int i = 0; i < 2; ++i) {
    const auto event = next_async_event(context());
    ASSERT_TRUE(event.has_value());
    queue_told |= event->event_type == IBV_EVENT_CQ_ERR;
    pair_told |= event->event_type == IBV_EVENT_QP_FATAL;
    ibv_ack_async_event(const_cast<ibv_async_event*>(&*event));
  }
  EXPECT_TRUE(queue_told);
  EXPECT_TRUE(pair_told);
  a.qp.reset();
}

#if !defined(__SANITIZE_THREAD__)
// A child has the objects of its parent, but not its trunks.
TEST_F(UdQueuePairs, AForkedChildLetsGo) {
  UdEnd a(context()), b(context());
  a.ready();
  b.ready();
  expect_arrival(a, b);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = a.send(b.number(), "from the child") == ENODEV;
    a.ah.reset();
    b.ah.reset();
    a.qp.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_arrival(b, a);
}

/// A process sends `count` datagrams of 4096 bytes to `to` and ends when its requests are complete.
[[noreturn]] void send_and_exit(ibv_device* device, uint32_t to, int count) {
  ibv_context* const context = ibv_open_device(device);
  {
    UdEnd end(context);
    end.ready();
    const std::string text(4096, 'x');
    for (int i = 0; i < count; ++i)
      if (end.send(to, text) != 0) _exit(1);
    for (int i = 0; i < count; ++i)
      if (!end.completion(1)) _exit(2);
  }
  ibv_close_device(context);
  exit(0);
}

// Of an adapter's datagrams those are on the wire whose requests are complete.
TEST_F(UdQueuePairs, WhatIsCompleteArrivesAlthoughTheProcessEnds) {
  constexpr int kCount = 120;  // no more than it has receives: none is dropped
  for (int round = 0; round < 10; ++round) {
    UdEnd to(context());
    to.ready();
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(to.receive(), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) send_and_exit(context()->device, to.number(), kCount);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (int i = 0; i < kCount; ++i) ASSERT_TRUE(to.completion(100)) << i << " in " << round;
  }
}
#endif

}  // namespace
