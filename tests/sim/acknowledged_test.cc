// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completions that wait for the peer (QpConfig::acknowledged): when they come, what goes on the
// wire for them, and what failures make of requests that are still open.
#include <gtest/gtest.h>

#include "sim/sim_pair.h"
#include "wire/rdmap_headers.h"

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
  /// Messages of this kind that `a` has sent. CRC is off, so FPDUs are length, ULPDU and pad.
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
                          there_region->rkey.load(), flags),
              0);
  }
  void send(uint64_t id, uint8_t flags = kSendSignaled) {
    Sge from = Pair::sge(here, here_region, 0, 64);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, id, {&from, 1}, 0, 0, flags), 0);
  }
  void read(uint64_t id) {
    Sge to = Pair::sge(here, here_region, 0, 64);
    ASSERT_EQ(pair.a.post(SendOpcode::kRead, id, {&to, 1}, there.address(),
                          there_region->rkey.load()),
              0);
  }
  /// Lets `a` alone move: what it has goes into the pipe.
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
  EXPECT_LE(reads(), 2u);  // the first batch of a stream is a small one
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

TEST_F(Acknowledged, AQueueOfUnsignalledRequestsEmpties) {
  connect();
  for (int round = 0; round < 50; ++round) {
    for (uint64_t id = 0; id < 8; ++id) write(id, 0);
    pair.run();
  }
  EXPECT_LE(reads(), 50u * 8 / 16);
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
                                 there_region->rkey.load(), 1),
              0);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 12u);
  EXPECT_EQ(reads(), 0u);
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
                        there_region->rkey.load()),
            0);
  write(3);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess},
                                          {2, WcStatus::kRemAccessErr},
                                          {3, WcStatus::kWrFlushErr}}));
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
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{4, WcStatus::kSuccess},
                                          {5, WcStatus::kRemOpErr},
                                          {6, WcStatus::kWrFlushErr}}));
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
  EXPECT_TRUE(pair.b.qp->receive_held());
  EXPECT_TRUE(pair.a.sends().empty());
  {
    std::lock_guard lock(pair.b.qp->receive_gate());
    (void)pair.b.qp->receive_expired();
  }
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{5, WcStatus::kSuccess},
                                          {6, WcStatus::kRnrRetryExcErr},
                                          {7, WcStatus::kWrFlushErr}}));
}

TEST_F(Acknowledged, ALocalMistakeLeavesItsPredecessorsAlone) {
  connect();
  write(1);
  Sge wrong = Pair::sge(here, here_region, 0, 64);
  wrong.lkey ^= 0x100;
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&wrong, 1}), 0);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()),
            (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kLocProtErr}}));
}

TEST_F(Acknowledged, AnOrderlyEndAnswersForThePeer) {
  connect();
  write(1);
  transmit();
  EXPECT_TRUE(pair.a.sends().empty());
  (void)pair.a.qp->end_stream(StreamEnd::kFin);
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kSuccess}}));
}

TEST_F(Acknowledged, AResetDoesNot) {
  connect();
  write(1);
  write(2);
  transmit();
  (void)pair.a.qp->end_stream(StreamEnd::kReset);
  EXPECT_EQ(brief(pair.a.sends()),
            (Brief{{1, WcStatus::kRetryExcErr}, {2, WcStatus::kWrFlushErr}}));
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
  request.imm_or_invalidate = 0x12345600;  // nothing that exists
  ASSERT_EQ(pair.a.qp->post_send(request), 0);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{2, WcStatus::kMwBindErr}}));
}

TEST_F(Acknowledged, FencesAndReadsMixUnderCuts) {
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
                              there_region->rkey.load(), kSendSignaled | kSendFence),
                  0);
        break;
      }
      default: {
        Sge from = Pair::sge(here, here_region, 0, 64);
        ASSERT_EQ(pair.a.post(SendOpcode::kWrite, id, {&from, 1}, there.address(),
                              there_region->rkey.load(), kSendSignaled),
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

}  // namespace
}  // namespace uwarp::sim
