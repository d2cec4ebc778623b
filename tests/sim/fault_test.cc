// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Faults that UWARP_FAULT asks for inside a stream: what the applications of both ends see, with
// completions by iWARP's rules and with acknowledged ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "inject/fault_script.h"
#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

std::shared_ptr<FaultScript> script_of(std::string_view text) {
  std::string error;
  const FaultPlan plan = FaultPlan::parse(text, error);
  EXPECT_EQ(error, "");
  return std::make_shared<FaultScript>(plan, 1, nullptr);
}

QpConfig shape_with(bool acknowledged, std::shared_ptr<FaultScript> script) {
  QpConfig shape = End::default_shape();
  shape.acknowledged = acknowledged;
  shape.script = std::move(script);
  return shape;
}

std::vector<WcStatus> statuses(const std::vector<WorkCompletion>& completions) {
  std::vector<WcStatus> all;
  for (const WorkCompletion& one : completions) all.push_back(one.status);
  return all;
}

constexpr WcStatus kOk = WcStatus::kSuccess;
constexpr WcStatus kFlushed = WcStatus::kWrFlushErr;

/// The faults are injected at `a`.
struct Faulty {
  Faulty(bool acknowledged, std::string_view faults, bool crc = false)
      : script(script_of(faults)),
        pair(3, shape_with(acknowledged, script), shape_with(acknowledged, nullptr)) {
    StreamConfig config;
    config.crc = crc;
    if (acknowledged) {
      config.ord = 16;
      config.ird = config.read_depth = 17;
    }
    pair.connect(config);
    here_region = pair.reg(pair.a, here, kAllAccess);
    there_region = pair.reg(pair.b, there, kAllAccess);
    pair.run();
  }
  ~Faulty() {
    EXPECT_TRUE(here.intact());
    EXPECT_TRUE(there.intact());
  }
  void send(uint64_t id) {
    const Sge sge = Pair::sge(here, here_region, 0, 64);
    EXPECT_EQ(pair.a.post(SendOpcode::kSend, id, {&sge, 1}), 0);
  }
  void write(uint64_t id, uint32_t length = 64) {
    const Sge sge = Pair::sge(here, here_region, 0, length);
    EXPECT_EQ(
        pair.a.post(SendOpcode::kWrite, id, {&sge, 1}, there.address(), there_region->key.load()),
        0);
  }
  void read(uint64_t id) {
    const Sge sge = Pair::sge(here, here_region, 0, 64);
    EXPECT_EQ(
        pair.a.post(SendOpcode::kRead, id, {&sge, 1}, there.address(), there_region->key.load()),
        0);
  }
  void receive(End& end, GuardedMemory& memory, MemoryRegion* region, uint64_t id) {
    const Sge sge = Pair::sge(memory, region, 4096, 64);
    EXPECT_EQ(end.qp->post_recv(id, {&sge, 1}), 0);
  }
  void receives(int count) {
    for (int i = 0; i < count; ++i) receive(pair.b, there, there_region, 100 + i);
  }

  std::shared_ptr<FaultScript> script;
  Pair pair;
  GuardedMemory here{16384}, there{16384};
  MemoryRegion* here_region;
  MemoryRegion* there_region;
};

class Faults : public ::testing::TestWithParam<bool> {
 protected:
  bool acknowledged() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Rules, Faults, ::testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "Acknowledged" : "Iwarp");
});

// `event`: whether `b`, the peer, also gets an event. It does if the peer is the one that refuses
// the request.
TEST_P(Faults, ARequestCompletesWithTheStatusAskedFor) {
  for (const auto& [name, status, event] :
       {std::tuple{"REM_ACCESS_ERR", WcStatus::kRemAccessErr, true},
        {"LOC_PROT_ERR", WcStatus::kLocProtErr, false},
        {"RNR_RETRY_EXC_ERR", WcStatus::kRnrRetryExcErr, false}}) {
    Faulty one(acknowledged(), std::string("wc-error op=write nth=2 status=") + name);
    one.receives(2);
    one.send(1);
    one.write(2);
    one.read(3);
    one.write(4);
    one.write(5);
    one.send(6);
    one.pair.run();
    const auto done = one.pair.a.sends();
    EXPECT_EQ(statuses(done), (std::vector{kOk, kOk, kOk, status, kFlushed, kFlushed})) << name;
    EXPECT_EQ(done[3].wr_id, 4u);
    EXPECT_EQ(done[3].opcode, WcOpcode::kWrite);
    EXPECT_EQ(one.pair.a.qp->state(), QpState::kErr);
    EXPECT_EQ(one.pair.a.events.size(), event ? 1u : 0u);
    // The peer has received the earlier message, and then a Terminate.
    EXPECT_EQ(statuses(one.pair.b.receives()), (std::vector{kOk, kFlushed}));
    EXPECT_EQ(one.pair.b.events, (std::vector{QpEvent::kFatal}));
    EXPECT_EQ(one.pair.b.qp->state(), QpState::kErr);
  }
}

// A rule for one kind of request does not affect other kinds.
TEST_P(Faults, ARequestIsKnownByItsKind) {
  const char* const kinds[] = {"send", "write", "read", "atomic"};
  for (size_t kind = 0; kind < std::size(kinds); ++kind) {
    Faulty one(acknowledged(), std::string("wc-error nth=1 status=LOC_PROT_ERR op=") + kinds[kind]);
    one.receives(1);
    one.send(0);
    one.write(1);
    one.read(2);
    const Sge result = Pair::sge(one.here, one.here_region, 0, 8);
    ASSERT_EQ(one.pair.a.post_atomic(SendOpcode::kFetchAdd, 3, result, one.there.address(),
                                     one.there_region->key.load(), 1),
              0);
    one.pair.run();
    const auto done = one.pair.a.sends();
    ASSERT_EQ(done.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(done[i].status, i < kind    ? kOk
                                : i == kind ? WcStatus::kLocProtErr
                                            : kFlushed)
          << kinds[kind] << ", request " << i;
  }
}

TEST_P(Faults, AReceiveCompletesWithTheStatusAskedFor) {
  Faulty one(acknowledged(), "wc-error op=recv nth=2 status=LOC_LEN_ERR");
  for (uint64_t id = 7; id < 10; ++id) one.receive(one.pair.a, one.here, one.here_region, id);
  const Sge sge = Pair::sge(one.there, one.there_region, 0, 64);
  one.write(1);  // the peer may not send before it has received something
  one.pair.run();
  for (uint64_t id = 0; id < 3; ++id)
    EXPECT_EQ(one.pair.b.post(SendOpcode::kSend, id, {&sge, 1}), 0);
  one.pair.run();
  const auto done = one.pair.a.receives();
  EXPECT_EQ(statuses(done), (std::vector{kOk, WcStatus::kLocLenErr, kFlushed}));
  EXPECT_EQ(done[1].wr_id, 8u);
  EXPECT_EQ(one.pair.a.events, (std::vector{QpEvent::kFatal}));
  EXPECT_EQ(one.pair.b.events.empty(), acknowledged()) << "its completion tells";
}

TEST_P(Faults, ATerminateOfAnyCode) {
  Faulty one(acknowledged(), "terminate code=0/1/02 after=1");
  one.receives(2);
  one.send(1);
  one.send(2);
  one.pair.run();
  EXPECT_EQ(statuses(one.pair.a.sends()), (std::vector{kOk, kFlushed}));
  EXPECT_EQ(one.pair.a.events, (std::vector{QpEvent::kAccessError}));
  EXPECT_EQ(statuses(one.pair.b.receives()), (std::vector{kOk, kFlushed}));
  EXPECT_EQ(one.pair.b.events, (std::vector{QpEvent::kFatal}));
  EXPECT_EQ(one.pair.b.qp->failure().terminate.code, TerminateCode::kRdmapAccess);
  EXPECT_TRUE(one.pair.b.qp->failure().by_peer);
  one.pair.a_to_b.log.clear();  // the Terminate has no headers, because no message caused it
}

TEST_P(Faults, ATerminateForAMessageThatCame) {
  for (const auto& [text, code] : {std::pair{"1/2/05", TerminateCode::kDdpUntaggedTooLong},
                                   std::pair{"0/0/00", TerminateCode::kRdmapLocalCatastrophic},
                                   std::pair{"2/0/02", TerminateCode::kMpaCrc}}) {
    Faulty one(acknowledged(), std::string("terminate op=recv code=") + text);
    one.receive(one.pair.a, one.here, one.here_region, 7);
    one.write(1);
    one.pair.run();
    const Sge sge = Pair::sge(one.there, one.there_region, 0, 64);
    EXPECT_EQ(one.pair.b.post(SendOpcode::kSend, 1, {&sge, 1}), 0);
    one.pair.run();
    EXPECT_EQ(statuses(one.pair.a.receives()), (std::vector{kFlushed})) << text;
    EXPECT_EQ(one.pair.b.qp->failure().terminate.code, code);
    EXPECT_EQ(one.pair.b.events.empty(), acknowledged());
  }
}

// The sender's status: REM_OP_ERR by iWARP's rules, RNR by InfiniBand's.
TEST_P(Faults, AMessageFindsNoReceive) {
  Faulty one(acknowledged(), "no-receive nth=2");
  for (uint64_t id = 7; id < 10; ++id) one.receive(one.pair.a, one.here, one.here_region, id);
  one.write(1);
  one.pair.run();
  const Sge sge = Pair::sge(one.there, one.there_region, 0, 64);
  EXPECT_EQ(one.pair.b.post(SendOpcode::kSend, 1, {&sge, 1}), 0);
  one.pair.run();
  EXPECT_EQ(one.pair.b.post(SendOpcode::kSend, 2, {&sge, 1}), 0);
  one.pair.run();
  EXPECT_EQ(statuses(one.pair.a.receives()), (std::vector{kOk, kFlushed, kFlushed}));
  EXPECT_EQ(one.pair.b.qp->failure().terminate.code, TerminateCode::kDdpUntaggedNoBuffer);
  const auto sends = statuses(one.pair.b.sends());
  EXPECT_EQ(sends, (std::vector{kOk, acknowledged() ? WcStatus::kRnrRetryExcErr : kOk}));
}

TEST_P(Faults, AReceiveComesLate) {
  Faulty one(acknowledged(), "no-receive nth=1 for=7ms");
  one.receive(one.pair.a, one.here, one.here_region, 7);
  one.write(1);
  one.pair.run();
  const Sge sge = Pair::sge(one.there, one.there_region, 0, 64);
  EXPECT_EQ(one.pair.b.post(SendOpcode::kSend, 1, {&sge, 1}), 0);
  one.pair.run();
  EXPECT_TRUE(one.pair.a.qp->receiver().rnr_blocked());
  EXPECT_TRUE(one.pair.a.receives().empty());
  EXPECT_EQ(one.script->deadline_ns(1000), 7'001'000u);
  EXPECT_EQ(one.script->release(7'001'000), FaultScript::kReceive);
  {
    const auto lock = one.pair.a.qp->receive_side().lock_exclusive();
    (void)one.pair.a.qp->receiver().resume(one.pair.a.staging);
    if (!one.pair.a.staging) one.pair.a.staging = std::make_unique<StagingBuffer>();
  }
  one.pair.run();
  EXPECT_EQ(statuses(one.pair.a.receives()), (std::vector{kOk}));
  EXPECT_EQ(statuses(one.pair.b.sends()), (std::vector{kOk}));
}

TEST_P(Faults, AStallHoldsEverythingThatIsSent) {
  Faulty one(acknowledged(), "stall after=1 for=20ms");
  one.receives(3);
  for (uint64_t id = 1; id < 4; ++id) one.send(id);
  one.pair.run();
  EXPECT_EQ(one.pair.b.receives().size(), 1u);
  // An unacknowledged request does not complete either.
  EXPECT_EQ(one.pair.a.sends().size(), acknowledged() ? 0u : 1u);
  EXPECT_FALSE(one.pair.a.qp->transmitter().idle());
  EXPECT_EQ(one.script->release(one.script->deadline_ns(5)), FaultScript::kSend);
  one.pair.run();
  EXPECT_EQ(one.pair.b.receives().size(), 2u);
  EXPECT_EQ(one.pair.a.sends().size(), acknowledged() ? 3u : 2u);
  EXPECT_TRUE(one.pair.a.qp->transmitter().idle());
}

// The connection is reset only after all earlier requests have completed.
TEST_P(Faults, AResetWaitsForWhatWentBefore) {
  Faulty one(acknowledged(), "reset after=3");
  one.receives(3);
  one.send(1);
  one.read(2);
  one.write(3, 8192);
  one.send(4);
  one.pair.chunk_max = 100;
  one.pair.run();
  EXPECT_EQ(statuses(one.pair.a.sends()), (std::vector{kOk, kOk, kOk}));
  EXPECT_EQ(one.pair.b.receives().size(), 1u);
  EXPECT_TRUE(one.script->take_reset());
  EXPECT_TRUE(one.pair.a.qp->end_stream(StreamEnd::kReset));
  EXPECT_EQ(statuses(one.pair.a.sends()), (std::vector{WcStatus::kRetryExcErr}));
  // Between InfiniBand adapters the request says it, and there is no event.
  EXPECT_EQ(one.pair.a.events.empty(), acknowledged());
}

// RFC 5044 8: the receiver of an FPDU with a wrong CRC answers with a Terminate of the MPA layer.
TEST_P(Faults, ACorruptFpduIsFound) {
  for (const uint32_t length : {0u, 64u, 8192u}) {
    Faulty one(acknowledged(), "corrupt op=write nth=2", true);
    one.write(1, 64);
    one.write(2, length);
    one.write(3, 64);
    one.pair.run();
    EXPECT_EQ(one.pair.b.qp->state(), QpState::kErr);
    EXPECT_EQ(one.pair.a.qp->state(), QpState::kErr);
    EXPECT_EQ(one.pair.a.qp->failure().terminate.code, TerminateCode::kMpaCrc);
    EXPECT_EQ(one.pair.b.events, (std::vector{QpEvent::kFatal}));
    EXPECT_EQ(one.pair.a.events.empty(), acknowledged());
    const auto sent = one.pair.a.sends();
    EXPECT_EQ(sent.size(), 3u);
    const auto failed =
        std::ranges::find_if(sent, [](const WorkCompletion& each) { return each.status != kOk; });
    if (acknowledged()) {
      EXPECT_EQ(failed->status, WcStatus::kRemOpErr);
    }
    one.pair.a_to_b.log.clear();  // this one FPDU is malformed on purpose
  }
}

TEST_P(Faults, WithoutCrcADamagedFpduIsNotFound) {
  Faulty one(acknowledged(), "corrupt nth=1");
  one.write(1, 64);
  one.pair.run();
  EXPECT_EQ(statuses(one.pair.a.sends()), (std::vector{kOk}));
}

// The same requests fail in the same way wherever the bytes are cut.
TEST_P(Faults, ProbabilityIsTheSameHoweverBytesAreCut) {
  std::vector<std::vector<WcStatus>> seen;
  for (const size_t cut : {0, 1, 7, 100}) {
    Faulty one(acknowledged(), "seed=5; wc-error p=0.05 status=REM_OP_ERR");
    one.pair.chunk_max = cut;
    std::vector<WcStatus> all;
    for (uint64_t id = 0; id < 100; ++id) {
      one.write(id, 8);
      one.pair.run();
      for (const WcStatus status : statuses(one.pair.a.sends())) all.push_back(status);
    }
    seen.push_back(all);
  }
  EXPECT_NE(std::find(seen[0].begin(), seen[0].end(), WcStatus::kRemOpErr), seen[0].end());
  for (const auto& each : seen) EXPECT_EQ(each, seen[0]);
}

}  // namespace
}  // namespace uwarp::sim
