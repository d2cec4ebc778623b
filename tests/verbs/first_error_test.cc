// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a program sees first when a queue pair fails: the status of its oldest request, that of the
// peer's oldest receive, and the asynchronous events. The table "The first error of a queue pair"
// of docs/verbs.md names these tests.
#include <algorithm>
#include <cstring>
#include <set>

#include "verbs/verbs_fixture.h"

namespace {

using Seen = std::multiset<ibv_event_type>;

constexpr uint32_t kNoKey = 0x00770077;

class FirstError : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pair_ = std::make_unique<Pair>(context());
    ASSERT_EQ(b().post_receive(100, 4096), 0);
    ASSERT_EQ(b().post_receive(101, 4096), 0);
  }
  void TearDown() override { pair_.reset(); }
  End& a() { return pair_->a; }
  End& b() { return pair_->b; }

  void establish() {
    ASSERT_EQ(a().post_rdma(IBV_WR_RDMA_READ, 9, b().address(), 0, 8), 0);
    EXPECT_COMPLETION(a().cq.get(), 9, IBV_WC_SUCCESS);
  }
  /// A request of `a` that is in order, for 8 bytes.
  ibv_send_wr request(ibv_wr_opcode opcode) {
    sge_ = a().sge(0, 8);
    return request(opcode, 1, sge_);
  }
  ibv_send_wr request(ibv_wr_opcode opcode, uint64_t id, ibv_sge& list) {
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    const Address peer = b().address();
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
      wr.wr.atomic.remote_addr = peer.memory;
      wr.wr.atomic.rkey = peer.rkey;
      wr.wr.atomic.compare_add = 5;
    } else {
      wr.wr.rdma.remote_addr = peer.memory;
      wr.wr.rdma.rkey = peer.rkey;
    }
    return wr;
  }
  /// Posts it with a Read behind it: over iWARP a Send or Write is complete before the peer refuses
  /// it, and then that Read is the oldest request.
  void post(ibv_send_wr wr) {
    ibv_sge to = a().sge(64, 8);
    ibv_send_wr read = request(IBV_WR_RDMA_READ, 2, to);
    wr.next = &read;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a().qp.get(), &wr, &bad), 0);
  }
  struct Row {
    ibv_wc_status request;  // of the oldest request of `a` that fails
    ibv_wc_status receive;  // of the oldest receive of `b`
    Seen at_a, at_b;
  };
  void expect(const Row& row) {
    std::vector<ibv_wc> sent;
    for (int i = 0; i < 2; ++i) {
      const auto done = next_completion(a().cq.get());
      ASSERT_TRUE(done.has_value());
      if (done->status != IBV_WC_SUCCESS) sent.push_back(*done);
    }
    ASSERT_FALSE(sent.empty());
    EXPECT_STREQ(ibv_wc_status_str(sent[0].status), ibv_wc_status_str(row.request));
    if (sent.size() == 2) {
      EXPECT_EQ(sent[1].status, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_COMPLETION(b().cq.get(), 100, row.receive);
    EXPECT_COMPLETION(b().cq.get(), 101, IBV_WC_WR_FLUSH_ERR);
    // Seen are there before what is flushed is.
    std::map<ibv_qp*, Seen> events;
    while (const auto event = next_async_event(context(), std::chrono::milliseconds(0))) {
      events[event->element.qp].insert(event->event_type);
      ibv_async_event copy = *event;
      ibv_ack_async_event(&copy);
    }
    EXPECT_EQ(events[a().qp.get()], row.at_a);
    EXPECT_EQ(events[b().qp.get()], row.at_b);
    EXPECT_EQ(state_of(a().qp.get()), IBV_QPS_ERR);
    EXPECT_EQ(state_of(b().qp.get()), IBV_QPS_ERR);
  }
  /// The requester's event when the peer has refused something: with InfiniBand's acknowledgements
  /// a completion tells.
  Seen refused() const { return roce() ? Seen{} : Seen{IBV_EVENT_QP_FATAL}; }

  std::unique_ptr<Pair> pair_;
  ibv_sge sge_ = {};
};

TEST_F(FirstError, OwnKeyIsWrong) {
  ibv_send_wr wr = request(IBV_WR_SEND);
  sge_.lkey ^= 0x5500;
  post(wr);
  expect({IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, {}, {IBV_EVENT_QP_FATAL}});
}

TEST_F(FirstError, AnswerHasNoPlace) {
  ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD);
  sge_.lkey ^= 0x5500;
  post(wr);
  expect({IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, {}, {IBV_EVENT_QP_FATAL}});
  EXPECT_EQ(b().memory[0], roce() ? 5 : 0) << "adapters look at the local list last";
}

// The kinds of memory and of carriers differ in how a large answer is placed.
TEST_F(FirstError, ALargeAnswerHasNoPlace) {
  std::vector<uint8_t> here(1 << 19, 0x11);
  Mr no_write(ibv_reg_mr(a().pd.get(), here.data(), here.size(), IBV_ACCESS_REMOTE_READ));
  for (int i = 0; i < 200; ++i) {  // busy: between processes of one host it leaves TCP
    ASSERT_EQ(a().post_rdma(IBV_WR_RDMA_READ, i, b().address(), 0, 1 << 19), 0);
    EXPECT_COMPLETION(a().cq.get(), i, IBV_WC_SUCCESS);
  }
  ibv_send_wr wr = request(IBV_WR_RDMA_READ);
  sge_ = {reinterpret_cast<uintptr_t>(here.data()), 1 << 19, no_write->lkey};
  post(wr);
  expect({IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, {}, {IBV_EVENT_QP_FATAL}});
  EXPECT_EQ(std::count(here.begin(), here.end(), 0x11), 1 << 19);
}

TEST_F(FirstError, LengthOfAnAtomicIsWrong) {
  ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD);
  sge_.length = 9;
  post(wr);
  expect({IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR, {}, {IBV_EVENT_QP_FATAL}});
}

TEST_F(FirstError, KeyOfAWriteIsWrong) {
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE);
  wr.wr.rdma.rkey = kNoKey;
  post(wr);
  expect({IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, refused(), {IBV_EVENT_QP_ACCESS_ERR}});
}

TEST_F(FirstError, KeyOfAWriteWithImmediateIsWrong) {
  ibv_send_wr wr = request(IBV_WR_RDMA_WRITE_WITH_IMM);
  wr.wr.rdma.rkey = kNoKey;
  post(wr);
  expect({IBV_WC_REM_ACCESS_ERR,
          roce() ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR,
          refused(),
          {IBV_EVENT_QP_ACCESS_ERR}});
}

TEST_F(FirstError, KeyOfAReadIsWrong) {
  ibv_send_wr wr = request(IBV_WR_RDMA_READ);
  wr.wr.rdma.rkey = kNoKey;
  if (roce()) sge_.lkey ^= 0x5500;  // the peer's verdict comes first
  post(wr);
  expect({IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, refused(), {IBV_EVENT_QP_ACCESS_ERR}});
}

TEST_F(FirstError, AtomicIsNotAligned) {
  ibv_send_wr wr = request(IBV_WR_ATOMIC_CMP_AND_SWP);
  wr.wr.atomic.remote_addr += 1;
  if (roce()) wr.wr.atomic.rkey = kNoKey;  // alignment comes before the key
  post(wr);
  expect({IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR, refused(), {IBV_EVENT_QP_REQ_ERR}});
}

TEST_F(FirstError, ReceiveIsTooShort) {
  ibv_send_wr wr = request(IBV_WR_SEND);
  sge_.length = 65;
  post(wr);
  expect({IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, refused(), {IBV_EVENT_QP_FATAL}});
}

TEST_F(FirstError, KeyOfTheReceiveIsWrong) {
  b().mr.reset();
  b().mr.reset(ibv_reg_mr(b().pd.get(), b().memory.data(), b().memory.size(), kAllAccess));
  post(request(IBV_WR_SEND));
  expect({IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, refused(), {IBV_EVENT_QP_FATAL}});
}

TEST_F(FirstError, InvalidatedKeyIsNoWindow) {
  ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV);
  wr.invalidate_rkey = b().mr->rkey;
  post(wr);
  expect({IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, refused(), {IBV_EVENT_QP_ACCESS_ERR}});
}

TEST_F(FirstError, PeerHasReset) {
  establish();
  ASSERT_EQ(to_state(b().qp.get(), IBV_QPS_RESET), 0);
  post(request(IBV_WR_RDMA_READ));
  EXPECT_COMPLETION(a().cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
  EXPECT_COMPLETION(a().cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
}

// A window that is bound cannot be bound again.
TEST_F(FirstError, BindFailsWhileThePeerReads) {
  establish();  // before that `b` could not say why
  Mr region(ibv_reg_mr(b().pd.get(), b().memory.data(), b().memory.size(),
                       kAllAccess | IBV_ACCESS_MW_BIND));
  const std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>> window(
      ibv_alloc_mw(b().pd.get(), IBV_MW_TYPE_2));
  ASSERT_NE(window, nullptr);
  ibv_send_wr bind = {};
  bind.wr_id = 50;
  bind.opcode = IBV_WR_BIND_MW;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_mw.mw = window.get();
  bind.bind_mw.rkey = window->rkey;
  bind.bind_mw.bind_info = {region.get(), reinterpret_cast<uintptr_t>(b().memory.data()),
                            b().memory.size(), IBV_ACCESS_REMOTE_READ};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(b().qp.get(), &bind, &bad), 0);
  EXPECT_COMPLETION(b().cq.get(), 50, IBV_WC_SUCCESS);
  Address shown = b().address();
  shown.rkey = window->rkey;
  constexpr int kReads = 60;
  for (int i = 0; i < kReads; ++i)
    ASSERT_EQ(a().post_rdma(IBV_WR_RDMA_READ, i, shown, 0, 1 << 20), 0);
  bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
  ASSERT_EQ(ibv_post_send(b().qp.get(), &bind, &bad), 0);
  EXPECT_COMPLETION(b().cq.get(), 50, IBV_WC_MW_BIND_ERR);
  ibv_wc_status first = IBV_WC_SUCCESS;
  for (int i = 0; i < kReads; ++i) {
    const auto done = next_completion(a().cq.get());
    ASSERT_TRUE(done.has_value());
    if (first == IBV_WC_SUCCESS) first = done->status;
  }
  EXPECT_STREQ(ibv_wc_status_str(first), ibv_wc_status_str(IBV_WC_REM_OP_ERR));
}

}  // namespace
