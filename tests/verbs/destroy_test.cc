// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Destroying a queue pair in every state, with requests in both queues: nothing hangs, nothing is
// left.
#include <functional>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

class Destroy : public VerbsTest {
 protected:
  /// Runs `body` several times; afterwards no more files are open than after the first time.
  void repeat(const char* what, const std::function<void()>& body) {
    body();
    const size_t before = open_files();
    for (int i = 0; i < 20; ++i) body();
    EXPECT_TRUE(wait_until([&] { return open_files() <= before; })) << what;
  }
};

TEST_F(Destroy, EveryStateWithoutAPeer) {
  repeat("INIT", [&] { End end(context()); });
  repeat("INIT with receives", [&] {
    End end(context());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(end.post_receive(i), 0);
  });
  repeat("RTR", [&] {
    End end(context()), peer(context());
    EXPECT_EQ(to_rtr(end.qp.get(), peer.address()), 0);
  });
  repeat("RTS while dialing", [&] {
    End end(context()), peer(context());
    end.connect(peer.address());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(end.post_send(i), 0);
  });
  repeat("ERR", [&] {
    End end(context());
    EXPECT_EQ(to_state(end.qp.get(), IBV_QPS_ERR), 0);
  });
}

TEST_F(Destroy, EveryStateWithAPeer) {
  repeat("RTS, idle", [&] { Pair pair(context()); });
  repeat("RTS, receives posted", [&] {
    Pair pair(context());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(pair.b.post_receive(i), 0);
  });
  repeat("in the middle of large Writes", [&] {
    Pair pair(context());
    const Address b = pair.b.address();
    for (int i = 0; i < 10; ++i)
      EXPECT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, i, b, 0, 1 << 20), 0);
  });
  repeat("in the middle of large Reads", [&] {
    Pair pair(context());
    const Address b = pair.b.address();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, i, b, 0, 1 << 20), 0);
  });
  repeat("Sends without receives", [&] {
    Pair pair(context());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(pair.a.post_send(i, 0, 1 << 20), 0);
  });
  repeat("SQD", [&] {
    Pair pair(context());
    EXPECT_EQ(to_state(pair.a.qp.get(), IBV_QPS_SQD), 0);
  });
  repeat("ERR", [&] {
    Pair pair(context());
    EXPECT_EQ(pair.b.post_receive(1), 0);
    EXPECT_EQ(to_state(pair.a.qp.get(), IBV_QPS_ERR), 0);
  });
  repeat("RESET", [&] {
    Pair pair(context());
    EXPECT_EQ(to_state(pair.a.qp.get(), IBV_QPS_RESET), 0);
  });
}

TEST_F(Destroy, MemoryIsLeftAloneAfterDeregistration) {
  Pair pair(context());
  const Address b = pair.b.address();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, i, b, 0, 1 << 20), 0);
  pair.b.mr.reset();
  // No byte of the memory may change from here on.
  std::fill(pair.b.memory.begin(), pair.b.memory.end(), 0xee);
  // On a busy machine all earlier Writes may be placed by now, so post one more, which must fail.
  ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 20, b, 0, 1 << 20), 0);
  EXPECT_TRUE(wait_until([&] { return state_of(pair.b.qp.get()) == IBV_QPS_ERR; }));
  for (uint8_t byte : pair.b.memory) ASSERT_EQ(byte, 0xee);
}

TEST_F(Destroy, WhileAnotherThreadPolls) {
  Cq shared(ibv_create_cq(context(), 1024, nullptr, nullptr, 0));
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    ibv_wc wc[16];
    while (!stop) ibv_poll_cq(shared.get(), 16, wc);
  });
  for (int round = 0; round < 50; ++round) {
    End a(context());
    ibv_qp_init_attr init = init_attributes(shared.get());
    Qp qp(ibv_create_qp(a.pd.get(), &init));
    ASSERT_NE(qp, nullptr);
    ASSERT_EQ(to_init(qp.get()), 0);
    Address address = a.address();
    address.qpn = qp->qp_num;
    address.psn = 1;
    ASSERT_EQ(to_rtr(qp.get(), a.address()), 0);
    ASSERT_EQ(to_rts(qp.get(), 1), 0);
    a.connect(address);
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_WRITE, i, a.address(), 0, 1000), 0);
  }
  stop = true;
  poller.join();
}

}  // namespace
