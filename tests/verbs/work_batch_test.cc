// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_qp_ex: requests built with ibv_wr_* are posted together or not at all.
#include <arpa/inet.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

constexpr uint64_t kEverything = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                 IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
                                 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;

class WorkBatch : public VerbsTest {
 protected:
  ibv_qp* create(End& end, uint64_t operations, uint32_t depth = 64) {
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = end.cq.get();
    init.cap = {depth, depth, 4, 4, 64};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = end.pd.get();
    init.send_ops_flags = operations;
    return ibv_create_qp_ex(context(), &init);
  }
  /// Gives `a` a queue pair for batches, connected to `b`.
  ibv_qp_ex* prepare(End& a, End& b, uint64_t operations = kEverything, uint32_t depth = 64) {
    a.qp.reset(create(a, operations, depth));
    if (a.qp == nullptr) return nullptr;
    EXPECT_EQ(to_init(a.qp.get()), 0);
    a.connect(b.address());
    b.connect(a.address());
    return ibv_qp_to_qp_ex(a.qp.get());
  }
  static void next(ibv_qp_ex* qp, uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
    qp->wr_id = id;
    qp->wr_flags = flags;
  }
};

TEST_F(WorkBatch, OnlyQueuePairsMadeForIt) {
  End end(context());
  EXPECT_EQ(ibv_qp_to_qp_ex(end.qp.get()), nullptr);
  Qp made(create(end, kEverything));
  ASSERT_NE(made, nullptr);
  EXPECT_NE(ibv_qp_to_qp_ex(made.get()), nullptr);
  errno = 0;
  EXPECT_EQ(create(end, IBV_QP_EX_WITH_TSO), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(create(end, kEverything | IBV_QP_EX_WITH_ATOMIC_WRITE), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(create(end, uint64_t{1} << 50), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(WorkBatch, EveryOperation) {
  End a(context()), b(context());
  ibv_qp_ex* qp = prepare(a, b);
  ASSERT_NE(qp, nullptr);
  const Address target = b.address();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b.post_receive(20 + i, 4096 * (i + 1), 256), 0);
  for (size_t i = 0; i < 1024; ++i) a.memory[i] = static_cast<uint8_t>(i * 7 + 1);
  auto* cell = reinterpret_cast<uint64_t*>(b.memory.data() + 512);
  *cell = 5;
  const uint32_t lkey = a.mr->lkey;
  const auto at = [&](size_t offset) { return a.sge(offset).addr; };

  ibv_wr_start(qp);
  next(qp, 1);
  ibv_wr_rdma_write(qp, target.rkey, target.memory);
  ibv_wr_set_sge(qp, lkey, at(0), 100);
  next(qp, 2);
  ibv_wr_rdma_write_imm(qp, target.rkey, target.memory + 100, htonl(77));
  ibv_sge list[3] = {a.sge(100, 10), a.sge(110, 0), a.sge(110, 50)};
  ibv_wr_set_sge_list(qp, 3, list);
  next(qp, 3);
  ibv_wr_rdma_read(qp, target.rkey, target.memory);
  ibv_wr_set_sge(qp, lkey, at(2048), 160);
  next(qp, 4);
  ibv_wr_atomic_fetch_add(qp, target.rkey, target.memory + 512, 3);
  ibv_wr_set_sge(qp, lkey, at(3072), 8);
  next(qp, 5);
  ibv_wr_atomic_cmp_swp(qp, target.rkey, target.memory + 512, 8, 99);
  ibv_wr_set_sge(qp, lkey, at(3080), 8);
  next(qp, 6, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
  ibv_wr_send(qp);
  char text[] = "inline";
  ibv_wr_set_inline_data(qp, text, sizeof text);
  next(qp, 7);
  ibv_wr_send(qp);
  char parts[2][4] = {{'a', 'b', 'c', 'd'}, {'e', 'f', 'g', 'h'}};
  const ibv_data_buf buffers[2] = {{parts[0], 4}, {parts[1], 3}};
  ibv_wr_set_inline_data_list(qp, 2, buffers);
  next(qp, 8, 0);  // not signaled
  ibv_wr_rdma_write(qp, target.rkey, target.memory + 600);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  std::memset(text, 0, sizeof text);
  std::memset(parts, 0, sizeof parts);

  const ibv_wc_opcode opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
                                   IBV_WC_FETCH_ADD,  IBV_WC_COMP_SWAP,  IBV_WC_SEND,
                                   IBV_WC_SEND};
  for (uint64_t i = 0; i < 7; ++i) {
    const auto wc = next_completion(a.cq.get());
    ASSERT_TRUE(wc.has_value()) << i;
    EXPECT_EQ(wc->wr_id, i + 1);
    EXPECT_STREQ(ibv_wc_status_str(wc->status), "success") << i;
    EXPECT_EQ(wc->opcode, opcodes[i]) << i;
  }
  EXPECT_EQ(std::memcmp(a.memory.data() + 2048, a.memory.data(), 160), 0) << "written, then read";
  uint64_t old[2];
  std::memcpy(old, a.memory.data() + 3072, sizeof old);
  EXPECT_EQ(old[0], 5u);
  EXPECT_EQ(old[1], 8u);
  EXPECT_EQ(*cell, 99u);
  auto wc = next_completion(b.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(ntohl(wc->imm_data), 77u);
  EXPECT_EQ(wc->byte_len, 60u);
  EXPECT_COMPLETION(b.cq.get(), 21, IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(b.memory.data() + 2 * 4096), "inline");
  wc = next_completion(b.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->byte_len, 7u);
  EXPECT_EQ(std::memcmp(b.memory.data() + 3 * 4096, "abcdefg", 7), 0);

  // The peer is known by now, so a Send may also carry immediate data.
  ibv_wr_start(qp);
  next(qp, 9);
  ibv_wr_send_imm(qp, htonl(4711));
  ibv_wr_set_sge(qp, lkey, at(0), 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  wc = next_completion(b.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->opcode, IBV_WC_RECV);
  EXPECT_EQ(ntohl(wc->imm_data), 4711u);
}

// Neither a peer nor its owner can invalidate a region; windows can be invalidated (see the tests
// there).
TEST_F(WorkBatch, InvalidationsReachTheEngine) {
  End a(context()), b(context());
  ibv_qp_ex* qp = prepare(a, b);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(b.post_receive(1), 0);
  ibv_wr_start(qp);
  next(qp, 2);
  ibv_wr_local_inv(qp, a.mr->rkey);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_MW_BIND_ERR);

  End c(context()), d(context());
  qp = prepare(c, d);
  ASSERT_EQ(d.post_receive(1), 0);
  ibv_wr_start(qp);
  next(qp, 2);
  ibv_wr_send_inv(qp, d.mr->rkey);
  ibv_wr_set_sge(qp, c.mr->lkey, c.sge().addr, 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_COMPLETION(d.cq.get(), 1, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(WorkBatch, WindowsAreBoundAndInvalidated) {
  End a(context()), b(context());
  ibv_qp_ex* qp = prepare(b, a);
  ASSERT_NE(qp, nullptr);
  const Mr region(ibv_reg_mr(b.pd.get(), b.memory.data(), 4096, kAllAccess | IBV_ACCESS_MW_BIND));
  ASSERT_NE(region, nullptr);
  ibv_mw* window = ibv_alloc_mw(b.pd.get(), IBV_MW_TYPE_2);
  ASSERT_NE(window, nullptr);
  const uint32_t key = ibv_inc_rkey(window->rkey);
  const ibv_mw_bind_info bind = {region.get(), reinterpret_cast<uintptr_t>(b.memory.data()), 64,
                                 IBV_ACCESS_REMOTE_WRITE};
  ibv_wr_start(qp);
  next(qp, 1);
  ibv_wr_bind_mw(qp, window, key, &bind);
  ibv_wr_abort(qp);
  EXPECT_NE(window->rkey, key);
  ibv_wr_start(qp);
  next(qp, 2);
  ibv_wr_bind_mw(qp, window, key + (1u << 8), &bind);  // only its low byte counts
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(window->rkey, key);
  EXPECT_COMPLETION(b.cq.get(), 2, IBV_WC_SUCCESS);
  Address shown = b.address();
  shown.rkey = key;
  a.memory[0] = 77;
  ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE, 3, shown, 0, 1), 0);
  const volatile uint8_t* first = b.memory.data();
  EXPECT_TRUE(wait_until([&] { return *first == 77; }));
  ibv_wr_start(qp);
  next(qp, 4);
  ibv_wr_local_inv(qp, key);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_COMPLETION(b.cq.get(), 4, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

TEST_F(WorkBatch, AbortPostsNothing) {
  End a(context()), b(context());
  ibv_qp_ex* qp = prepare(a, b);
  ASSERT_NE(qp, nullptr);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(b.post_receive(i), 0);
  ibv_wr_start(qp);
  next(qp, 1);
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, a.mr->lkey, a.sge().addr, 8);
  ibv_wr_abort(qp);
  ibv_wr_start(qp);
  ASSERT_EQ(ibv_wr_complete(qp), 0) << "an empty batch";
  EXPECT_FALSE(next_completion(a.cq.get(), milliseconds(30)));
  EXPECT_FALSE(next_completion(b.cq.get(), milliseconds(0)));
  ASSERT_EQ(a.post_send(3), 0) << "ibv_post_send() works beside a batch";
  EXPECT_COMPLETION(a.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(b.cq.get(), 0, IBV_WC_SUCCESS);
}

TEST_F(WorkBatch, OneBadRequestPostsNothing) {
  struct Row {
    const char* what;
    std::function<void(ibv_qp_ex*, End&)> build;
    int error;
  };
  std::vector<uint8_t> large(600);
  std::vector<ibv_sge> many(40);
  const Row rows[] = {
      {"an operation that was not asked for",
       [](ibv_qp_ex* qp, End& a) {
         ibv_wr_rdma_read(qp, 1, 0);
         ibv_wr_set_sge(qp, a.mr->lkey, a.sge().addr, 8);
       },
       EINVAL},
      {"a flag of other transports",
       [](ibv_qp_ex* qp, End&) {
         qp->wr_flags = IBV_SEND_IP_CSUM;
         ibv_wr_send(qp);
       },
       EINVAL},
      {"SGEs beyond the queue pair's",
       [&](ibv_qp_ex* qp, End&) {
         ibv_wr_send(qp);
         ibv_wr_set_sge_list(qp, 5, many.data());
       },
       EINVAL},
      {"SGEs beyond all",
       [&](ibv_qp_ex* qp, End&) {
         ibv_wr_send(qp);
         ibv_wr_set_sge_list(qp, many.size(), many.data());
       },
       EINVAL},
      {"too much inline",
       [&](ibv_qp_ex* qp, End&) {
         ibv_wr_send(qp);
         ibv_wr_set_inline_data(qp, large.data(), large.size());
       },
       EINVAL},
      {"two payloads",
       [](ibv_qp_ex* qp, End& a) {
         ibv_wr_send(qp);
         ibv_wr_set_sge(qp, a.mr->lkey, a.sge().addr, 8);
         ibv_wr_set_sge(qp, a.mr->lkey, a.sge().addr, 8);
       },
       EINVAL},
      {"segmentation offload", [](ibv_qp_ex* qp, End&) { ibv_wr_send_tso(qp, nullptr, 0, 0); },
       EOPNOTSUPP},
      {"an address of a datagram",
       [](ibv_qp_ex* qp, End&) {
         ibv_wr_send(qp);
         ibv_wr_set_ud_addr(qp, nullptr, 0, 0);
       },
       EOPNOTSUPP},
  };
  for (const Row& row : rows) {
    End a(context()), b(context());
    ibv_qp_ex* qp = prepare(a, b, IBV_QP_EX_WITH_SEND);
    ASSERT_NE(qp, nullptr);
    ASSERT_EQ(b.post_receive(1), 0);
    ibv_wr_start(qp);
    for (int i = 0; i < 3; ++i) {
      next(qp, static_cast<uint64_t>(i));
      if (i == 1) {
        row.build(qp, a);
        continue;
      }
      ibv_wr_send(qp);
      ibv_wr_set_sge(qp, a.mr->lkey, a.sge().addr, 8);
    }
    EXPECT_EQ(ibv_wr_complete(qp), row.error) << row.what;
    EXPECT_FALSE(next_completion(a.cq.get(), milliseconds(10))) << row.what;
    EXPECT_FALSE(next_completion(b.cq.get(), milliseconds(0))) << row.what;
    EXPECT_EQ(state_of(a.qp.get()), IBV_QPS_RTS) << row.what;
  }
}

TEST_F(WorkBatch, ABatchThatDoesNotFitPostsNothing) {
  End a(context()), b(context());
  ibv_qp_ex* qp = prepare(a, b, IBV_QP_EX_WITH_SEND, 16);
  ASSERT_NE(qp, nullptr);
  for (int i = 0; i < 16; ++i) ASSERT_EQ(b.post_receive(i), 0);
  const auto build = [&](int count) {
    ibv_wr_start(qp);
    for (int i = 0; i < count; ++i) {
      next(qp, static_cast<uint64_t>(i));
      ibv_wr_send(qp);
    }
    return ibv_wr_complete(qp);
  };
  EXPECT_EQ(build(17), ENOMEM);
  EXPECT_FALSE(next_completion(b.cq.get(), milliseconds(20)));
  EXPECT_EQ(build(16), 0);
  for (int i = 0; i < 16; ++i) EXPECT_COMPLETION(a.cq.get(), i, IBV_WC_SUCCESS);
}

TEST_F(WorkBatch, StatesAreTheSameAsForPlainPosts) {
  End a(context());
  a.qp.reset(create(a, IBV_QP_EX_WITH_SEND));
  ASSERT_NE(a.qp, nullptr);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(a.qp.get());
  const auto build = [&] {
    ibv_wr_start(qp);
    next(qp, 1);
    ibv_wr_send(qp);
    return ibv_wr_complete(qp);
  };
  EXPECT_EQ(build(), EINVAL) << "RESET";
  ASSERT_EQ(to_init(a.qp.get()), 0);
  EXPECT_EQ(build(), EINVAL) << "INIT";
  ASSERT_EQ(to_state(a.qp.get(), IBV_QPS_ERR), 0);
  EXPECT_EQ(build(), 0) << "taken and flushed";
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_WR_FLUSH_ERR);
}

// Between start and complete no other thread can build a batch; batches arrive whole.
TEST_F(WorkBatch, ThreadsTakeTurns) {
  constexpr uint64_t kBatches = 200, kEach = 4;
  End a(context(), 1 << 16), b(context(), 1 << 20, nullptr, 2048);
  ibv_qp_ex* qp = prepare(a, b, IBV_QP_EX_WITH_SEND, 2 * kBatches * kEach);
  ASSERT_NE(qp, nullptr);
  for (uint64_t i = 0; i < 2 * kBatches * kEach; ++i) ASSERT_EQ(b.post_receive(i, i * 8, 8), 0);
  const auto post = [&](uint64_t thread) {
    for (uint64_t batch = 0; batch < kBatches; ++batch) {
      ibv_wr_start(qp);
      for (uint64_t i = 0; i < kEach; ++i) {
        next(qp, 0, 0);
        ibv_wr_send(qp);
        uint64_t mark = thread << 32 | batch << 8 | i;
        ibv_wr_set_inline_data(qp, &mark, sizeof mark);
      }
      EXPECT_EQ(ibv_wr_complete(qp), 0);
    }
  };
  std::thread other(post, 1);
  post(0);
  other.join();
  const auto* marks = reinterpret_cast<const uint64_t*>(b.memory.data());
  for (uint64_t i = 0; i < 2 * kBatches * kEach; ++i) {
    EXPECT_COMPLETION(b.cq.get(), i, IBV_WC_SUCCESS);
    ASSERT_EQ(marks[i] & 0xff, i % kEach) << i;
    if (i % kEach != 0) {
      ASSERT_EQ(marks[i], marks[i - 1] + 1) << i;
    }
  }
}

}  // namespace
