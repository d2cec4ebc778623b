// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two queue pairs report to a trace: requests, receives and FPDUs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/bytes.h"
#include "counters/trace_sink.h"
#include "protocol/mpa/fpdu.h"
#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

using Kind = TraceStep::Kind;
using Phase = TraceStep::Phase;

struct Recorder : TraceSink {
  void note(const TraceStep& step) noexcept override { steps.push_back(step); }
  std::vector<TraceStep> of(Kind kind) const {
    std::vector<TraceStep> found;
    for (const TraceStep& step : steps)
      if (step.kind == kind) found.push_back(step);
    return found;
  }
  /// All kinds but FPDUs, which have tests of their own.
  std::vector<Kind> kinds() const {
    std::vector<Kind> found;
    for (const TraceStep& step : steps)
      if (step.kind != Kind::kFpduSent && step.kind != Kind::kFpduReceived)
        found.push_back(step.kind);
    return found;
  }
  std::vector<TraceStep> steps;
};

constexpr uint32_t kNumberOfA = 17, kNumberOfB = 33;

QpConfig traced(Recorder& recorder, uint32_t number) {
  QpConfig shape = End::default_shape();
  shape.number = Qpn{number};
  shape.trace = &recorder;
  shape.signal_all = false;
  return shape;
}

struct Traced : testing::Test {
  explicit Traced(QpConfig (*change)(QpConfig) = [](QpConfig shape) { return shape; })
      : pair(1, change(traced(at_a, kNumberOfA)), change(traced(at_b, kNumberOfB))) {
    source_region = pair.reg(pair.a, source, kAllAccess);
    sink_region = pair.reg(pair.b, sink, kAllAccess);
  }
  Sge from(size_t length) { return Pair::sge(source, source_region, 0, length); }
  Sge to(size_t length) { return Pair::sge(sink, sink_region, 0, length); }

  Recorder at_a, at_b;
  Pair pair;
  GuardedMemory source{200000}, sink{200000};
  MemoryRegion* source_region;
  MemoryRegion* sink_region;
};

// An FPDU as its bytes show it: the opcode, and the length of the ULPDU.
struct OnTheWire {
  uint8_t opcode;
  uint64_t bytes;
  bool operator==(const OnTheWire&) const = default;
};

[[maybe_unused]] std::ostream& operator<<(std::ostream& out, const OnTheWire& fpdu) {
  return out << "opcode " << unsigned{fpdu.opcode} << ", " << fpdu.bytes << " bytes";
}

std::vector<OnTheWire> fpdus(const Pipe& pipe) {
  std::vector<OnTheWire> found;
  for (size_t at = 0; at < pipe.log.size();) {
    const uint16_t length = load_be16(&pipe.log[at]);
    found.push_back({static_cast<uint8_t>(static_cast<uint8_t>(pipe.log[at + 3]) & 0xF), length});
    at += fpdu_size(length);
  }
  return found;
}

std::vector<OnTheWire> fpdus(const std::vector<TraceStep>& steps, uint32_t number) {
  std::vector<OnTheWire> found;
  for (const TraceStep& step : steps) {
    EXPECT_EQ(step.queue_pair, number);
    found.push_back({step.opcode, step.bytes});
  }
  return found;
}

TEST_F(Traced, ASendRecordsEachStepOnce) {
  pair.connect();
  pair.run();
  const Sge here = from(100), there = to(300);
  ASSERT_EQ(pair.b.qp->post_recv(8, {{there, there}}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 7, {&here, 1}), 0);
  pair.run();

  EXPECT_EQ(at_a.kinds(), (std::vector{Kind::kSendPosted, Kind::kSendBegun, Kind::kSendWithKernel,
                                       Kind::kSendCompleted}));
  const TraceStep posted = at_a.of(Kind::kSendPosted).at(0);
  EXPECT_EQ(posted.opcode, static_cast<uint8_t>(WcOpcode::kSend));
  EXPECT_EQ(posted.bytes, 100u);
  EXPECT_EQ(posted.wr_id, 7u);
  for (const TraceStep& step : at_a.steps) {
    EXPECT_EQ(step.queue_pair, kNumberOfA);
    EXPECT_EQ(step.position, 0u);
  }
  const TraceStep sent = at_a.of(Kind::kSendCompleted).at(0);
  EXPECT_EQ(sent.opcode, static_cast<uint8_t>(WcOpcode::kSend));
  EXPECT_EQ(sent.status, static_cast<uint32_t>(WcStatus::kSuccess));
  EXPECT_EQ(sent.phase, Phase::kWithKernel);
  EXPECT_TRUE(sent.reported);

  EXPECT_EQ(at_b.kinds(),
            (std::vector{Kind::kReceivePosted, Kind::kReceiveTaken, Kind::kReceiveCompleted}));
  EXPECT_EQ(at_b.of(Kind::kReceivePosted).at(0).bytes, 600u);
  for (Kind kind : {Kind::kReceivePosted, Kind::kReceiveTaken, Kind::kReceiveCompleted}) {
    const TraceStep step = at_b.of(kind).at(0);
    EXPECT_EQ(step.queue_pair, kNumberOfB);
    EXPECT_EQ(step.position, 0u);
    EXPECT_EQ(step.wr_id, 8u);
    EXPECT_FALSE(step.reported) << "not of a shared queue";
  }
  const TraceStep received = at_b.of(Kind::kReceiveCompleted).at(0);
  EXPECT_EQ(received.bytes, 100u);
  EXPECT_EQ(received.status, static_cast<uint32_t>(WcStatus::kSuccess));
}

TEST_F(Traced, PositionsCountRequestsAndReceives) {
  pair.connect();
  const Sge here = from(10), there = to(10);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(pair.b.qp->post_recv(20 + i, {&there, 1}), 0);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, 10 + i, {&here, 1}), 0);
  }
  pair.run();
  for (Kind kind :
       {Kind::kSendPosted, Kind::kSendBegun, Kind::kSendWithKernel, Kind::kSendCompleted,
        Kind::kReceivePosted, Kind::kReceiveTaken, Kind::kReceiveCompleted}) {
    const auto steps = (kind < Kind::kReceivePosted ? at_a : at_b).of(kind);
    ASSERT_EQ(steps.size(), 3u) << static_cast<int>(kind);
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(steps[i].position, i) << static_cast<int>(kind);
  }
  EXPECT_EQ(at_a.of(Kind::kSendPosted).at(2).wr_id, 12u);
  EXPECT_EQ(at_b.of(Kind::kReceiveTaken).at(1).wr_id, 21u);
}

TEST_F(Traced, WhatIsNotSignalledIsNotReported) {
  pair.connect();
  const Sge here = from(10);
  ASSERT_EQ(
      pair.a.post(SendOpcode::kWrite, 1, {&here, 1}, sink.address(), sink_region->key.load(), 0),
      0);
  pair.run();
  const TraceStep done = at_a.of(Kind::kSendCompleted).at(0);
  EXPECT_FALSE(done.reported);
  EXPECT_EQ(done.opcode, static_cast<uint8_t>(WcOpcode::kWrite));
}

TEST_F(Traced, AReadIsAnswered) {
  pair.connect();
  const Sge here = from(10);
  const uint32_t key = sink_region->key.load();
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&here, 1}, sink.address(), key), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {&here, 1}, sink.address(), key), 0);
  pair.run();
  EXPECT_EQ(at_a.of(Kind::kSendPosted).at(1).opcode, static_cast<uint8_t>(WcOpcode::kRead));
  const auto answers = at_a.of(Kind::kSendAnswered);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].position, 1u);
  EXPECT_EQ(answers[0].queue_pair, kNumberOfA);
  EXPECT_EQ(at_a.of(Kind::kSendCompleted).at(1).opcode, static_cast<uint8_t>(WcOpcode::kRead));
  EXPECT_TRUE(at_b.of(Kind::kSendAnswered).empty());
}

// Large and small messages, whole and in parts, in one batch and in several.
TEST_F(Traced, EachFpduIsRecordedByBothEnds) {
  for (const size_t cut : {size_t{0}, size_t{1000}}) {
    SCOPED_TRACE(cut);
    if (cut == 0) pair.connect({.mulpdu = 30000});
    pair.chunk_max = cut;
    const uint32_t key = sink_region->key.load();
    for (const size_t length : {10, 200000, 0, 70000, 1, 5000}) {
      const Sge here = from(length);
      ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&here, 1}, sink.address(), key, 0), 0);
      ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {&here, 1}, sink.address(), key, 0), 0);
    }
    pair.run();
  }
  EXPECT_EQ(fpdus(at_a.of(Kind::kFpduSent), kNumberOfA), fpdus(pair.a_to_b));
  EXPECT_EQ(fpdus(at_b.of(Kind::kFpduReceived), kNumberOfB), fpdus(pair.a_to_b));
  EXPECT_EQ(fpdus(at_b.of(Kind::kFpduSent), kNumberOfB), fpdus(pair.b_to_a));
  EXPECT_EQ(fpdus(at_a.of(Kind::kFpduReceived), kNumberOfA), fpdus(pair.b_to_a));
}

// One request is half sent, one is in the batch behind it, one has not started.
TEST_F(Traced, AFlushRecordsHowFarEachHadCome) {
  pair.connect();
  pair.run();
  const Sge large = from(100000), small = from(10), there = to(10);
  const uint32_t key = sink_region->key.load();
  ASSERT_EQ(pair.b.qp->post_recv(9, {&there, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 1, {&small, 1}, sink.address(), key), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&large, 1}, sink.address(), key), 0);
  pair.chunk_max = 100;
  while (at_a.of(Kind::kSendWithKernel).empty()) pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  pair.a.qp->to_sqd(false);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 3, {&small, 1}, sink.address(), key), 0);
  pair.a.qp->to_error();
  pair.b.qp->to_error();

  const auto flushed = at_a.of(Kind::kSendCompleted);
  ASSERT_EQ(flushed.size(), 3u);
  EXPECT_EQ(flushed[0].phase, Phase::kWithKernel);
  EXPECT_EQ(flushed[1].phase, Phase::kBegun);
  EXPECT_EQ(flushed[2].phase, Phase::kWaiting);
  for (const TraceStep& step : flushed)
    EXPECT_EQ(step.status, static_cast<uint32_t>(WcStatus::kWrFlushErr));
  EXPECT_EQ(at_a.of(Kind::kSendBegun).size(), 2u)
      << "the last request had not started when the stream ended";

  const TraceStep receive = at_b.of(Kind::kReceiveCompleted).at(0);
  EXPECT_EQ(receive.phase, Phase::kWaiting);
  EXPECT_EQ(receive.status, static_cast<uint32_t>(WcStatus::kWrFlushErr));
  EXPECT_EQ(receive.wr_id, 9u);
}

TEST(TracedShared, AReceiveOfASharedQueueIsMarked) {
  SharedReceiveQueue shared(4, 1, nullptr);
  Recorder at_b;
  QpConfig shape = traced(at_b, kNumberOfB);
  shape.srq = &shared;
  Pair pair(1, End::default_shape(), shape);
  GuardedMemory memory(100);
  const MemoryRegion* region = pair.reg(pair.b, memory, kAllAccess);
  const Sge there{memory.address(), 100, region->key.load()};
  ASSERT_EQ(shared.post(5, {&there, 1}), 0);
  pair.connect();
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {}), 0);
  pair.run();
  for (Kind kind : {Kind::kReceiveTaken, Kind::kReceiveCompleted}) {
    const TraceStep step = at_b.of(kind).at(0);
    EXPECT_TRUE(step.reported);
    EXPECT_EQ(step.wr_id, 5u);
    EXPECT_EQ(step.queue_pair, kNumberOfB);
  }
}

}  // namespace
}  // namespace uwarp::sim
