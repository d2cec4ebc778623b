// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Unreliable connections (IBV_QPT_UC) of the roce persona: what they carry, what they refuse, and
// what is lost without an error.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "verbs/peer_process.h"
#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

constexpr uint64_t kUnanswered = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
                                 IBV_QP_EX_WITH_SEND_WITH_INV;
constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

ibv_qp* create(End& end, uint64_t operations, ibv_srq* srq = nullptr) {
  ibv_qp_init_attr_ex init = {};
  init.send_cq = init.recv_cq = end.cq.get();
  init.cap = {64, srq == nullptr ? 64u : 0u, 4, 4, 64};
  init.qp_type = IBV_QPT_UC;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.srq = srq;
  if (operations != 0) init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = end.pd.get();
  init.send_ops_flags = operations;
  return ibv_create_qp_ex(end.pd->context, &init);
}

struct UcEnd : End {
  explicit UcEnd(ibv_context* context, ibv_srq* srq = nullptr) : End(context) {
    qp.reset(create(*this, kUnanswered, srq));
    EXPECT_NE(qp, nullptr);
    EXPECT_EQ(to_init(qp.get(), IBV_ACCESS_REMOTE_WRITE), 0);
  }
  int to_rtr(const Address& peer, int more = 0) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.hop_limit = 1;
    return ibv_modify_qp(qp.get(), &attr, kToRtr | more);
  }
  int to_rts(int more = 0) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = psn;
    return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | more);
  }
  void connect(const Address& peer) {
    EXPECT_EQ(to_rtr(peer), 0);
    EXPECT_EQ(to_rts(), 0);
  }
  /// Posts, and expects this error and that it names the request.
  void refuse(ibv_wr_opcode opcode, const Address& peer, int error) {
    ibv_sge list = sge(0, 8);
    ibv_send_wr wr = {};
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_RDMA_READ) {
      wr.wr.rdma = {peer.memory, peer.rkey};
    } else {
      wr.wr.atomic = {peer.memory, 1, 1, peer.rkey};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp.get(), &wr, &bad), error) << opcode;
    EXPECT_EQ(bad, &wr) << opcode;
  }
};

class Unreliable : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (context_ != nullptr && !roce()) GTEST_SKIP() << "iWARP has reliable connections only";
  }
  uint64_t dropped() { return hw_counter(context(), "dropped_receives"); }
  bool no_event() { return !readable(context()->async_fd, milliseconds(50)); }
};

TEST_F(Unreliable, SendsAndWrites) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  b.connect(a.address());
  ASSERT_EQ(b.post_receive(1, 4096, 4096), 0);
  ASSERT_EQ(b.post_receive(2, 8192, 0), 0);
  std::memset(a.memory.data(), 0x5a, 100000);
  ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE, 10, b.address(), 0, 100000), 0);
  ASSERT_EQ(a.post_send(11, 0, 4000), 0);
  ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 12, b.address(), 0, 1000), 0);
  for (uint64_t id = 10; id < 13; ++id) EXPECT_COMPLETION(a.cq.get(), id, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
  const auto with_imm = next_completion(b.cq.get());
  ASSERT_TRUE(with_imm.has_value());
  EXPECT_EQ(with_imm->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(with_imm->byte_len, 1000u);
  EXPECT_EQ(b.memory[99999], 0x5a);
  // The other direction, with ibv_wr_*.
  ASSERT_EQ(a.post_receive(3, 0, 64), 0);
  ibv_qp_ex* const qpx = ibv_qp_to_qp_ex(b.qp.get());
  ASSERT_NE(qpx, nullptr);
  ibv_wr_start(qpx);
  qpx->wr_id = 20;
  qpx->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(qpx, 0x1234);
  ibv_wr_set_sge(qpx, b.mr->lkey, reinterpret_cast<uint64_t>(b.memory.data()), 64);
  ASSERT_EQ(ibv_wr_complete(qpx), 0);
  EXPECT_COMPLETION(b.cq.get(), 20, IBV_WC_SUCCESS);
  const auto received = next_completion(a.cq.get());
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->imm_data, 0x1234u);
}

TEST_F(Unreliable, ReadsAndAtomicsAreRefused) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  b.connect(a.address());
  for (const auto opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD})
    a.refuse(opcode, b.address(), EINVAL);
  for (const uint64_t operation : {IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD}) {
    errno = 0;
    EXPECT_EQ(create(a, operation), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
  ASSERT_EQ(b.post_receive(1), 0);
  ASSERT_EQ(a.post_send(2), 0);
  EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Unreliable, StatesAskForWhatTheyNeedOnly) {
  UcEnd a(context()), b(context());
  EXPECT_EQ(a.to_rtr(b.address(), IBV_QP_MAX_DEST_RD_ATOMIC), EINVAL);
  EXPECT_EQ(a.to_rtr(b.address(), IBV_QP_MIN_RNR_TIMER), EINVAL);
  ASSERT_EQ(a.to_rtr(b.address()), 0);
  for (const int mask :
       {IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC})
    EXPECT_EQ(a.to_rts(mask), EINVAL);
  ASSERT_EQ(a.to_rts(), 0);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a.qp.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(init.qp_type, IBV_QPT_UC);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.dest_qp_num, b.qp->qp_num);
  EXPECT_EQ(attr.max_rd_atomic, 0);
}

TEST_F(Unreliable, ASendWithoutReceiveIsDroppedAndCounted) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  b.connect(a.address());
  const uint64_t before = dropped();
  ASSERT_EQ(a.post_send(1, 0, 200000), 0);
  ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 2, b.address(), 0, 3000), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  ASSERT_TRUE(wait_until([&] { return dropped() == before + 2; })) << dropped() - before;
  ASSERT_EQ(b.post_receive(3, 1000, 500), 0);
  ASSERT_EQ(a.post_send(4, 0, 500), 0);
  EXPECT_COMPLETION(b.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS);
  EXPECT_EQ(state_of(b.qp.get()), IBV_QPS_RTS);
  EXPECT_TRUE(no_event());
}

TEST_F(Unreliable, AReceiveThatIsTooShortFailsAlone) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  b.connect(a.address());
  ASSERT_EQ(b.post_receive(1, 0, 100), 0);
  ASSERT_EQ(b.post_receive(2, 0, 100000), 0);
  ASSERT_EQ(a.post_send(3, 0, 100000), 0);
  ASSERT_EQ(a.post_send(4, 0, 100000), 0);
  EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_LOC_LEN_ERR);
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(b.qp.get()), IBV_QPS_RTS);
}

TEST_F(Unreliable, WithASharedReceiveQueue) {
  End owner(context());
  ibv_srq_init_attr init = {};
  init.attr = {16, 1, 0};
  Srq srq(ibv_create_srq(owner.pd.get(), &init));
  ASSERT_NE(srq, nullptr);
  UcEnd a(context());
  UcEnd b(context(), srq.get());
  a.connect(b.address());
  b.connect(a.address());
  ibv_sge list = owner.sge();
  ibv_recv_wr wr = {7, nullptr, &list, 0};  // the memory is of another domain
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
  ASSERT_EQ(a.post_send(1, 0, 0), 0);
  EXPECT_COMPLETION(b.cq.get(), 7, IBV_WC_SUCCESS);
}

TEST_F(Unreliable, ThePeersEndIsNotReported) {
  UcEnd a(context());
  {
    UcEnd b(context());
    a.connect(b.address());
    b.connect(a.address());
    ASSERT_EQ(b.post_receive(1), 0);
    ASSERT_EQ(a.post_send(2), 0);
    EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(a.post_receive(3), 0);
  for (uint64_t id = 10; id < 200; ++id) {
    ASSERT_EQ(a.post_send(id, 0, 100000), 0);
    EXPECT_COMPLETION(a.cq.get(), id, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS);
  EXPECT_FALSE(next_completion(a.cq.get(), milliseconds(50)).has_value()) << "of the receive";
  EXPECT_TRUE(no_event());
  EXPECT_EQ(to_state(a.qp.get(), IBV_QPS_ERR), 0);
  EXPECT_COMPLETION(a.cq.get(), 3, IBV_WC_WR_FLUSH_ERR);
}

// The peer is killed while we send to it.
TEST_F(Unreliable, ThePeerIsKilled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto tell = [&](const Address& own) {
    return write(ends[0], &own, sizeof own) == static_cast<ssize_t>(sizeof own);
  };
  const auto hear = [&](Address& other) {
    return read(ends[0], &other, sizeof other) == static_cast<ssize_t>(sizeof other);
  };
  const pid_t child = fork();
  if (child == 0) {
    std::swap(ends[0], ends[1]);
    const Context own = open_device();
    UcEnd b(own.get());
    Address other;
    if (!tell(b.address()) || !hear(other)) _exit(1);
    b.connect(other);
    for (int i = 0; i < 64; ++i) b.post_receive(1, 0, 1 << 20);
    (void)tell(b.address());
    for (;;) pause();
  }
  close(ends[1]);
  UcEnd a(context());
  Address other;
  ASSERT_TRUE(tell(a.address()));
  ASSERT_TRUE(hear(other));
  a.connect(other);
  ASSERT_TRUE(hear(other));
  for (uint64_t id = 0; id < 10; ++id) ASSERT_EQ(a.post_send(id, 0, 1 << 20), 0);
  EXPECT_COMPLETION(a.cq.get(), 0, IBV_WC_SUCCESS);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ends[0]);
  for (uint64_t id = 10; id < 100; ++id) {
    ASSERT_EQ(a.post_send(id, 0, 1 << 20), 0);
    EXPECT_COMPLETION(a.cq.get(), id - 9, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS);
  EXPECT_TRUE(no_event());
}

// Requests that are posted meanwhile wait for some seconds, and then count as sent.
TEST_F(Unreliable, APeerThatComesLate) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  ASSERT_EQ(a.post_send(1), 0);
  ASSERT_EQ(a.post_send(2), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  ASSERT_EQ(a.post_send(3), 0);
  EXPECT_COMPLETION(a.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS);
  ASSERT_EQ(b.post_receive(4), 0);
  b.connect(a.address());
  uint64_t id = 10;
  EXPECT_TRUE(wait_until([&] {
    EXPECT_EQ(a.post_send(++id), 0);
    EXPECT_TRUE(next_completion(a.cq.get()).has_value());
    return next_completion(b.cq.get(), milliseconds(20)).has_value();
  }));
  EXPECT_TRUE(no_event());
}

TEST_F(Unreliable, MemoryThatThePeerMayNotWriteEndsTheConnection) {
  UcEnd a(context()), b(context());
  a.connect(b.address());
  b.connect(a.address());
  Address wrong = b.address();
  wrong.rkey ^= 0x100;
  ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE, 1, wrong), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  const auto event = next_async_event(context());
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(event->event_type == IBV_EVENT_QP_ACCESS_ERR ||
              event->event_type == IBV_EVENT_QP_FATAL);
  ibv_async_event copy = *event;
  ibv_ack_async_event(&copy);
  EXPECT_TRUE(wait_until([&] { return state_of(a.qp.get()) == IBV_QPS_ERR; }));
  EXPECT_TRUE(wait_until([&] { return state_of(b.qp.get()) == IBV_QPS_ERR; }));
  const auto other = next_async_event(context());
  ASSERT_TRUE(other.has_value());
  copy = *other;
  ibv_ack_async_event(&copy);
}

TEST_F(Unreliable, OnDemandMemoryIsReported) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &attr), 0);
  const auto& caps = attr.odp_caps.per_transport_caps;
  constexpr uint32_t kAnswered = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
  EXPECT_EQ(caps.uc_odp_caps, caps.rc_odp_caps & ~kAnswered);
}

}  // namespace
