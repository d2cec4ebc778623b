// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pairs without acknowledgements (UC). A message that finds no receive is held once and then
// dropped; operations that UC lacks are refused; the application is not told that the peer has
// ended.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "inject/fault_script.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

QpConfig unreliable(QueuePairSlot* slot = nullptr) {
  QpConfig shape = End::default_shape();
  shape.transport = Transport::kUc;
  shape.slot = slot;
  return shape;
}

struct Unreliable : testing::Test {
  /// Ends the time for which a message is held.
  static void end_grace(End& end) {
    const auto lock = end.qp->receive_side().lock_exclusive();
    ASSERT_TRUE(end.qp->receiver().rnr_blocked());
    EXPECT_EQ(end.qp->receiver().expire(), uint32_t{kRxNothing});
    end.outcome |= end.qp->receiver().resume(end.staging);
    if (!end.staging) end.staging = std::make_unique<StagingBuffer>();
  }
  void end_grace() {
    end_grace(pair.b);
    pair.run();
  }
  void receive(uint64_t wr_id, size_t offset, size_t length) {
    const Sge sge = Pair::sge(sink, sink_region, offset, length);
    ASSERT_EQ(pair.b.qp->post_recv(wr_id, {&sge, 1}), 0);
  }
  int post(SendOpcode opcode, uint64_t wr_id, size_t length) {
    const Sge sge = Pair::sge(source, source_region, 0, length);
    return pair.a.post(opcode, wr_id, {&sge, length == 0 ? 0u : 1u}, sink.address(),
                       sink_region->key.load());
  }
  void send(uint64_t wr_id, size_t length) {
    ASSERT_EQ(post(SendOpcode::kSend, wr_id, length), 0);
    pair.run();
  }
  void expect_running() {
    EXPECT_EQ(pair.a.qp->state(), QpState::kRts);
    EXPECT_EQ(pair.b.qp->state(), QpState::kRts);
    EXPECT_TRUE(pair.a.events.empty());
    EXPECT_TRUE(pair.b.events.empty());
  }
  void SetUp() override {
    source.fill(pair.random);
    pair.connect({.mulpdu = 1442, .ord = 0, .ird = 0, .peer_is_uwarp = true});
    pair.run();
  }

  QueuePairSlot of_a, of_b;
  Pair pair{5, unreliable(&of_a), unreliable(&of_b)};
  GuardedMemory source{200000}, sink{200000};
  MemoryRegion* source_region = pair.reg(pair.a, source, kAllAccess);
  MemoryRegion* sink_region = pair.reg(pair.b, sink, kAllAccess);
};

TEST_F(Unreliable, WhatIsSentIsCompleteWithoutAnAnswer) {
  receive(7, 0, 4000);
  ASSERT_EQ(post(SendOpcode::kWrite, 1, 3000), 0);
  ASSERT_EQ(post(SendOpcode::kSend, 2, 4000), 0);
  while (pair.step(pair.a, pair.a_to_b, pair.b_to_a)) {
  }
  EXPECT_EQ(pair.a.sends().size(), 2u) << "with nothing read yet";
  pair.run();
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_len, 4000u);
  EXPECT_EQ(of_a.transmit.messages[size_t(MessageKind::kReadRequest)].get(), 0u);
}

TEST_F(Unreliable, ALateReceiveTakesTheMessageThatWaits) {
  send(1, 4000);
  EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
  receive(7, 0, 4000);
  pair.run();
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(sink.data(), source.data(), 4000), 0);
  EXPECT_EQ(of_b.receive.dropped.get(), 0u);
}

// A message of several segments, cut anywhere. Without a receive only the first message is held.
TEST_F(Unreliable, ASendWithoutReceiveIsDropped) {
  pair.chunk_max = 700;
  send(1, 100000);
  end_grace();
  for (uint64_t id = 2; id < 6; ++id) send(id, 5000 * id);
  EXPECT_FALSE(pair.b.qp->receiver().rnr_blocked());
  EXPECT_EQ(of_b.receive.dropped.get(), 5u);
  EXPECT_EQ(of_b.receive.held.get(), 1u);
  EXPECT_EQ(pair.a.sends().size(), 5u);
  receive(7, 1000, 3000);
  send(6, 3000);
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_len, 3000u);
  EXPECT_EQ(std::memcmp(sink.data() + 1000, source.data(), 3000), 0);
  EXPECT_EQ(sink.data()[0], std::byte{0});
  expect_running();
}

TEST_F(Unreliable, AMessageWaitsAgainOnceAnotherHasBeenReceived) {
  send(1, 10);
  end_grace();
  receive(7, 0, 100);
  send(2, 10);
  ASSERT_EQ(pair.b.receives().size(), 1u);
  send(3, 10);
  EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
  end_grace();
  send(4, 10);
  EXPECT_FALSE(pair.b.qp->receiver().rnr_blocked());
  EXPECT_EQ(of_b.receive.dropped.get(), 3u);
}

TEST_F(Unreliable, OfAWriteWithImmediateOnlyTheCompletionIsDropped) {
  ASSERT_EQ(post(SendOpcode::kWriteWithImm, 1, 5000), 0);
  pair.run();
  end_grace();
  EXPECT_EQ(std::memcmp(sink.data(), source.data(), 5000), 0);
  EXPECT_EQ(of_b.receive.dropped.get(), 1u);
  receive(7, 100000, 10);
  ASSERT_EQ(post(SendOpcode::kWriteWithImm, 2, 300), 0);
  pair.run();
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].opcode, WcOpcode::kRecvWriteWithImm);
  EXPECT_EQ(got[0].byte_len, 300u);
  expect_running();
}

TEST_F(Unreliable, SendsOfAllKindsAreDropped) {
  send(1, 10);
  end_grace();
  for (const SendOpcode opcode :
       {SendOpcode::kSendWithImm, SendOpcode::kSendWithInvalidate, SendOpcode::kSend}) {
    ASSERT_EQ(post(opcode, 2, 3000), 0);
    pair.run();
  }
  EXPECT_EQ(of_b.receive.dropped.get(), 4u);
  EXPECT_TRUE(pair.b.receives().empty());
  expect_running();
}

TEST_F(Unreliable, AReceiveThatIsTooShortFailsAlone) {
  for (const size_t length : {size_t{1000}, size_t{4000}}) {
    receive(7, 0, length);
    receive(8, 100000, 6000);
    send(1, 5000);
    send(2, 6000);
    const auto got = pair.b.receives();
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0].wr_id, 7u);
    EXPECT_EQ(got[0].status, WcStatus::kLocLenErr);
    EXPECT_EQ(got[1].wr_id, 8u);
    EXPECT_EQ(got[1].byte_len, 6000u);
    EXPECT_EQ(std::memcmp(sink.data() + 100000, source.data(), 6000), 0);
    EXPECT_EQ(sink.data()[length], std::byte{0});
  }
  expect_running();
}

TEST_F(Unreliable, WhatIsAnsweredIsRefused) {
  for (const SendOpcode opcode :
       {SendOpcode::kRead, SendOpcode::kCompareSwap, SendOpcode::kFetchAdd,
        SendOpcode::kMaskedCompareSwap, SendOpcode::kMaskedFetchAdd})
    EXPECT_EQ(post(opcode, 1, 8), EINVAL);
  pair.run();
  EXPECT_TRUE(pair.a.sends().empty());
  expect_running();
}

TEST_F(Unreliable, ThePeersEndIsNotReported) {
  for (const StreamEnd end : {StreamEnd::kReset, StreamEnd::kFin}) {
    pair.a.qp->lose_peer(end);
    for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(post(SendOpcode::kSend, id, 3000), 0);
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
    const auto sent = pair.a.sends();
    ASSERT_EQ(sent.size(), 3u);
    for (const WorkCompletion& one : sent) EXPECT_EQ(one.status, WcStatus::kSuccess);
  }
  EXPECT_EQ(of_a.stream.resets.get(), 1u);
  EXPECT_EQ(of_a.stream.fins.get(), 0u) << "it ends once";
  EXPECT_EQ(of_a.receive.dropped.get(), 0u);
  EXPECT_TRUE(pair.b.receives().empty());
  EXPECT_EQ(pair.a.qp->state(), QpState::kRts);
  EXPECT_TRUE(pair.a.events.empty());
}

// One message is half sent, and requests wait behind it.
TEST_F(Unreliable, ThePeerEndsInsideAMessage) {
  receive(7, 0, 100000);
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post(SendOpcode::kSend, id, 100000), 0);
  pair.a_to_b.capacity = 7000;
  pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  EXPECT_TRUE(pair.a.sends().empty());
  pair.a.qp->lose_peer(StreamEnd::kReset);
  EXPECT_EQ(pair.a.sends().size(), 4u);
  EXPECT_TRUE(pair.a.qp->transmitter().idle());
  pair.run();
  pair.b.qp->lose_peer(StreamEnd::kReset);
  EXPECT_TRUE(pair.b.receives().empty());
  pair.b.qp->to_error();
  EXPECT_EQ(pair.b.receives().size(), 1u) << "the receive that was taken is flushed";
  pair.a_to_b.log.clear();  // the stream ends inside an FPDU
}

TEST(UnreliableAlone, WithoutAPeerWhatIsPostedIsLost) {
  RegionTable regions;
  End end(regions, unreliable());
  end.qp->to_rtr();
  end.qp->to_rts();
  for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(end.post(SendOpcode::kSend, id, {}), 0);
  EXPECT_TRUE(end.sends().empty());
  end.qp->lose_sends();
  const auto sent = end.sends();
  ASSERT_EQ(sent.size(), 3u);
  for (const WorkCompletion& one : sent) EXPECT_EQ(one.status, WcStatus::kSuccess);
  EXPECT_EQ(end.qp->state(), QpState::kRts);
  ASSERT_TRUE(end.qp->start_stream({}));
}

// A Read or atomic from the peer ends the connection.
TEST(UnreliableAlone, APeerThatReadsIsTerminated) {
  for (const bool atomic : {false, true}) {
    RawPeer peer({.peer_is_uwarp = true}, unreliable());
    ReadRequestHeader read;
    read.size = 8;
    read.source_stag = peer.stag();
    read.source_to = peer.base();
    AtomicRequestHeader add;
    add.remote_stag = peer.stag();
    add.remote_to = peer.base();
    peer.send(atomic ? atomic_request(add, 1) : read_request(read, 1));
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, TerminateCode::kRdmapUnexpectedOpcode);
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
  }
}

// A dropped message is checked like any other.
TEST(UnreliableAlone, ADroppedMessageIsCheckedToo) {
  const Bytes second[] = {send_message(1, 100, 99, false), send_message(2, 100, 100, false),
                          untagged(RdmapOpcode::kSendSolicited, 0, 1, 100, 100)};
  for (const Bytes& wrong : second) {
    RawPeer peer({.peer_is_uwarp = true}, unreliable());
    peer.send(send_message(1, 100, 0, false));
    Unreliable::end_grace(peer.dut);
    peer.send(wrong);
    EXPECT_TRUE(peer.terminate().has_value());
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
  }
}

TEST(UnreliableAlone, AFaultDropsAMessage) {
  std::string error;
  QueuePairSlot slot;
  QpConfig shape = unreliable(&slot);
  shape.script =
      std::make_shared<FaultScript>(FaultPlan::parse("no-receive nth=2", error), 1, nullptr);
  RawPeer peer({.peer_is_uwarp = true}, shape);
  for (uint64_t id = 1; id < 4; ++id) peer.post_receive(id, 100);
  for (uint32_t msn = 1; msn < 4; ++msn) peer.send(send_message(msn, 10 * msn));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1].wr_id, 2u);
  EXPECT_EQ(got[1].byte_len, 30u);
  EXPECT_EQ(slot.receive.dropped.get(), 1u);
}

// A stream that drops its message leaves the line at the shared receive queue, and uses a receive
// that is posted meanwhile.
TEST(UnreliableAlone, SharedReceives) {
  SharedReceiveQueue srq{16, 2};
  QueuePairSlot slot;
  QpConfig shape = unreliable(&slot);
  shape.srq = &srq;
  RawPeer peer({.peer_is_uwarp = true}, shape);
  peer.send(send_message(1, 0));
  Unreliable::end_grace(peer.dut);
  peer.send(send_message(2, 0));
  EXPECT_EQ(slot.receive.dropped.get(), 2u);
  ASSERT_EQ(srq.post(9, {}), 0);
  EXPECT_FALSE(peer.dut.resume_due) << "no stream waits";
  peer.send(send_message(3, 0));
  ASSERT_EQ(peer.dut.receives().size(), 1u);
  peer.send(send_message(4, 0));
  ASSERT_TRUE(peer.dut.qp->receiver().rnr_blocked());
  ASSERT_EQ(srq.post(10, {}), 0);
  peer.settle();
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_EQ(slot.receive.dropped.get(), 2u);
}

}  // namespace
}  // namespace uwarp::sim
