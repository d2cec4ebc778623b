// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A Send completes before the receive that holds the answer to it. This holds between threads, and
// where completions wait for the peer's acknowledgement. Also the marks that uwarps exchange for
// it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "protocol/wire/control_writes.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

QpConfig shape_of(bool acknowledged) {
  QpConfig shape = End::default_shape();
  shape.acknowledged = acknowledged;
  return shape;
}

/// A ping-pong: `b` answers each message as soon as its receive completes. The bytes of both
/// directions are cut anywhere.
class Answers : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Answers, FollowTheCompletionsOfWhatTheyAnswer) {
  Pair pair(GetParam(), shape_of(true));
  pair.chunk_max = 40;
  StreamConfig config;
  config.peer_is_uwarp = true;
  pair.connect(config);
  size_t completed = 0, answered = 0;
  for (uint64_t id = 0; id < 32; ++id)
    for (End* end : {&pair.a, &pair.b}) ASSERT_EQ(end->qp->post_recv(id, {}), 0);
  uint64_t posted = 0;
  for (int step = 0; step < 5000; ++step) {
    if (posted - answered < 4 && pick(pair.random, 0, 9) == 0) {
      ASSERT_EQ(pair.a.post(SendOpcode::kSend, ++posted, {}), 0);
    }
    pair.step(pair.b, pair.b_to_a, pair.a_to_b);
    pair.b.sends();
    for (const WorkCompletion& each : pair.b.receives()) {
      ASSERT_EQ(pair.b.qp->post_recv(each.wr_id, {}), 0);
      ASSERT_EQ(pair.b.post(SendOpcode::kSend, each.wr_id, {}), 0);
    }
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
    for (const WorkCompletion& each : pair.a.receives()) {
      ASSERT_EQ(pair.a.qp->post_recv(each.wr_id, {}), 0);
      ++answered;
    }
    completed += pair.a.sends().size();
    ASSERT_GE(completed, answered) << "an answer came before the completion of its Send";
  }
  EXPECT_GT(answered, 100u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Answers, ::testing::Range<uint64_t>(0, 20));

/// A connection whose peer is known to be uwarp.
StreamConfig between_uwarps() {
  StreamConfig config;
  config.ord = config.ird = 4;
  config.peer_is_uwarp = true;
  return config;
}

void send_mark(RawPeer& peer, uint32_t msn) {
  const DeliveredWrite mark{Msn{msn}};
  peer.send(tagged(RdmapOpcode::kWrite, DeliveredWrite::kStag, mark.offset(), 0));
}

TEST(DeliveredWrite, IsAnEmptyWriteThatNoReceiverChecks) {
  RawPeer peer(between_uwarps(), shape_of(true));
  peer.post_receive(1, 100);
  peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
  ASSERT_EQ(peer.dut.receives().size(), 1u);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_GE(sent.size(), 2u);
  EXPECT_EQ(sent[0], from_hex("c140 75776172 6421000000000001"));
  EXPECT_EQ(opcode_of(sent[1]), RdmapOpcode::kSend);
}

TEST(DeliveredWrite, OnceForWhatHasBeenDelivered) {
  RawPeer peer(between_uwarps(), shape_of(true));
  peer.post_receive(1, 100);
  peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  peer.ulpdus();
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 3, {}), 0);
  peer.settle();
  for (const auto& ulpdu : peer.ulpdus()) EXPECT_NE(opcode_of(ulpdu), RdmapOpcode::kWrite);
}

TEST(DeliveredWrite, IsSentBeforeWhatTakesAReceive) {
  struct Case {
    SendOpcode opcode;
    bool marked;
  };
  for (const auto& [opcode, marked] :
       {Case{SendOpcode::kSend, true}, Case{SendOpcode::kSendWithInvalidate, true},
        Case{SendOpcode::kSendWithImm, true}, Case{SendOpcode::kWriteWithImm, true},
        Case{SendOpcode::kWrite, false}, Case{SendOpcode::kRead, false}}) {
    RawPeer peer(between_uwarps(), shape_of(true));
    peer.post_receive(1, 100);
    peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
    ASSERT_EQ(peer.dut.post(opcode, 2, {}), 0);
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_FALSE(sent.empty());
    EXPECT_EQ(sent[0] == from_hex("c140 75776172 6421000000000001"), marked)
        << static_cast<int>(opcode);
    // The Send completes when the peer's mark arrives.
    if (!marked) continue;
    send_mark(peer, 1);
    peer.settle();
    EXPECT_EQ(peer.dut.sends().size(), 1u) << static_cast<int>(opcode);
  }
}

// The device has answered a Read that came after the peer's message. From that answer the peer
// knows that its message was delivered.
TEST(DeliveredWrite, IsNotNeededBehindAnAnswer) {
  RawPeer peer(between_uwarps(), shape_of(true));
  peer.post_receive(1, 100);
  peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
  peer.send(read_request(
      {.sink_stag = STag{7}, .size = 8, .source_stag = peer.stag(), .source_to = peer.base()}, 1));
  ASSERT_EQ(peer.ulpdus().size(), 1u);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  for (const auto& ulpdu : peer.ulpdus()) EXPECT_NE(opcode_of(ulpdu), RdmapOpcode::kWrite);
}

TEST(DeliveredWrite, IsSentToUwarpsInTheRocePersonaOnly) {
  for (const bool uwarp : {false, true}) {
    StreamConfig config = between_uwarps();
    config.peer_is_uwarp = uwarp;
    RawPeer peer(config, shape_of(!uwarp));
    peer.post_receive(1, 100);
    peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
    ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
    peer.settle();
    for (const auto& ulpdu : peer.ulpdus()) EXPECT_NE(opcode_of(ulpdu), RdmapOpcode::kWrite);
  }
}

TEST(DeliveredWrite, CompletesWhatItNamesAndNothingElse) {
  RawPeer peer(between_uwarps(), shape_of(true));
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(peer.dut.post(SendOpcode::kSend, id, {}), 0);
  peer.settle();
  peer.ulpdus();
  EXPECT_TRUE(peer.dut.sends().empty());
  for (const uint32_t never_sent : {0u, 4u, 0x80000000u, 0xffffffffu}) send_mark(peer, never_sent);
  peer.settle();
  EXPECT_TRUE(peer.dut.sends().empty());
  send_mark(peer, 2);
  peer.settle();
  EXPECT_EQ(peer.dut.sends().size(), 2u);
  send_mark(peer, 1);  // older than the peer's last mark
  send_mark(peer, 3);
  peer.settle();
  EXPECT_EQ(peer.dut.sends().size(), 1u);
  peer.ulpdus();
}

// An application may post the receive that is missing only once its peer's Sends have completed.
TEST(DeliveredWrite, OfAMessageThatWaitsIsSentAtOnce) {
  RawPeer peer(between_uwarps(), shape_of(true));
  peer.post_receive(1, 100);
  peer.send(untagged(RdmapOpcode::kSend, 0, 1, 0, 8));
  peer.send(untagged(RdmapOpcode::kSend, 0, 2, 0, 8));
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0], from_hex("c140 75776172 7721000000000001"));
}

TEST(DeliveredWrite, OfAMessageThatWaitsCompletesWhatCameBefore) {
  RawPeer peer(between_uwarps(), shape_of(true));
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 1, {}), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 2, {}), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 3, {}), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 4, {}), 0);
  peer.settle();
  peer.ulpdus();
  EXPECT_TRUE(peer.dut.sends().empty());
  const auto says_waits_behind = [&](uint32_t msn) {
    const DeliveredWrite mark{Msn{msn}, true};
    peer.send(tagged(RdmapOpcode::kWrite, DeliveredWrite::kStag, mark.offset(), 0));
    peer.settle();
  };
  says_waits_behind(0xffffffff);  // names nothing
  EXPECT_TRUE(peer.dut.sends().empty());
  says_waits_behind(1);
  EXPECT_EQ(peer.dut.sends().size(), 2u) << "the Send and the Write";
  says_waits_behind(2);
  EXPECT_EQ(peer.dut.sends().size(), 1u);
  says_waits_behind(2);
  EXPECT_TRUE(peer.dut.sends().empty());
}

// While one thread receives the answer, the other is still in its send call, or has returned from
// it and not yet recorded what was sent.
TEST(CompletionOrder, HoldsWhenOneThreadSendsAndAnotherReceives) {
  constexpr uint32_t kRounds = 20000;
  RegionTable regions;
  End end(regions);
  StreamConfig config;
  config.ord = config.ird = 1;
  ASSERT_TRUE(end.qp->start_stream(config));
  std::atomic<uint32_t> with_peer{0}, answered{0};
  std::thread sender([&] {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      while (end.post(SendOpcode::kSend, round, {}) != 0) std::this_thread::yield();
      auto turn = end.qp->transmit_side().begin();
      while (!turn) turn = end.qp->transmit_side().begin();
      size_t size = 0;
      for (const iovec& piece : end.qp->transmitter().next_iovecs()) size += piece.iov_len;
      with_peer.store(round, std::memory_order_release);  // the peer may answer from now on
      for (uint32_t i = 0; i < round % 64; ++i) Atomics::cpu_relax();
      if (size != 0) end.qp->transmitter().sent(size);
      (void)turn.end();
      while (answered.load(std::memory_order_acquire) != round) std::this_thread::yield();
    }
  });
  uint32_t inversions = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    ASSERT_EQ(end.qp->post_recv(round, {}), 0);
    while (with_peer.load(std::memory_order_acquire) != round) std::this_thread::yield();
    {
      const auto lock = end.qp->receive_side().lock_exclusive();
      const auto window = end.qp->receiver().next_iovecs(end.staging);
      const Bytes bytes = frame(send_message(round, 0), false);
      std::memcpy(window[0].iov_base, bytes.data(), bytes.size());
      (void)end.qp->receiver().received(end.staging, bytes.size());
    }
    EXPECT_EQ(end.receives().size(), 1u);
    if (end.sends().size() != 1) ++inversions;
    answered.store(round, std::memory_order_release);
  }
  sender.join();
  EXPECT_EQ(inversions, 0u);
}

// Only the thread that has the transmit side may record what it has sent, so the receiving thread
// waits for it, however long the send call takes.
TEST(CompletionOrder, WaitsForTheThreadThatTransmits) {
  RegionTable regions;
  End end(regions);
  ASSERT_TRUE(end.qp->start_stream({}));
  ASSERT_EQ(end.qp->post_recv(1, {}), 0);
  ASSERT_EQ(end.post(SendOpcode::kSend, 2, {}), 0);
  auto turn = end.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  size_t size = 0;
  for (const iovec& piece : end.qp->transmitter().next_iovecs()) size += piece.iov_len;
  ASSERT_NE(size, 0u);
  std::thread receiver([&end] {
    const auto side = end.qp->receive_side().lock_exclusive();
    const auto window = end.qp->receiver().next_iovecs(end.staging);
    const Bytes bytes = frame(send_message(1, 0), false);
    std::memcpy(window[0].iov_base, bytes.data(), bytes.size());
    (void)end.qp->receiver().received(end.staging, bytes.size());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(end.receives().empty());
  EXPECT_FALSE(end.qp->transmit_side().begin());
  end.qp->transmitter().sent(size);
  EXPECT_EQ(turn.end(), AfterTurn::kCheckAgain);
  receiver.join();
  EXPECT_EQ(end.sends().size(), 1u);
  EXPECT_EQ(end.receives().size(), 1u);
}

}  // namespace
}  // namespace uwarp::sim
