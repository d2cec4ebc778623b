// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Requests that complete only when the peer acknowledges them (QpConfig::acknowledged): when they
// complete, what uwarp sends to get the acknowledgement, and what a failure does to requests that
// are still open.
#include <gtest/gtest.h>

#include "protocol/wire/rdmap_headers.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

QpConfig acknowledged_shape() {
  QpConfig shape = End::default_shape();
  shape.acknowledged = true;
  shape.signal_all = false;
  return shape;
}

struct Acknowledged : ::testing::Test {
  void connect(uint16_t ord, uint16_t read_depth, uint16_t peer_ird) {
    StreamConfig initiator, responder;
    initiator.ord = ord;
    initiator.read_depth = read_depth;
    initiator.ird = 16;
    initiator.rtr = StreamConfig::Rtr::kWrite;
    responder.ord = responder.read_depth = 16;
    responder.ird = peer_ird;
    responder.wait_for_first_fpdu = true;
    ASSERT_TRUE(pair.a.qp->start_stream(initiator));
    ASSERT_TRUE(pair.b.qp->start_stream(responder));
    pair.run();
    requests_before = count(RdmapOpcode::kReadRequest);
  }
  void connect() { connect(4, 5, 5); }
  /// Messages of this kind that `a` has sent. CRC is off, so an FPDU is length, ULPDU and pad.
  size_t count(RdmapOpcode opcode) const {
    const std::vector<std::byte>& log = pair.a_to_b.log;
    size_t found = 0;
    for (size_t at = 0; at + 4 <= log.size();) {
      const size_t length = static_cast<size_t>(log[at]) << 8 | static_cast<size_t>(log[at + 1]);
      if (RdmapControl{static_cast<uint8_t>(log[at + 3])}.opcode() == opcode) ++found;
      at += fpdu_size(length);
    }
    return found;
  }
  size_t reads() const { return count(RdmapOpcode::kReadRequest) - requests_before; }
  void write(uint64_t id, uint8_t flags = kSendSignaled) {
    Sge from = Pair::sge(here, here_region, 0, 64);
    ASSERT_EQ(pair.a.post(SendOpcode::kWrite, id, {&from, 1}, there.address() + 64 * id,
                          there_region->key.load(), flags),
              0);
  }
  void send(uint64_t id, uint8_t flags = kSendSignaled) {
    Sge from = Pair::sge(here, here_region, 0, 64);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, id, {&from, 1}, 0, 0, flags), 0);
  }
  void read(uint64_t id) {
    Sge to = Pair::sge(here, here_region, 0, 64);
    ASSERT_EQ(
        pair.a.post(SendOpcode::kRead, id, {&to, 1}, there.address(), there_region->key.load()), 0);
  }
  /// Only `a` takes a turn: it writes what it has to the pipe.
  void transmit() {
    Pipe nothing;
    while (pair.step(pair.a, pair.a_to_b, nothing)) {
    }
  }
  static std::vector<std::pair<uint64_t, WcStatus>> brief(const std::vector<WorkCompletion>& all) {
    std::vector<std::pair<uint64_t, WcStatus>> out;
    for (const WorkCompletion& one : all) out.emplace_back(one.wr_id, one.status);
    return out;
  }
  using Brief = std::vector<std::pair<uint64_t, WcStatus>>;

  Pair pair{11, acknowledged_shape()};
  GuardedMemory here{4096}, there{8192};
  MemoryRegion* here_region = pair.reg(pair.a, here, kAllAccess);
  MemoryRegion* there_region = pair.reg(pair.b, there, kAllAccess);
  size_t requests_before = 0;
};

// The batch has no room for the Read that follows it, so the sender must be told that there is more
// to send.
TEST_F(Acknowledged, AFullBatchIsFollowedByItsRead) {
  connect();
  constexpr size_t kSize = TransmitBatch::kBytes;
  GuardedMemory from{kSize}, to{kSize};
  const Sge all = Pair::sge(from, pair.reg(pair.a, from, kAllAccess), 0, kSize);
  const uint32_t key = pair.reg(pair.b, to, kAllAccess)->key;
  pair.a_to_b.capacity = 2 * kSize;
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&all, 1}, to.address(), key), 0);
  auto turn = pair.a.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  Transmitter& transmitter = pair.a.qp->transmitter();
  while (transmitter.sent(pair.a_to_b.write(transmitter.next_iovecs(), ~size_t{0}))) {
  }
  EXPECT_EQ(turn.end(), AfterTurn::kNothing);
  EXPECT_EQ(reads(), 1u);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
}

TEST_F(Acknowledged, AWriteCompletesWhenThePeerHasIt) {
  connect();
  write(1);
  transmit();
  EXPECT_TRUE(pair.a.sends().empty());
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
  EXPECT_EQ(reads(), 1u);
}

TEST_F(Acknowledged, OneReadForABatch) {
  connect();
  for (uint64_t id = 0; id < 20; ++id) write(id);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 20u);
  EXPECT_LE(reads(), 2u);  // the first batch of a stream is small
}

TEST_F(Acknowledged, NoReadForWhatIsNotSignalled) {
  connect();
  for (uint64_t id = 0; id < 20; ++id) write(id, 0);
  pair.run();
  EXPECT_EQ(reads(), 0u);
  write(20);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{20, WcStatus::kSuccess}}));
  EXPECT_EQ(reads(), 1u);
}

TEST_F(Acknowledged, AQueueOfUnsignalledRequestsEmptiesBehindASignalledOne) {
  connect();
  for (int round = 0; round < 50; ++round) {
    for (uint64_t id = 0; id < 7; ++id) write(id, 0);
    write(7);
    pair.run();
    EXPECT_EQ(brief(pair.a.sends()), (Brief{{7, WcStatus::kSuccess}}));
  }
  EXPECT_EQ(reads(), 50u);
}

TEST_F(Acknowledged, AReadOfTheApplicationServes) {
  connect();
  write(1);
  read(2);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kSuccess}}));
  EXPECT_EQ(reads(), 1u);
}

TEST_F(Acknowledged, AtomicsNeedNoOther) {
  connect();
  Sge result = Pair::sge(here, here_region, 0, 8);
  for (uint64_t id = 0; id < 12; ++id)
    ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, id, result, there.address(),
                                 there_region->key.load(), 1),
              0);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 12u);
  EXPECT_EQ(reads(), 0u);
}

TEST_F(Acknowledged, AnAnswerCoversNothingBehindItsRequest) {
  connect();
  const auto all_of = [this](End& end, Pipe& out, Pipe& in) {
    while (pair.step(end, out, in)) {
    }
  };
  for (const bool atomic : {true, false}) {
    SCOPED_TRACE(atomic);
    if (atomic) {
      ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 0, Pair::sge(here, here_region, 0, 8),
                                   there.address(), there_region->key.load(), 1),
                0);
    } else {
      read(0);
    }
    transmit();
    all_of(pair.b, pair.b_to_a, pair.a_to_b);
    write(1);
    transmit();
    all_of(pair.a, pair.a_to_b, pair.b_to_a);
    EXPECT_EQ(brief(pair.a.sends()), (Brief{{0, WcStatus::kSuccess}}));
    pair.run();
    EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
  }
}

TEST_F(Acknowledged, SharesADepthOfOne) {
  connect(1, 1, 1);
  for (uint64_t id = 0; id < 16; id += 2) {
    write(id);
    read(id + 1);
  }
  write(16);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 17u);
  EXPECT_TRUE(pair.b.events.empty());
}

TEST_F(Acknowledged, NotWithoutReads) {
  connect(0, 0, 0);
  write(1);
  transmit();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
  pair.run();
  EXPECT_EQ(reads(), 0u);
}

TEST_F(Acknowledged, TheReserveIsNotTheApplications) {
  connect(0, 1, 1);
  write(1);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
  read(2);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{2, WcStatus::kLocQpOpErr}}));
}

TEST_F(Acknowledged, TheWriteThatWasRefusedFails) {
  connect();
  write(1);
  Sge from = Pair::sge(here, here_region, 0, 64);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&from, 1}, there.address() + there.size(),
                        there_region->key.load()),
            0);
  write(3);
  pair.run();
  EXPECT_EQ(
      brief(pair.a.sends()),
      (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kRemAccessErr}, {3, WcStatus::kWrFlushErr}}));
}

TEST_F(Acknowledged, AReceiveWithoutItsMemoryFailsTheSend) {
  connect();
  Sge gone = Pair::sge(there, there_region, 0, 64);
  gone.lkey ^= 0x100;
  ASSERT_EQ(pair.b.qp->post_recv(1, {&gone, 1}), 0);
  write(4);
  send(5);
  send(6);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()),
            (Brief{{4, WcStatus::kSuccess}, {5, WcStatus::kRemOpErr}, {6, WcStatus::kWrFlushErr}}));
}

TEST_F(Acknowledged, TheSendThatWasTooLongFails) {
  connect();
  Sge small = Pair::sge(there, there_region, 0, 8);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&small, 1}), 0);
  send(5);
  send(6);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()),
            (Brief{{5, WcStatus::kRemInvReqErr}, {6, WcStatus::kWrFlushErr}}));
}

TEST_F(Acknowledged, AMissingReceiveFailsItsSend) {
  connect();
  Sge room = Pair::sge(there, there_region, 0, 64);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&room, 1}), 0);
  send(5);
  send(6);
  send(7);
  pair.run();
  EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
  EXPECT_TRUE(pair.a.sends().empty());
  {
    const auto lock = pair.b.qp->receive_side().lock_exclusive();
    (void)pair.b.qp->receiver().expire();
  }
  pair.run();
  EXPECT_EQ(
      brief(pair.a.sends()),
      (Brief{{5, WcStatus::kSuccess}, {6, WcStatus::kRnrRetryExcErr}, {7, WcStatus::kWrFlushErr}}));
}

// The peer's next message, which has no receive, arrives ahead of the answer. An application that
// posts a receive only after its own Send has completed must not wait for ever.
TEST_F(Acknowledged, AnAnswerBehindAHeldMessageIsFound) {
  for (const size_t cut : {0, 5, 700}) {
    for (const bool crc : {false, true}) {
      Pair one{13, acknowledged_shape()};
      one.chunk_max = cut;
      StreamConfig config;
      config.crc = crc;
      config.read_depth = 17;
      one.connect(config);
      GuardedMemory from{4096}, to{4096};
      MemoryRegion* const from_region = one.reg(one.a, from, kAllAccess);
      MemoryRegion* const to_region = one.reg(one.b, to, kAllAccess);
      Random random(3);
      from.fill(random);
      const Sge out = Pair::sge(from, from_region, 0, 4000);
      const Sge room_here = Pair::sge(from, from_region, 4000, 90);
      const Sge back = Pair::sge(to, to_region, 4000, 64);
      ASSERT_EQ(one.a.post(SendOpcode::kSend, 1, {&out, 1}), 0);
      ASSERT_EQ(one.a.post(SendOpcode::kSend, 2, {&out, 1}), 0);
      one.run();
      ASSERT_TRUE(one.b.qp->receiver().rnr_blocked());
      ASSERT_EQ(one.a.qp->post_recv(3, {&room_here, 1}), 0);
      ASSERT_EQ(one.b.post(SendOpcode::kSend, 4, {&back, 1}), 0);
      one.run();
      EXPECT_EQ(brief(one.b.sends()), (Brief{{4, WcStatus::kSuccess}}));
      EXPECT_EQ(brief(one.a.receives()), (Brief{{3, WcStatus::kSuccess}}));
      EXPECT_TRUE(one.b.qp->receiver().rnr_blocked());
      EXPECT_TRUE(one.a.sends().empty());
      // The held message is complete.
      const Sge room = Pair::sge(to, to_region, 0, 4000);
      ASSERT_EQ(one.b.qp->post_recv(5, {&room, 1}), 0);
      ASSERT_EQ(one.b.qp->post_recv(6, {&room, 1}), 0);
      one.run();
      EXPECT_EQ(brief(one.b.receives()), (Brief{{5, WcStatus::kSuccess}, {6, WcStatus::kSuccess}}));
      EXPECT_EQ(std::memcmp(from.data(), to.data(), 4000), 0);
      EXPECT_EQ(brief(one.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kSuccess}}));
      EXPECT_TRUE(one.b.events.empty());
    }
  }
}

// The same, but one receive call reads both, and nothing follows them.
TEST(AcknowledgedBurst, AnAnswerBehindAHeldMessageIsFound) {
  StreamConfig config;
  config.read_depth = 5;
  RawPeer peer(config, acknowledged_shape());
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 4, {}), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  const auto read = ReadRequestHeader::decode(sent[1].data() + UntaggedHeader::kWireSize);
  peer.feed(joined({send_message(1, 8), tagged(RdmapOpcode::kReadResponse, read.sink_stag, 0, 0)}));
  EXPECT_TRUE(peer.dut.qp->receiver().rnr_blocked());
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  peer.post_receive(5, 8);
  peer.settle();
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  peer.post_receive(6, 8);
  peer.send(send_message(2, 8));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_TRUE(peer.dut.events.empty());
}

TEST_F(Acknowledged, ALocalErrorLeavesEarlierRequestsAlone) {
  connect();
  write(1);
  Sge wrong = Pair::sge(here, here_region, 0, 64);
  wrong.lkey ^= 0x100;
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&wrong, 1}), 0);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kLocProtErr}}));
}

TEST_F(Acknowledged, AnOrderlyEndCompletesOpenRequests) {
  connect();
  write(1);
  transmit();
  EXPECT_TRUE(pair.a.sends().empty());
  (void)pair.a.qp->end_stream(StreamEnd::kFin);
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
}

// The second Write or the Read behind it is what the peer had not received.
TEST_F(Acknowledged, AnOrderlyEndFailsWhatThePeerDidNotRead) {
  connect();
  write(1);
  transmit();
  write(2);
  transmit();
  constexpr uint64_t kAcknowledgingRead = 52;
  pair.a.qp->note_peer_end(kAcknowledgingRead + 1);
  (void)pair.a.qp->end_stream(StreamEnd::kFin);
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kRetryExcErr}}));
}

TEST_F(Acknowledged, AnOrderlyEndCompletesWhatThePeerHasRead) {
  connect();
  write(1);
  transmit();
  write(2);
  transmit();
  pair.a.qp->note_peer_end(1);
  (void)pair.a.qp->end_stream(StreamEnd::kFin);
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kSuccess}}));
}

TEST_F(Acknowledged, AResetFailsOpenRequests) {
  connect();
  write(1);
  write(2);
  transmit();
  (void)pair.a.qp->end_stream(StreamEnd::kReset);
  EXPECT_EQ(brief(pair.a.sends()),
            (Brief{{1, WcStatus::kRetryExcErr}, {2, WcStatus::kWrFlushErr}}));
}

/// A carrier that tells how much the peer has placed.
struct TellingCarrier final : LentMemory {
  void withdraw() override {}
  size_t give_back() override { return 0; }
  uint64_t read_bytes() const override { return placed; }
  uint64_t placed_bytes() const override { return placed; }
  uint64_t placed = 0;
};

struct ToldByTheCarrier : Acknowledged {
  ToldByTheCarrier() {
    connect();
    const auto held = pair.a.qp->lock_exclusive();
    pair.a.qp->lend(&carrier);
    pair.a.qp->transmitter().carrier_changed();
    before = pair.a_to_b.log.size();
  }
  ~ToldByTheCarrier() override {
    const auto held = pair.a.qp->lock_exclusive();
    pair.a.qp->lend(nullptr);
  }
  uint64_t sent() const { return pair.a_to_b.log.size() - before; }
  Brief told(uint64_t placed) {
    carrier.placed = placed;
    transmit();
    return brief(pair.a.sends());
  }

  TellingCarrier carrier;
  size_t before = 0;
};

TEST_F(ToldByTheCarrier, RequestsCompleteOneByOne) {
  write(1);
  transmit();
  const uint64_t first = sent();
  EXPECT_EQ(reads(), 1u) << "the carrier has told nothing yet";
  EXPECT_EQ(told(1), Brief{});
  write(2);
  transmit();
  write(3);
  transmit();
  EXPECT_EQ(told(first), (Brief{{1, WcStatus::kSuccess}}));
  EXPECT_EQ(told(sent()), (Brief{{2, WcStatus::kSuccess}, {3, WcStatus::kSuccess}}));
  EXPECT_EQ(reads(), 1u);
}

TEST_F(ToldByTheCarrier, WhatTheCarrierDoesNotTellIsAskedFor) {
  write(1);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
  EXPECT_EQ(reads(), 1u);
}

// A peer may name any number: nothing completes that has not gone.
TEST_F(ToldByTheCarrier, NothingCompletesThatHasNotGone) {
  carrier.placed = ~uint64_t{0} / 2;
  pair.a_to_b.capacity = 10;
  write(1);
  transmit();
  EXPECT_TRUE(pair.a.sends().empty());
}

TEST_F(Acknowledged, DrainsWhatIsNotSignalled) {
  connect();
  write(1, 0);
  pair.run();
  pair.a.qp->to_sqd(true);
  pair.run();
  EXPECT_EQ(pair.a.events, std::vector<QpEvent>{QpEvent::kSqDrained});
  EXPECT_FALSE(pair.a.qp->draining());
}

TEST_F(Acknowledged, AnInvalidationWaitsForUnsignalledWrites) {
  connect();
  write(1, 0);
  SendRequest request;
  request.wr_id = 2;
  request.opcode = SendOpcode::kLocalInvalidate;
  request.flags = kSendSignaled;
  request.imm_or_invalidate = 0x12345600;  // no such key
  ASSERT_EQ(pair.a.qp->post_send(request), 0);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{2, WcStatus::kMwBindErr}}));
}

TEST_F(Acknowledged, FencesAndReadsMixWhereverBytesAreCut) {
  connect(2, 3, 3);
  pair.chunk_max = 7;
  Random random(5);
  std::vector<WorkCompletion> done;
  for (uint64_t id = 0; id < 400; ++id) {
    switch (pick(random, 0, 3)) {
      case 0:
        read(id);
        break;
      case 1: {
        Sge to = Pair::sge(here, here_region, 0, 64);
        ASSERT_EQ(pair.a.post(SendOpcode::kRead, id, {&to, 1}, there.address(),
                              there_region->key.load(), kSendSignaled | kSendFence),
                  0);
        break;
      }
      default: {
        Sge from = Pair::sge(here, here_region, 0, 64);
        ASSERT_EQ(pair.a.post(SendOpcode::kWrite, id, {&from, 1}, there.address(),
                              there_region->key.load(), kSendSignaled),
                  0);
      }
    }
    if (id % 16 != 15) continue;
    pair.run();
    const auto some = pair.a.sends();
    done.insert(done.end(), some.begin(), some.end());
  }
  ASSERT_EQ(done.size(), 400u);
  for (uint64_t id = 0; id < 400; ++id) {
    EXPECT_EQ(done[id].wr_id, id);
    EXPECT_EQ(done[id].status, WcStatus::kSuccess);
  }
}

/// Posts one request of each opcode, lets the peer send a Terminate without headers, and returns
/// the request that is blamed. If the oldest one is another, it has the status as well.
uint64_t blamed(TerminateCode code, std::span<const SendOpcode> opcodes) {
  StreamConfig config;
  config.ord = config.read_depth = 8;
  RawPeer peer(config, acknowledged_shape());
  const Sge cell{peer.base(), 8, peer.memory_region->key.load()};
  for (size_t i = 0; i < opcodes.size(); ++i)
    EXPECT_EQ(peer.dut.post(opcodes[i], i, {&cell, 1}, 64, 7), 0);
  peer.settle();
  TerminateHeader header;
  header.code = code;
  Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, header.encoded_size());
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  peer.send(ulpdu);
  uint64_t found = ~uint64_t{0};
  bool failing = false;
  for (const WorkCompletion& one : peer.dut.sends()) {
    if (one.status == WcStatus::kSuccess) continue;
    EXPECT_TRUE(failing || one.status != WcStatus::kWrFlushErr) << "the first says why";
    failing = true;
    if (one.status != WcStatus::kWrFlushErr) found = one.wr_id;
  }
  return found;
}

// A Terminate that quotes the header of a Write's segment gives the key and an offset.
TEST(FailedRequestByHeader, FindsAWriteByItsAddressOrElseByItsKey) {
  struct Case {
    uint32_t key;
    TaggedOffset to;
    size_t failed;  // 3: none
  };
  for (const Case& each : {Case{7, 1000, 0}, Case{7, 1063, 0}, Case{7, 3010, 1}, Case{8, 3000, 2},
                           Case{7, 1064, 0}, Case{7, 999, 0}, Case{8, 1, 2}, Case{9, 1000, 3}}) {
    SCOPED_TRACE(testing::Message() << "key " << each.key << " to " << each.to);
    StreamConfig config;
    config.read_depth = 5;
    RawPeer peer(config, acknowledged_shape());
    const Sge from{peer.base(), 64, peer.memory_region->key.load()};
    ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 0, {&from, 1}, 1000, 7), 0);
    ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 1, {&from, 1}, 3000, 7), 0);
    ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 2, {&from, 1}, 3000, 8), 0);
    peer.settle();
    peer.ulpdus();
    const Bytes bad = tagged(RdmapOpcode::kWrite, STag{each.key}, each.to, 8);
    TerminateHeader header;
    header.code = TerminateCode::kDdpTaggedBounds;
    header.copy_ddp_header(bad.data(), static_cast<uint16_t>(bad.size()));
    Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, header.encoded_size());
    header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
    peer.send(ulpdu);
    const auto done = peer.dut.sends();
    ASSERT_EQ(done.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      // Requests before the failed one have been placed.
      const WcStatus other =
          i < each.failed && each.failed < 3 ? WcStatus::kSuccess : WcStatus::kWrFlushErr;
      const bool says_why = i == each.failed || (each.failed == 3 && i == 0);
      EXPECT_EQ(done[i].status, says_why ? WcStatus::kRemAccessErr : other) << i;
    }
  }
}

TEST(FailedRequestWithoutHeader, ByTheClassOfTheError) {
  constexpr SendOpcode kAll[] = {SendOpcode::kSend, SendOpcode::kRead, SendOpcode::kWrite,
                                 SendOpcode::kFetchAdd, SendOpcode::kSendWithInvalidate};
  using T = TerminateCode;
  EXPECT_EQ(blamed(T::kDdpUntaggedNoBuffer, kAll), 0u);
  EXPECT_EQ(blamed(T::kDdpUntaggedTooLong, kAll), 0u);
  EXPECT_EQ(blamed(T::kDdpLocalCatastrophic, kAll), 0u);
  EXPECT_EQ(blamed(T::kRdmapAccess, kAll), 1u);
  EXPECT_EQ(blamed(T::kRdmapInvalidSTag, kAll), 1u);
  EXPECT_EQ(blamed(T::kDdpTaggedBounds, kAll), 2u);
  EXPECT_EQ(blamed(T::kDdpTaggedInvalidSTag, kAll), 2u);
  EXPECT_EQ(blamed(T::kRdmapCannotInvalidate, kAll), 4u);
  EXPECT_EQ(blamed(T::kRdmapOperationCannotInvalidate, kAll), 4u);
  EXPECT_EQ(blamed(T::kMpaCrc, kAll), 0u);
  constexpr SendOpcode kReadFirst[] = {SendOpcode::kRead, SendOpcode::kSend};
  EXPECT_EQ(blamed(T::kMpaCrc, kReadFirst), 0u);
  EXPECT_EQ(blamed(T::kRdmapUnexpectedOpcode, kReadFirst), 0u);
  EXPECT_EQ(blamed(T::kRdmapLocalCatastrophic, kReadFirst), 1u);
}

TEST(FailedRequestWithoutHeader, TheOldestWhereNoneFits) {
  constexpr SendOpcode kReads[] = {SendOpcode::kRead, SendOpcode::kFetchAdd};
  constexpr SendOpcode kWrites[] = {SendOpcode::kWrite, SendOpcode::kWriteWithImm};
  using T = TerminateCode;
  EXPECT_EQ(blamed(T::kDdpUntaggedNoBuffer, kReads), 0u);
  EXPECT_EQ(blamed(T::kDdpTaggedBounds, kReads), 0u);
  EXPECT_EQ(blamed(T::kRdmapUnexpectedOpcode, kReads), 0u);
  EXPECT_EQ(blamed(T::kRdmapAccess, kWrites), 0u);
  EXPECT_EQ(blamed(T::kRdmapLocalCatastrophic, kWrites), 1u);  // its Immediate takes a receive
  EXPECT_EQ(blamed(T::kDdpUntaggedNoBuffer, kWrites), 1u);
}

}  // namespace
}  // namespace uwarp::sim
