// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Failures that the sending side finds itself: requests before the one that fails, and memory that
// the kernel can no longer read. RFC 5040 5.5, 7.1.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

constexpr uint32_t kLarge = 4 * TransmitBatch::kCopyBytes;

struct LocalFailure : ::testing::TestWithParam<bool> {
  LocalFailure() : peer({}, shape()) {}
  static QpConfig shape() {
    QpConfig shape = End::default_shape();
    shape.acknowledged = GetParam();
    return shape;
  }
  Sge sge(uint32_t length) { return {peer.base(), length, peer.memory_region->key.load()}; }
  int send(uint64_t id, const Sge& from) {
    return peer.dut.post(SendOpcode::kSend, id, {&from, 1});
  }
  int read(uint64_t id) {
    const Sge to = sge(8);
    return peer.dut.post(SendOpcode::kRead, id, {&to, 1}, 64, 7);
  }
  /// One send call; the kernel accepts `limit` bytes of it.
  void transmit(size_t limit) {
    auto turn = peer.dut.qp->transmit_side().begin();
    ASSERT_TRUE(turn);
    size_t done = 0;
    for (const iovec& piece : peer.dut.qp->transmitter().next_iovecs()) {
      const size_t here = std::min(piece.iov_len, limit - done);
      const auto* from = static_cast<const std::byte*>(piece.iov_base);
      peer.out.insert(peer.out.end(), from, from + here);
      peer.scan.feed({from, here});
      done += here;
    }
    peer.dut.qp->transmitter().sent(done);
    (void)turn.end();
  }
  /// One send call that fails because the kernel cannot read the memory.
  void fault() {
    auto turn = peer.dut.qp->transmit_side().begin();
    ASSERT_TRUE(turn);
    EXPECT_FALSE(peer.dut.qp->transmitter().next_iovecs().empty());
    peer.dut.qp->transmitter().fault();
    (void)turn.end();
    ASSERT_TRUE(peer.dut.qp->flush_due());
    peer.dut.qp->flush();
  }
  using Brief = std::vector<std::pair<uint64_t, WcStatus>>;
  Brief sends() {
    Brief out;
    for (const WorkCompletion& one : peer.dut.sends()) out.emplace_back(one.wr_id, one.status);
    return out;
  }

  RawPeer peer;
};

// The flush may happen when the kernel has accepted only a part of the bytes that were built.
TEST_P(LocalFailure, WhatWasBuiltBeforeSucceedsAndArrives) {
  std::memset(peer.memory.data(), 0x11, kLarge);
  for (const uint64_t id : {1, 2}) ASSERT_EQ(send(id, sge(kLarge)), 0);
  ASSERT_EQ(read(3), 0);
  transmit(100);
  peer.reads = false;
  peer.send(tagged(RdmapOpcode::kReadResponse, STag{0}, 0, 8));  // no answer to what was asked
  EXPECT_EQ(sends(),
            (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kSuccess}, {3, WcStatus::kBadRespErr}}));
  // After completion the application may reuse the memory.
  std::memset(peer.memory.data(), 0x22, kLarge);
  peer.reads = true;
  peer.settle();
  auto sent = peer.ulpdus();
  std::erase_if(sent, [](const Bytes& one) { return opcode_of(one) == RdmapOpcode::kReadRequest; });
  ASSERT_EQ(sent.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(sent[i].size(), UntaggedHeader::kWireSize + kLarge);
    EXPECT_EQ(sent[i].back(), std::byte{0x11});
  }
  EXPECT_EQ(opcode_of(sent[2]), RdmapOpcode::kTerminate);
}

TEST_P(LocalFailure, WhatTheEndOfTheStreamCutsDoesNotSucceed) {
  Sge bad = sge(8);
  bad.lkey ^= 1;
  ASSERT_EQ(send(1, sge(kLarge)), 0);
  ASSERT_EQ(send(2, bad), 0);
  transmit(100);
  EXPECT_TRUE(peer.dut.qp->end_stream(StreamEnd::kReset));
  EXPECT_EQ(sends(), (Brief{{1, WcStatus::kRetryExcErr}, {2, WcStatus::kWrFlushErr}}));
  peer.reads = false;
}

// 5040-7.1-a
TEST_P(LocalFailure, AnswerThatCannotBeReadGivesAnEvent) {
  ASSERT_EQ(read(1), 0);
  transmit(kLarge);
  peer.reads = false;
  peer.send(read_request(
      {.sink_stag = STag{9}, .size = kLarge, .source_stag = peer.stag(), .source_to = peer.base()},
      1));
  fault();
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(sends(), (Brief{{1, WcStatus::kWrFlushErr}})) << "was not involved";
  EXPECT_TRUE(peer.dut.qp->transmitter().finished());
  peer.ulpdus();
}

// No answer can come any more, so the Read, which is the oldest, says why as well.
TEST_P(LocalFailure, RequestThatCannotBeReadFailsItsCompletion) {
  ASSERT_EQ(read(1), 0);
  transmit(kLarge);
  ASSERT_EQ(send(2, sge(kLarge)), 0);
  ASSERT_EQ(send(3, sge(kLarge)), 0);
  fault();
  EXPECT_TRUE(peer.dut.events.empty());
  EXPECT_EQ(
      sends(),
      (Brief{{1, WcStatus::kLocProtErr}, {2, WcStatus::kLocProtErr}, {3, WcStatus::kWrFlushErr}}));
  peer.ulpdus();
}

INSTANTIATE_TEST_SUITE_P(Acknowledged, LocalFailure, ::testing::Bool());

// The peer's messages were good: the Terminate shows none of them. RFC 5040-4.8-p, 5040-7.1-a.
TEST(ReceiveFault, AFullCompletionQueueShowsNoHeader) {
  RawPeer peer;
  std::optional<TerminateHeader> terminate;
  for (uint32_t msn = 1; !terminate && msn < 1000; ++msn) {
    peer.post_receive(msn, 100);
    peer.send(send_message(msn, 50));
    terminate = peer.terminate();
  }
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kRdmapLocalCatastrophic);
  EXPECT_FALSE(terminate->has_ddp_header);
}

// The kernel cannot write to the memory where a segment's payload belongs.
TEST(ReceiveFault, EndsTheStreamOnce) {
  RawPeer peer;
  peer.post_receive(5, 100);
  const auto fault = [&peer] {
    const auto side = peer.dut.qp->receive_side().lock_exclusive();
    return peer.dut.qp->receiver().fault();
  };
  EXPECT_EQ(fault(), kRxFailed);
  EXPECT_EQ(fault(), kRxNothing);
  peer.settle();
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kRdmapLocalCatastrophic);
  EXPECT_FALSE(terminate->has_ddp_header);
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
  ASSERT_EQ(peer.dut.receives().size(), 1u);
}

}  // namespace
}  // namespace uwarp::sim
