// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Several queue pairs with one shared receive queue.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

struct Limit : ReceiveLimitListener {
  void limit_reached() override { ++events; }
  int events = 0;
};

struct Shared : ::testing::Test {
  static constexpr size_t kQueuePairs = 4;
  Shared() {
    for (size_t i = 0; i < kQueuePairs; ++i) {
      QpConfig shape = End::default_shape();
      shape.srq = &srq;
      peers.push_back(std::make_unique<RawPeer>(StreamConfig{}, shape));
    }
  }
  ~Shared() override { peers.clear(); }
  void send(size_t peer, uint32_t msn) {
    peers[peer]->send(untagged(RdmapOpcode::kSend, 0, msn, 0, 0));
  }
  void settle() {
    for (auto& peer : peers) peer->settle();
  }
  Limit limit;
  SharedReceiveQueue srq{16, 2, &limit};
  std::vector<std::unique_ptr<RawPeer>> peers;
};

// Receives are taken in posting order by the queue pair that needs one, and complete on its
// completion queue.
// Proves: 4296-2.1.2-c
TEST_F(Shared, TakenInOrder) {
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(srq.post(id, {}), 0);
  for (const size_t peer : {2, 0, 3, 1}) send(peer, 1);
  EXPECT_EQ(peers[2]->dut.receives().at(0).wr_id, 0u);
  EXPECT_EQ(peers[0]->dut.receives().at(0).wr_id, 1u);
  EXPECT_EQ(peers[3]->dut.receives().at(0).wr_id, 2u);
  EXPECT_EQ(peers[1]->dut.receives().at(0).wr_id, 3u);
}

// A new receive goes to the stream that has waited longest. No other stream takes it.
// Proves: 5042-k
TEST_F(Shared, HeldStreamsContinueInTurn) {
  for (const size_t peer : {1, 3, 0}) {
    send(peer, 1);
    EXPECT_TRUE(peers[peer]->dut.qp->receiver().rnr_blocked());
  }
  ASSERT_EQ(srq.post(7, {}), 0);
  EXPECT_TRUE(peers[1]->dut.resume_due);
  EXPECT_FALSE(peers[3]->dut.resume_due);
  send(2, 1);  // too late for the receive that is there
  EXPECT_TRUE(peers[2]->dut.qp->receiver().rnr_blocked());
  settle();
  EXPECT_EQ(peers[1]->dut.receives().at(0).wr_id, 7u);
  uint64_t id = 8;
  for (const size_t peer : {3, 0, 2}) {
    ASSERT_EQ(srq.post(id, {}), 0);
    settle();
    const auto got = peers[peer]->dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].wr_id, id++);
  }
}

// A stream that was woken and then fails passes its receive on. A stream that fails while it waits
// leaves the line.
TEST_F(Shared, FailedStreamsStopWaiting) {
  for (const size_t peer : {0, 1, 2}) send(peer, 1);
  ASSERT_EQ(srq.post(1, {}), 0);
  peers[1]->dut.qp->to_error();
  peers[0]->dut.qp->to_error();
  EXPECT_TRUE(peers[2]->dut.resume_due);
  settle();
  EXPECT_EQ(peers[2]->dut.receives().size(), 1u);
  EXPECT_TRUE(peers[0]->dut.receives().empty());  // it had not taken a receive, so none is flushed
  ASSERT_EQ(srq.post(2, {}), 0);
  send(3, 1);
  EXPECT_EQ(peers[3]->dut.receives().size(), 1u);
}

TEST_F(Shared, ResetStreamsStopWaiting) {
  for (const size_t peer : {0, 1, 2, 3}) send(peer, 1);
  const auto reset = [this](size_t peer) {
    peers[peer]->dut.qp->detach_stream();
    peers[peer]->dut.qp->to_reset();
  };
  reset(0);
  ASSERT_EQ(srq.post(1, {}), 0);
  EXPECT_FALSE(peers[0]->dut.resume_due);
  EXPECT_TRUE(peers[1]->dut.resume_due);
  reset(1);  // a receive is promised to it
  EXPECT_TRUE(peers[2]->dut.resume_due);
  EXPECT_FALSE(peers[3]->dut.resume_due);
  settle();
  EXPECT_EQ(peers[2]->dut.receives().size(), 1u);
  EXPECT_TRUE(peers[3]->dut.qp->receiver().rnr_blocked());
  // No receive stays promised to streams that have left.
  ASSERT_EQ(srq.post(2, {}), 0);
  settle();
  EXPECT_EQ(peers[3]->dut.receives().size(), 1u);
  for (uint64_t id = 3; id < 9; ++id) ASSERT_EQ(srq.post(id, {}), 0);
  for (uint32_t msn = 2; msn < 8; ++msn) send(2, msn);
  EXPECT_EQ(peers[2]->dut.receives().size(), 6u);
}

// Raised once per failure, after the receive that the queue pair had taken was flushed on its own
// completion queue.
TEST_F(Shared, LastWqeReached) {
  ASSERT_EQ(srq.post(5, {}), 0);
  ASSERT_EQ(srq.post(6, {}), 0);
  peers[0]->send(untagged(RdmapOpcode::kSend, 0, 1, 0, 0, false));
  peers[0]->dut.qp->to_error();
  peers[0]->dut.qp->to_error();
  const auto got = peers[0]->dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 5u);
  EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(peers[0]->dut.events, std::vector{QpEvent::kLastWqeReached});
  send(1, 1);
  EXPECT_EQ(peers[1]->dut.receives().at(0).wr_id, 6u);
}

// V-14: the limit event is raised once, and must then be armed again.
// Proves: 5040-8.1.2-8 5041-8.3.2-b 4296-2.1.3-b 5042-k
TEST_F(Shared, Limit) {
  for (uint64_t id = 0; id < 5; ++id) ASSERT_EQ(srq.post(id, {}), 0);
  EXPECT_EQ(srq.arm_limit(17), EINVAL);
  ASSERT_EQ(srq.arm_limit(4), 0);
  send(0, 1);
  EXPECT_EQ(limit.events, 0);
  EXPECT_EQ(srq.limit(), 4u);
  send(0, 2);
  EXPECT_EQ(limit.events, 1);
  EXPECT_EQ(srq.limit(), 0u);
  send(0, 3);
  EXPECT_EQ(limit.events, 1);
  ASSERT_EQ(srq.arm_limit(3), 0);  // two are left, so the event comes at once
  EXPECT_EQ(limit.events, 2);
}

// Those that wait keep their scatter lists, wherever they stand in the queue.
TEST_F(Shared, ResizeKeepsScatterLists) {
  RawPeer& peer = *peers[0];
  const auto post = [&](uint64_t id) {
    const Sge sge{peer.base() + 8 * id, 8, peer.memory_region->key.load()};
    return srq.post(id, {&sge, 1});
  };
  for (uint64_t id = 0; id < 16; ++id) ASSERT_EQ(post(id), 0);
  for (uint32_t msn = 1; msn <= 10; ++msn) peer.send(send_message(msn, 8));
  for (uint64_t id = 16; id < 26; ++id) ASSERT_EQ(post(id), 0);
  ASSERT_EQ(srq.resize(64), 0);
  for (uint64_t id = 26; id < 40; ++id) ASSERT_EQ(post(id), 0);
  for (uint32_t msn = 11; msn <= 40; ++msn) {
    peer.send(send_message(msn, 8));
    EXPECT_EQ(peer.memory.data()[8 * (msn - 1)], std::byte{0x3C}) << msn;
    EXPECT_EQ(peer.memory.data()[8 * msn], std::byte{0}) << msn;
  }
  EXPECT_EQ(peer.dut.receives().size(), 40u);
}

TEST_F(Shared, Resize) {
  for (uint64_t id = 0; id < 16; ++id) ASSERT_EQ(srq.post(id, {}), 0);
  EXPECT_EQ(srq.post(16, {}), ENOMEM);
  EXPECT_EQ(srq.resize(15), EINVAL);
  ASSERT_EQ(srq.resize(40), 0);
  EXPECT_EQ(srq.depth(), 40u);
  for (uint64_t id = 16; id < 40; ++id) ASSERT_EQ(srq.post(id, {}), 0);
  EXPECT_EQ(srq.post(40, {}), ENOMEM);
  for (uint32_t msn = 1; msn <= 40; ++msn) send(0, msn);
  const auto got = peers[0]->dut.receives();
  ASSERT_EQ(got.size(), 40u);
  for (uint64_t id = 0; id < 40; ++id) EXPECT_EQ(got[id].wr_id, id);
  EXPECT_EQ(srq.resize(1), 0);
}

}  // namespace
}  // namespace uwarp::sim
