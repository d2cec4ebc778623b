// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two queue pairs count in the slots that uwarp-stat reads (docs/observability.md).
#include <gtest/gtest.h>

#include <array>

#include "base/bytes.h"
#include "counters/page_layout.h"
#include "protocol/mpa/fpdu.h"
#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

QpConfig counted(QueuePairSlot& slot) {
  QpConfig shape = End::default_shape();
  shape.slot = &slot;
  return shape;
}

/// Messages by kind, in the order of MessageKind.
using Messages = std::array<uint64_t, kMessageKinds>;

Messages messages(const Counter (&counters)[kMessageKinds]) {
  Messages found{};
  for (size_t i = 0; i < kMessageKinds; ++i) found[i] = counters[i].get();
  return found;
}

uint64_t fpdus(const Pipe& pipe) {
  uint64_t found = 0;
  for (size_t at = 0; at < pipe.log.size(); at += fpdu_size(load_be16(&pipe.log[at]))) ++found;
  return found;
}

struct Counted : testing::Test {
  Sge here(size_t length) { return Pair::sge(source, source_region, 0, length); }
  Sge there(size_t length) { return Pair::sge(sink, sink_region, 0, length); }
  void post(SendOpcode opcode, size_t length) {
    const Sge sge = here(length);
    ASSERT_EQ(pair.a.post(opcode, 1, {&sge, 1}, sink.address(), sink_region->key.load()), 0);
  }

  QueuePairSlot of_a, of_b;
  Pair pair{1, counted(of_a), counted(of_b)};
  GuardedMemory source{200000}, sink{200000};
  MemoryRegion* source_region = pair.reg(pair.a, source, kAllAccess);
  MemoryRegion* sink_region = pair.reg(pair.b, sink, kAllAccess);
};

TEST_F(Counted, MessagesFpdusAndBytesOfBothDirections) {
  pair.chunk_max = 5000;
  pair.connect({.mulpdu = 1442});
  for (int i = 0; i < 3; ++i) {
    const Sge sink_sge = there(5000);
    ASSERT_EQ(pair.b.qp->post_recv(1, {&sink_sge, 1}), 0);
  }
  post(SendOpcode::kSend, 5000);
  post(SendOpcode::kSend, 0);
  for (int i = 0; i < 4; ++i) post(SendOpcode::kWrite, 10000);
  post(SendOpcode::kWriteWithImm, 10);
  for (int i = 0; i < 2; ++i) post(SendOpcode::kRead, 100000);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 1, here(8), sink.address(),
                               sink_region->key.load(), 1),
            0);
  pair.run();
  ASSERT_EQ(pair.a.sends().size(), 10u);

  // The RTR counts as a Write too.
  EXPECT_EQ(messages(of_a.transmit.messages), (Messages{2, 6, 2, 0, 1, 0, 1, 0}));
  EXPECT_EQ(messages(of_b.receive.messages), (Messages{2, 6, 2, 0, 1, 0, 1, 0}));
  EXPECT_EQ(messages(of_b.transmit.messages), (Messages{0, 0, 0, 2, 0, 1, 0, 0}));
  EXPECT_EQ(messages(of_a.receive.messages), (Messages{0, 0, 0, 2, 0, 1, 0, 0}));
  EXPECT_EQ(of_a.transmit.fpdus.get(), fpdus(pair.a_to_b));
  EXPECT_EQ(of_b.receive.fpdus.get(), fpdus(pair.a_to_b));
  EXPECT_EQ(of_b.transmit.fpdus.get(), fpdus(pair.b_to_a));
  EXPECT_EQ(of_a.receive.fpdus.get(), fpdus(pair.b_to_a));
  EXPECT_EQ(of_a.transmit.bytes.get(), pair.a_to_b.log.size());
  EXPECT_EQ(of_b.receive.bytes.get(), pair.a_to_b.log.size());
  EXPECT_EQ(of_b.transmit.bytes.get(), pair.b_to_a.log.size());
  EXPECT_EQ(of_a.receive.bytes.get(), pair.b_to_a.log.size());
  EXPECT_EQ(of_a.transmit.posted.get(), 10u);
  EXPECT_EQ(of_a.transmit.retired.get(), 10u);
}

TEST_F(Counted, StreamsByTheirEnd) {
  struct Case {
    StreamEnd end;
    uint64_t fins, resets, timeouts;
  };
  for (const Case& each :
       {Case{StreamEnd::kFin, 1, 0, 0}, Case{StreamEnd::kReset, 0, 1, 0},
        Case{StreamEnd::kTimeout, 0, 0, 1}, Case{StreamEnd::kLocalClose, 0, 0, 0}}) {
    QueuePairSlot slot, other;
    Pair one(1, counted(slot), counted(other));
    one.connect();
    one.run();
    one.a.qp->end_stream(each.end);
    EXPECT_EQ(slot.stream.connections.get(), 1u);
    EXPECT_EQ(slot.stream.fins.get(), each.fins);
    EXPECT_EQ(slot.stream.resets.get(), each.resets);
    EXPECT_EQ(slot.stream.timeouts.get(), each.timeouts);
  }
}

TEST_F(Counted, FailuresOncePerEnd) {
  pair.connect();
  post(SendOpcode::kSend, 1000);  // longer than the receive buffer
  const Sge small = there(10);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&small, 1}), 0);
  pair.run();
  EXPECT_EQ(of_a.stream.failures.get(), 1u);
  EXPECT_EQ(of_b.stream.failures.get(), 1u);
  EXPECT_EQ(messages(of_b.transmit.messages), (Messages{0, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(messages(of_a.receive.messages), (Messages{0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST_F(Counted, AnEndInOrderIsNoFailure) {
  pair.connect();
  pair.run();
  pair.a.qp->to_error();
  pair.b.qp->end_stream(StreamEnd::kFin);
  EXPECT_EQ(of_a.stream.failures.get(), 0u);
  EXPECT_EQ(of_b.stream.failures.get(), 0u);
}

TEST_F(Counted, FlushedWorkOfBothQueues) {
  const Sge some = there(10);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&some, 1}), 0);
  ASSERT_EQ(pair.b.qp->post_recv(2, {&some, 1}), 0);
  pair.connect();
  pair.run();
  pair.a.qp->to_sqd(false);
  for (int i = 0; i < 3; ++i) post(SendOpcode::kWrite, 10);
  pair.a.qp->to_error();
  pair.b.qp->to_error();
  EXPECT_EQ(of_a.transmit.flushed.get(), 3u);
  EXPECT_EQ(of_b.receive.flushed.get(), 2u);
  for (const WorkCompletion& one : pair.b.receives()) EXPECT_EQ(one.vendor_err, 0u);
  for (const WorkCompletion& one : pair.a.sends()) EXPECT_EQ(one.vendor_err, 0u);
  EXPECT_EQ(of_a.transmit.retired.get(), 3u);
}

TEST_F(Counted, MessagesThatWaitForAReceive) {
  pair.connect();
  pair.run();
  const auto expire = [&] {
    const auto side = pair.b.qp->receive_side().lock_exclusive();
    return pair.b.qp->receiver().expire();
  };
  EXPECT_EQ(expire(), kRxNothing) << "nothing waits";
  post(SendOpcode::kSend, 10);
  pair.run();
  EXPECT_EQ(of_b.receive.held.get(), 1u);
  EXPECT_EQ(of_b.receive.rnr_timeouts.get(), 0u);
  EXPECT_NE(expire(), 0u);
  EXPECT_EQ(of_b.receive.rnr_timeouts.get(), 1u);
}

TEST(CountedCrc, AnErrorCountsOnce) {
  QueuePairSlot of_a, of_b;
  Pair pair(1, counted(of_a), counted(of_b));
  pair.connect({.crc = true});
  pair.run();
  // An empty tagged segment with a wrong CRC.
  const std::byte spoilt[20] = {std::byte{0}, std::byte{14}, std::byte{0xC1}, std::byte{0x40}};
  pair.a_to_b.bytes.insert(pair.a_to_b.bytes.end(), std::begin(spoilt), std::end(spoilt));
  pair.run();
  EXPECT_EQ(of_b.receive.crc_errors.get(), 1u);
  EXPECT_EQ(of_a.receive.crc_errors.get(), 0u);
}

TEST_F(Counted, TheStateIsShown) {
  const auto shown = [this] { return static_cast<QpState>(of_a.state.load()); };
  EXPECT_EQ(shown(), QpState::kInit);
  pair.connect();
  EXPECT_EQ(shown(), QpState::kRts);
  pair.a.qp->to_sqd(false);
  EXPECT_EQ(shown(), QpState::kSqd);
  pair.a.qp->to_error();
  EXPECT_EQ(shown(), QpState::kErr);
}

}  // namespace
}  // namespace uwarp::sim
