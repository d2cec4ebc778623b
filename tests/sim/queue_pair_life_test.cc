// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The SQD state (draining), messages before RTS, RESET, and how a stream ends.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

// SQD: requests that have started finish, an open atomic included. Requests that wait go on in RTS.
TEST(Sqd, DrainsAndReturns) {
  RawPeer peer;
  const Sge result{peer.base(), 8, peer.memory_region->key.load()};
  ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kFetchAdd, 1, result, 8, 2, 1), 0);
  peer.settle();
  peer.dut.qp->to_sqd(true);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_TRUE(peer.dut.events.empty());
  peer.send(atomic_response({0, 1}, 1));
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kSqDrained});
  EXPECT_EQ(peer.dut.sends().size(), 1u);
  EXPECT_TRUE(peer.ulpdus().empty());
  peer.dut.qp->to_rts();
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_EQ(peer.dut.events.size(), 1u);
}

// A queue pair that has left SQD must no longer report that it is drained.
TEST(Sqd, TheEventIsForgottenWithTheState) {
  const auto leave = [](RawPeer& peer, int way) {
    if (way == 0) return peer.dut.qp->to_rts();
    if (way == 1) return peer.dut.qp->to_error();
    peer.dut.qp->detach_stream();
    peer.dut.qp->to_reset();
    peer.dut.qp->to_init();
    StreamConfig config;
    config.ord = 1;
    ASSERT_TRUE(peer.dut.qp->start_stream(config));
  };
  for (int way = 0; way < 3; ++way) {
    RawPeer peer;
    const Sge result{peer.base(), 8, peer.memory_region->key.load()};
    ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kFetchAdd, 1, result, 8, 2, 1), 0);
    peer.settle();
    peer.dut.qp->to_sqd(true);
    peer.settle();
    leave(peer, way);
    peer.settle();
    if (way == 0) peer.send(atomic_response({0, 1}, 1));
    if (way == 2) {
      ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
    }
    peer.settle();
    EXPECT_EQ(peer.dut.sends().size(), 1u) << way;
    EXPECT_TRUE(peer.dut.events.empty()) << way;
    peer.ulpdus();
  }
}

// The stream may start while the queue pair is in SQD.
TEST(Sqd, HoldsOnAStreamThatOpens) {
  RegionTable regions;
  End end(regions);
  end.qp->to_rtr();
  end.qp->to_rts();
  end.qp->to_sqd(false);
  ASSERT_TRUE(end.qp->start_stream({}));
  EXPECT_EQ(end.qp->state(), QpState::kSqd);
  ASSERT_EQ(end.post(SendOpcode::kSend, 1, {}), 0);
  auto turn = end.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  EXPECT_TRUE(end.qp->transmitter().next_iovecs().empty());
  end.qp->to_rts();
  EXPECT_FALSE(end.qp->transmitter().next_iovecs().empty());
  (void)turn.end();
}

// A Read that has arrived counts as owed before it has been looked at.
TEST(FinishInput, CountsAnswersThatThePeerWaitsFor) {
  RawPeer peer;
  peer.settle();
  EXPECT_FALSE(peer.dut.qp->finish_input());
  peer.reads = false;
  peer.send(read_request(
      {.sink_stag = STag{9}, .size = 8, .source_stag = peer.stag(), .source_to = peer.base()}, 1));
  EXPECT_TRUE(peer.dut.qp->finish_input());
  peer.reads = true;
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_FALSE(peer.dut.qp->finish_input());
}

// The event is reported once, for the first message of the peer's application. The empty Write that
// starts a stream does not count.
TEST(CommEstablished, FirstMessageBeforeRts) {
  for (const bool early : {true, false}) {
    RegionTable regions;
    End end(regions);
    end.qp->to_rtr();
    StreamConfig config;
    config.silent_fin = true;
    ASSERT_TRUE(end.qp->start_stream(config));
    if (!early) end.qp->to_rts();
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(end.events.size(), early && i == 2 ? 1u : 0u);
      ASSERT_EQ(end.qp->post_recv(i, {}), 0);
      const Bytes fpdu = frame(i == 0 ? tagged(RdmapOpcode::kWrite, STag{1}, 0, 0)
                                      : untagged(RdmapOpcode::kSend, 0, i, 0, 0),
                               false);
      const auto lock = end.qp->receive_side().lock_exclusive();
      std::memcpy(end.qp->receiver().next_iovecs(end.staging)[0].iov_base, fpdu.data(),
                  fpdu.size());
      end.qp->receiver().received(end.staging, fpdu.size());
    }
    EXPECT_EQ(end.events.size(), early ? 1u : 0u);
    if (early) {
      EXPECT_EQ(end.events[0], QpEvent::kCommEstablished);
    }
  }
}

/// A stream whose peer may close its side without a word.
class SilentEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    StreamConfig config;
    config.silent_fin = true;
    ASSERT_TRUE(end.qp->start_stream(config));
  }
  RegionTable regions;
  End end{regions};
};

// InfiniBand has no disconnect: a queue pair with nothing to send stays as it is.
TEST_F(SilentEnd, WithNothingOpenMovesNoQueuePair) {
  end.qp->to_rts();
  EXPECT_FALSE(end.qp->end_stream(StreamEnd::kFin));
  EXPECT_EQ(end.qp->state(), QpState::kRts);
  EXPECT_TRUE(end.events.empty());
}

// The peer has closed its side. Requests posted now wait until the connection is given up; the
// first of them then has the error, the rest are flushed.
TEST_F(SilentEnd, RequestsWaitForTheEnd) {
  ASSERT_TRUE(end.qp->fall_silent(StreamEnd::kFin));
  for (const uint64_t id : {1, 2}) ASSERT_EQ(end.post(SendOpcode::kSend, id, {}), 0);
  auto turn = end.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  EXPECT_TRUE(end.qp->transmitter().next_iovecs().empty());
  (void)turn.end();
  EXPECT_TRUE(end.sends().empty());
  EXPECT_TRUE(end.qp->end_stream(StreamEnd::kFin));
  const auto failed = end.sends();
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(failed[1].status, WcStatus::kWrFlushErr);
  EXPECT_FALSE(end.qp->fall_silent(StreamEnd::kFin));
}

// A reset that takes nothing with it is no error. Receives that wait are something.
TEST(Ends, AResetIsAnErrorIfItTakesReceivesWithIt) {
  for (const bool acknowledged : {false, true})
    for (const bool posted : {false, true}) {
      RegionTable regions;
      QpConfig shape = End::default_shape();
      shape.acknowledged = acknowledged;
      End end(regions, shape);
      ASSERT_TRUE(end.qp->start_stream({}));
      if (posted) {
        ASSERT_EQ(end.qp->post_recv(1, {}), 0);
      }
      EXPECT_EQ(end.qp->end_stream(StreamEnd::kReset), posted);
      EXPECT_EQ(end.events, posted ? std::vector{QpEvent::kFatal} : std::vector<QpEvent>{});
    }
}

// The next stream of a queue pair knows nothing of a Write that the one before has left.
TEST(Reset, ForgetsAWriteOfWhichAPartHasCome) {
  RawPeer peer;
  peer.send(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 8, false));
  peer.dut.qp->detach_stream();
  peer.dut.qp->to_reset();
  peer.dut.qp->to_init();
  ASSERT_TRUE(peer.dut.qp->start_stream({}));
  peer.dut.events.clear();
  (void)peer.dut.qp->end_stream(StreamEnd::kFin);
  EXPECT_TRUE(peer.dut.events.empty()) << "the end is at a boundary";
}

// RESET removes the queue pair's unpolled completions, flushed or not, and none of other queue
// pairs.
TEST(Reset, DropsItsOwnCompletions) {
  RegionTable regions;
  ProtectionDomain domain;
  CompletionQueue shared(64, nullptr);
  QpConfig shape = End::default_shape();
  shape.domain = &domain;
  shape.send_cq = shape.recv_cq = &shared;
  shape.regions = &regions;
  shape.number = Qpn{1};
  QueuePair leaves(shape);
  shape.number = Qpn{2};
  QueuePair stays(shape);
  for (QueuePair* qp : {&leaves, &stays}) {
    qp->to_init();
    for (uint64_t id = 0; id < 5; ++id) ASSERT_EQ(qp->post_recv(id, {}), 0);
    qp->to_error();
  }
  leaves.to_reset();
  const auto rest = End::drain(shared);
  ASSERT_EQ(rest.size(), 5u);
  for (uint64_t id = 0; id < 5; ++id) {
    EXPECT_EQ(rest[id].qp_num, 2u);
    EXPECT_EQ(rest[id].wr_id, id);
  }
  // After RESET only new work completes.
  leaves.to_init();
  ASSERT_EQ(leaves.post_recv(7, {}), 0);
  leaves.to_error();
  const auto next = End::drain(shared);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].wr_id, 7u);
}

// When a queue pair is destroyed, finished work can still be polled. Flushed completions are
// dropped.
TEST(Reset, RetiringKeepsWhatWasDone) {
  Pair pair(1);
  pair.connect();
  ASSERT_EQ(pair.b.qp->post_recv(5, {}), 0);
  ASSERT_EQ(pair.b.qp->post_recv(6, {}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {}), 0);
  pair.run();
  pair.b.qp->to_error();
  pair.b.qp->detach_stream();
  pair.b.qp->retire();
  const auto rest = pair.b.receives();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].wr_id, 5u);
  EXPECT_EQ(rest[0].status, WcStatus::kSuccess);
  EXPECT_EQ(pair.b.qp->state(), QpState::kReset);
}

// The access rights of the next connection are independent of those before.
TEST(Reset, GivesPeersTheirRightsBack) {
  for (const bool reset : {false, true}) {
    RawPeer peer;
    peer.dut.qp->set_remote_access(0);
    peer.dut.qp->detach_stream();
    if (reset) peer.dut.qp->to_reset();
    peer.dut.qp->to_init();
    ASSERT_TRUE(peer.dut.qp->start_stream({}));
    peer.send(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 8));
    EXPECT_EQ(peer.dut.events.empty(), reset);
    EXPECT_EQ(peer.memory.data()[0], std::byte(reset ? 0x3C : 0));
    peer.ulpdus();
  }
}

// RESET accepts no request, INIT only receives. The responder may post Sends before its first
// message arrives.
TEST(Posting, NeedsTheRightState) {
  Pair pair(1);
  QueuePair& qp = *pair.a.qp;
  const auto send = [&] { return pair.a.post(SendOpcode::kSend, 1, {}); };
  const auto sends = [&] {
    const SendRequest list[2];
    return qp.post_sends(list);
  };
  qp.to_reset();
  EXPECT_EQ(send(), EINVAL);
  EXPECT_EQ(sends(), EINVAL);
  EXPECT_EQ(qp.post_recv(1, {}), EINVAL);
  qp.to_init();
  EXPECT_EQ(send(), EINVAL);
  EXPECT_EQ(sends(), EINVAL);
  EXPECT_EQ(qp.post_recv(1, {}), 0);
  qp.to_rtr();
  EXPECT_EQ(send(), 0);
  EXPECT_EQ(sends(), 0);
  qp.to_error();
  EXPECT_EQ(pair.a.sends().size(), 3u);
  EXPECT_EQ(send(), 0);
  EXPECT_EQ(pair.a.sends().size(), 1u) << "flushed at once";
}

TEST(Posting, TakesAsManyPiecesAsWereAskedFor) {
  QpConfig shape = End::default_shape();
  Pair pair(1, shape);
  pair.a.qp->to_rtr();
  std::vector<Sge> pieces(kMaxSge + 1, Sge{});
  const auto send = [&](size_t count, uint8_t flags) {
    return pair.a.post(SendOpcode::kSend, 1, {pieces.data(), count}, 0, 0, flags);
  };
  EXPECT_EQ(send(shape.max_send_sge, 0), 0);
  EXPECT_EQ(send(shape.max_send_sge + 1, 0), EINVAL);
  EXPECT_EQ(send(kMaxSge, kSendInline), 0);  // a rejected post leaves no request behind
  EXPECT_EQ(send(kMaxSge + 1, kSendInline), EINVAL);
  EXPECT_EQ(pair.a.post(SendOpcode::kLocalInvalidate, 1, {pieces.data(), 1}), EINVAL);
  EXPECT_EQ(pair.a.post(SendOpcode::kLocalInvalidate, 1, {}), 0);
  EXPECT_EQ(pair.a.qp->post_recv(1, {pieces.data(), shape.max_recv_sge}), 0);
  EXPECT_EQ(pair.a.qp->post_recv(1, {pieces.data(), shape.max_recv_sge + size_t{1}}), EINVAL);
}

// RFC 5044 7.2: a FIN inside an FPDU is a failure, a FIN between two is the end.
TEST(FinishInput, IsAFailureInsideAnFpdu) {
  for (const bool write : {true, false}) {
    RawPeer whole;
    const size_t size = frame(write ? tagged(RdmapOpcode::kWrite, whole.stag(), whole.base(), 12)
                                    : send_message(1, 12),
                              false)
                            .size();
    for (size_t cut = 0; cut <= size; ++cut) {
      RawPeer peer;
      peer.post_receive(1, 100);
      Bytes bytes = frame(
          write ? tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 12) : send_message(1, 12),
          false);
      bytes.resize(cut);
      if (cut > 0) peer.feed(bytes);
      const bool between = cut == 0 || cut == size;
      peer.dut.qp->end_stream(StreamEnd::kFin);
      EXPECT_EQ(peer.dut.events, between ? std::vector<QpEvent>{} : std::vector{QpEvent::kFatal})
          << cut << " of " << size;
    }
  }
}

TEST(StartStream, NeedsALivingQueuePair) {
  Pair pair(1);
  pair.a.qp->to_error();
  EXPECT_FALSE(pair.a.qp->start_stream({}));
  EXPECT_EQ(pair.a.qp->state(), QpState::kErr);
  pair.a.qp->to_reset();
  EXPECT_FALSE(pair.a.qp->start_stream({}));
  EXPECT_EQ(pair.a.qp->state(), QpState::kReset);
  pair.a.qp->to_init();
  EXPECT_TRUE(pair.a.qp->start_stream({}));
  EXPECT_EQ(pair.a.qp->state(), QpState::kRts);
}

// The thread that posts the receive for which a stream is held resumes the stream; only one thread
// does.
TEST(Held, IsResumedByOnePost) {
  RawPeer peer;
  peer.send(send_message(1, 0));
  ASSERT_TRUE(peer.dut.qp->receiver().rnr_blocked());
  EXPECT_FALSE(peer.dut.qp->receive_resumable());
  ASSERT_EQ(peer.dut.qp->post_recv(1, {}), 0);
  EXPECT_TRUE(peer.dut.qp->receive_resumable());
  EXPECT_FALSE(peer.dut.qp->receive_resumable());
  ASSERT_EQ(peer.dut.qp->post_recv(2, {}), 0);
  EXPECT_FALSE(peer.dut.qp->receive_resumable()) << "no stream waits for this receive";
  peer.settle();
  EXPECT_EQ(peer.dut.receives().size(), 1u);
}

// A program finds the queue of a failed completion by its opcode, or by the queue pair number.
TEST(Flushed, CompletionsNameTheirQueuePair) {
  QpConfig shape = End::default_shape();
  shape.number = Qpn{77};
  Pair pair(1, shape);
  GuardedMemory memory(64);
  const MemoryRegion* region = pair.reg(pair.a, memory, kAllAccess);
  const Sge sge{memory.address(), 8, region->key.load()};
  struct Case {
    SendOpcode opcode;
    WcOpcode completed;
  };
  const Case cases[] = {{SendOpcode::kSend, WcOpcode::kSend},
                        {SendOpcode::kWrite, WcOpcode::kWrite},
                        {SendOpcode::kWriteWithImm, WcOpcode::kWrite},
                        {SendOpcode::kRead, WcOpcode::kRead},
                        {SendOpcode::kCompareSwap, WcOpcode::kCompareSwap},
                        {SendOpcode::kFetchAdd, WcOpcode::kFetchAdd},
                        {SendOpcode::kMaskedCompareSwap, WcOpcode::kCompareSwap},
                        {SendOpcode::kMaskedFetchAdd, WcOpcode::kFetchAdd}};
  pair.a.qp->to_rtr();
  ASSERT_EQ(pair.a.qp->post_recv(5, {&sge, 1}), 0);
  ASSERT_EQ(pair.a.qp->post_recv(6, {&sge, 1}), 0);
  for (const Case& each : cases) ASSERT_EQ(pair.a.post(each.opcode, 9, {&sge, 1}), 0);
  pair.a.qp->to_error();
  const auto sends = pair.a.sends();
  ASSERT_EQ(sends.size(), std::size(cases));
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].opcode, cases[i].completed) << i;
    EXPECT_EQ(sends[i].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(sends[i].qp_num, 77u);
    EXPECT_EQ(sends[i].wr_id, 9u);
  }
  const auto receives = pair.a.receives();
  ASSERT_EQ(receives.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(receives[i].opcode, WcOpcode::kRecv);
    EXPECT_EQ(receives[i].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(receives[i].qp_num, 77u);
    EXPECT_EQ(receives[i].wr_id, 5 + i);
  }
}

// If the connection was never established, the oldest request has the reason as its status.
TEST(Flushed, TheOldestRequestHasTheCause) {
  QueuePairSlot slot;
  QpConfig shape = End::default_shape();
  shape.slot = &slot;
  Pair pair(1, shape, End::default_shape());
  pair.a.qp->to_rtr();
  pair.a.qp->to_rts();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(pair.a.post(SendOpcode::kSend, id, {}), 0);
  pair.a.qp->to_error(WcStatus::kRetryExcErr);
  const auto sends = pair.a.sends();
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_EQ(sends[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(sends[1].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(sends[2].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(sends[0].wr_id, 1u);
  EXPECT_EQ(slot.stream.failures.get(), 1u);
  EXPECT_EQ(slot.transmit.flushed.get(), 2u);
  EXPECT_TRUE(pair.a.events.empty());
  EXPECT_EQ(pair.a.qp->state(), QpState::kErr);
}

TEST(Completed, ReceivesNameTheirQueuePair) {
  QpConfig shape = End::default_shape();
  shape.number = Qpn{78};
  Pair pair(1, shape);
  pair.connect();
  ASSERT_EQ(pair.b.qp->post_recv(5, {}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 9, {}), 0);
  pair.run();
  const auto received = pair.b.receives();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].qp_num, 78u);
  EXPECT_EQ(received[0].opcode, WcOpcode::kRecv);
  EXPECT_EQ(received[0].byte_len, 0u);
  const auto sent = pair.a.sends();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].qp_num, 78u);
}

}  // namespace
}  // namespace uwarp::sim
