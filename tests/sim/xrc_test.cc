// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Extended reliable connections (XRC): messages that name a shared receive queue and use its memory
// and completion queue, numbers of no queue, and queues that are destroyed.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

/// A shared receive queue of the XRC domain, with its own memory.
struct Target {
  Target(RegionTable& regions, XrcDomain& domain, uint32_t number)
      : regions(regions),
        domain(domain),
        region(
            *regions.add(protection, memory.data(), memory.size(), memory.address(), kAllAccess)),
        queue{number, &receives, &completions, &protection} {
    domain.enter(queue);
  }
  ~Target() {
    if (entered) domain.leave(queue);
  }
  void leave() {
    domain.leave(queue);
    entered = false;
  }
  int post(uint64_t wr_id, uint32_t size = 4096) {
    const Sge sge{memory.address(), size, region->key.load()};
    return receives.post(wr_id, {&sge, 1});
  }
  std::vector<WorkCompletion> completed() { return End::drain(completions); }

  RegionTable& regions;
  XrcDomain& domain;
  GuardedMemory memory{4096};
  ProtectionDomain protection;
  SharedReceiveQueue receives{16, 2};
  CompletionQueue completions{64, nullptr};
  MemoryRegion* region;
  const XrcQueue queue;
  bool entered = true;
};

QpConfig receiving_shape(XrcDomain& domain, bool acknowledged = false) {
  QpConfig shape = End::default_shape();
  shape.acknowledged = acknowledged;
  shape.transport = Transport::kXrcReceive;
  shape.xrc = &domain;
  shape.number = Qpn{0x4711};
  shape.max_send_wr = shape.max_recv_wr = shape.max_recv_sge = shape.max_inline_bytes = 0;
  return shape;
}

QpConfig sending_shape(bool acknowledged) {
  QpConfig shape = End::default_shape();
  shape.transport = Transport::kXrcSend;
  shape.max_recv_wr = 0;
  shape.acknowledged = acknowledged;
  return shape;
}

// ---- Two ends

struct Xrc : ::testing::TestWithParam<bool> {
  void SetUp() override {
    memory.fill(pair.random);
    region = pair.reg(pair.a, memory, kAllAccess);
    StreamConfig config;
    config.peer_is_uwarp = true;
    config.read_depth = 16;
    pair.connect(config);
    pair.run();
  }
  int send(SendOpcode opcode, uint64_t id, const Target& to, size_t size = 100) {
    const Sge from = Pair::sge(memory, region, 0, size);
    return pair.a.post(opcode, id, {&from, 1}, 0, 0, kSendSignaled, to.queue.number);
  }
  bool same(Target& target, size_t size) {
    return std::memcmp(target.memory.data(), memory.data(), size) == 0;
  }

  XrcDomain domain;
  Pair pair{7, sending_shape(GetParam()), receiving_shape(domain, GetParam())};
  GuardedMemory memory{4096};
  MemoryRegion* region = nullptr;
  Target first{pair.regions, domain, 16}, second{pair.regions, domain, 0x123456};
};
INSTANTIATE_TEST_SUITE_P(Acknowledged, Xrc, ::testing::Bool());

// A message uses the receives, memory and completion queue of the queue that it names. All messages
// share one sequence of MSNs.
TEST_P(Xrc, MessagesGoToTheQueueThatTheyName) {
  for (Target* target : {&first, &second})
    for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(target->post(10 * target->queue.number + id), 0);
  const Target* order[] = {&second, &first, &first, &second};
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(send(SendOpcode::kSend, id, *order[id]), 0);
  pair.run();
  for (Target* target : {&first, &second}) {
    const auto got = target->completed();
    ASSERT_EQ(got.size(), 2u);
    for (uint64_t id = 0; id < 2; ++id) {
      EXPECT_EQ(got[id].wr_id, 10 * target->queue.number + id);
      EXPECT_EQ(got[id].status, WcStatus::kSuccess);
      EXPECT_EQ(got[id].qp_num, 0x4711u);
      EXPECT_EQ(got[id].byte_len, 100u);
    }
    EXPECT_TRUE(same(*target, 100));
  }
  const auto sent = pair.a.sends();
  ASSERT_EQ(sent.size(), 4u);
  for (uint64_t id = 0; id < 4; ++id) EXPECT_EQ(sent[id].status, WcStatus::kSuccess);
}

TEST_P(Xrc, SegmentsOfOneMessageAndImmediateData) {
  pair.chunk_max = 50;
  for (Target* target : {&first, &second}) ASSERT_EQ(target->post(1), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 1, second, 4096), 0);
  const Sge from = Pair::sge(memory, region, 0, 64);
  ASSERT_EQ(pair.a.post(SendOpcode::kWriteWithImm, 2, {&from, 1}, second.memory.address(),
                        second.region->key.load(), kSendSignaled, first.queue.number),
            0);
  pair.run();
  EXPECT_TRUE(same(second, 4096));
  const auto got = first.completed();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].opcode, WcOpcode::kRecvWriteWithImm);
  EXPECT_EQ(got[0].byte_len, 64u);
  EXPECT_EQ(second.completed().size(), 1u);
  EXPECT_EQ(pair.a.sends().size(), 2u);
}

// The answer goes over another queue pair, so that only the acknowledgement decides when it
// arrives.
TEST_P(Xrc, IsAcknowledgedBeforeItCompletes) {
  for (uint64_t id = 0; id < 2; ++id) ASSERT_EQ(first.post(id), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 1, first), 0);
  {
    const auto side = pair.a.qp->transmit_side().lock_exclusive();
    auto& transmitter = pair.a.qp->transmitter();
    while (transmitter.sent(pair.a_to_b.write(transmitter.next_iovecs(), ~size_t{0}))) {
    }
  }
  while (!pair.a_to_b.bytes.empty()) {
    const auto side = pair.b.qp->receive_side().lock_exclusive();
    auto window = pair.b.qp->receiver().next_iovecs(pair.b.staging);
    const size_t size = pair.a_to_b.read(window, ~size_t{0});
    pair.b.outcome |= pair.b.qp->receiver().received(pair.b.staging, size);
    if (!pair.b.staging) pair.b.staging = std::make_unique<StagingBuffer>();
  }
  EXPECT_EQ(first.completed().size(), GetParam() ? 0u : 1u);
  {
    const auto side = pair.b.qp->transmit_side().lock_exclusive();
    EXPECT_EQ(pair.b.qp->transmitter().next_iovecs().empty(), !GetParam());
  }
  pair.b.complete_deferred();
  EXPECT_EQ(first.completed().size(), GetParam() ? 1u : 0u);

  ASSERT_EQ(send(SendOpcode::kSend, 2, first), 0);
  pair.run();
  EXPECT_EQ(first.completed().size(), 1u);
}

// A message is held until the queue that it names has a receive, even if other queues have some.
TEST_P(Xrc, HeldForItsOwnQueue) {
  ASSERT_EQ(second.post(1), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 1, first), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 2, second), 0);
  pair.run();
  EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
  EXPECT_TRUE(second.completed().empty());
  ASSERT_EQ(first.post(5), 0);
  pair.run();
  EXPECT_EQ(first.completed().at(0).wr_id, 5u);
  EXPECT_EQ(second.completed().at(0).wr_id, 1u);
}

// The case for which adapters answer with an invalid request NAK.
TEST_P(Xrc, UnknownNumber) {
  ASSERT_EQ(first.post(1), 0);
  second.leave();
  ASSERT_EQ(send(SendOpcode::kSend, 1, first), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 2, second), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 3, first), 0);
  pair.run();
  EXPECT_EQ(first.completed().size(), 1u);
  const auto sent = pair.a.sends();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].status, WcStatus::kSuccess);
  if (GetParam()) {
    EXPECT_EQ(sent[1].status, WcStatus::kRemInvReqErr);
    EXPECT_EQ(sent[2].status, WcStatus::kWrFlushErr);
  }
  EXPECT_EQ(pair.b.events, (std::vector{QpEvent::kRequestError, QpEvent::kLastWqeReached}));
}

// A peer may use regions of every domain that has a queue here, and of no other domain.
TEST_P(Xrc, MemoryOfTheDomainsOfItsQueues) {
  GuardedMemory other(64);
  MemoryRegion* const foreign = pair.reg(pair.b, other, kAllAccess);
  Sge here = Pair::sge(memory, region, 0, 64);
  const auto write = [&](uint64_t id, GuardedMemory& to, MemoryRegion* key) {
    return pair.a.post(SendOpcode::kWrite, id, {&here, 1}, to.address(), key->key.load());
  };
  ASSERT_EQ(write(1, first.memory, first.region), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {&here, 1}, second.memory.address(),
                        second.region->key.load()),
            0);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 2u);
  ASSERT_EQ(write(3, other, foreign), 0);
  pair.run();
  EXPECT_EQ(pair.b.events.at(0), QpEvent::kAccessError);
}

// A message that had taken a receive of the queue, or waited for one, fails. No completion comes.
TEST_P(Xrc, QueueIsDestroyed) {
  ASSERT_EQ(send(SendOpcode::kSend, 1, first), 0);
  pair.run();
  ASSERT_TRUE(pair.b.qp->receiver().rnr_blocked());
  first.leave();
  {
    const QueuePair::Exclusive held = pair.b.qp->lock_exclusive();
    pair.b.qp->receiver().messages().forget(second.queue);
    EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
    pair.b.qp->receiver().messages().forget(first.queue);
  }
  pair.run();
  EXPECT_EQ(pair.a.sends().at(0).status, GetParam() ? WcStatus::kRemInvReqErr : WcStatus::kSuccess);
  ASSERT_EQ(first.post(1), 0);
  EXPECT_TRUE(first.completed().empty());
}

TEST_P(Xrc, IdleStreamSurvivesTheEndOfAQueue) {
  ASSERT_EQ(first.post(1), 0);
  ASSERT_EQ(second.post(2), 0);
  ASSERT_EQ(send(SendOpcode::kSend, 1, first), 0);
  pair.run();
  EXPECT_NE(pair.b.outcome & kRxNewQueue, 0u);
  EXPECT_EQ(pair.b.qp->receiver().messages().named_completions(), &first.completions);
  first.leave();
  {
    const QueuePair::Exclusive held = pair.b.qp->lock_exclusive();
    pair.b.qp->receiver().messages().forget(first.queue);
  }
  EXPECT_EQ(pair.b.qp->receiver().messages().named_completions(), nullptr);
  pair.b.outcome = 0;
  ASSERT_EQ(send(SendOpcode::kSend, 2, second), 0);
  pair.run();
  EXPECT_EQ(second.completed().size(), 1u);
  EXPECT_NE(pair.b.outcome & kRxNewQueue, 0u);
}

// The receive that the message had taken is flushed on the completion queue of its own shared
// queue.
TEST_P(Xrc, TakenReceiveIsFlushed) {
  ASSERT_EQ(first.post(9), 0);
  pair.b_to_a.capacity = 0;
  pair.a_to_b.capacity = 2000;
  ASSERT_EQ(send(SendOpcode::kSend, 1, first, 4096), 0);
  pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  pair.b.qp->to_error();
  const auto got = first.completed();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 9u);
  EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(pair.b.events, std::vector{QpEvent::kLastWqeReached});
  pair.a_to_b.log.clear();  // the stream ends inside an FPDU
}

// ---- A peer made by hand

struct XrcPeer : ::testing::Test {
  void send(RdmapOpcode opcode, uint32_t number, uint32_t msn, uint32_t mo, size_t size,
            bool last = true) {
    peer.send(untagged(opcode, number, msn, mo, size, last));
  }
  XrcDomain domain;
  RawPeer peer{StreamConfig{}, receiving_shape(domain)};
  Target first{peer.regions, domain, 16}, second{peer.regions, domain, 17};
};

TEST_F(XrcPeer, SegmentsOfAMessageNameOneQueue) {
  ASSERT_EQ(first.post(1), 0);
  ASSERT_EQ(second.post(2), 0);
  send(RdmapOpcode::kSend, 16, 1, 0, 8, false);
  send(RdmapOpcode::kSend, 17, 1, 8, 8);
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kDdpUntaggedInvalidQn);
  EXPECT_EQ(first.completed().at(0).status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(second.completed().empty());
}

TEST_F(XrcPeer, NumbersThatNameNoQueue) {
  for (const uint32_t number : {0u, 3u, 15u, 18u, ~0u}) {
    RawPeer one{StreamConfig{}, receiving_shape(domain)};
    one.send(untagged(RdmapOpcode::kSend, number, 1, 0, 8));
    const auto terminate = one.terminate();
    ASSERT_TRUE(terminate) << number;
    EXPECT_EQ(terminate->code, TerminateCode::kDdpUntaggedInvalidQn) << number;
    EXPECT_TRUE(terminate->has_ddp_header);
  }
}

// Reads and Terminates use their usual queues. A queue pair that only sends accepts no Send.
TEST_F(XrcPeer, OtherQueuesAreAsEver) {
  send(RdmapOpcode::kReadRequest, 16, 1, 0, 28);
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kDdpUntaggedInvalidQn);
  for (const uint32_t number : {0u, 16u}) {
    RawPeer sender{StreamConfig{}, sending_shape(false)};
    sender.send(untagged(RdmapOpcode::kSend, number, 1, 0, 8));
    const auto refused = sender.terminate();
    ASSERT_TRUE(refused) << number;
    EXPECT_EQ(refused->code, TerminateCode::kDdpUntaggedInvalidQn);
  }
}

// MSNs continue from one named queue to the next. The bytes are the example of docs/wire.md.
TEST_F(XrcPeer, BytesOnTheWire) {
  ASSERT_EQ(first.post(1), 0);
  ASSERT_EQ(second.post(2), 0);
  peer.feed(from_hex("001a 4143 00000000 00000010 00000001 00000000 68656c6c6f207872 00000000"));
  peer.feed(from_hex("0014 4143 00000000 00000011 00000002 00000000 6f6b 0000 00000000"));
  EXPECT_EQ(first.completed().at(0).byte_len, 8u);
  EXPECT_EQ(std::memcmp(first.memory.data(), "hello xr", 8), 0);
  EXPECT_EQ(second.completed().at(0).byte_len, 2u);
}

}  // namespace
}  // namespace uwarp::sim
