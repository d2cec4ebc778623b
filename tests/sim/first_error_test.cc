// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The first failed completion of a queue pair says why, with acknowledgements (the roce persona)
// and without: what came before completes, one request has the reason, the others are flushed.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using Brief = std::vector<std::pair<uint64_t, WcStatus>>;

Brief brief(const std::vector<WorkCompletion>& all) {
  Brief out;
  for (const WorkCompletion& one : all) out.emplace_back(one.wr_id, one.status);
  return out;
}

QpConfig first_error_shape(bool acknowledged) {
  QpConfig shape = End::default_shape();
  shape.acknowledged = acknowledged;
  return shape;
}

/// Two uwarps, which have met as a rendezvous makes them.
struct Connected {
  explicit Connected(bool acknowledged, SharedReceiveQueue* srq = nullptr)
      : pair(5, first_error_shape(acknowledged), with(first_error_shape(acknowledged), srq)) {
    StreamConfig config;
    config.peer_is_uwarp = true;
    config.silent_fin = true;
    config.ord = config.ird = 4;
    config.read_depth = 5;
    pair.connect(config);
    pair.run();
  }
  static QpConfig with(QpConfig shape, SharedReceiveQueue* srq) {
    shape.srq = srq;
    return shape;
  }
  Sge sge(uint32_t length = 8, uint32_t lkey_xor = 0) {
    return {here.address(), length, here_region->key.load() ^ lkey_xor};
  }
  uint32_t rkey() { return there_region->key.load(); }
  void post(uint64_t id, SendOpcode opcode, const Sge& sge, uint64_t offset, uint32_t key,
            uint8_t flags = kSendSignaled) {
    if (is_atomic(opcode))
      ASSERT_EQ(pair.a.post_atomic(opcode, id, sge, there.address() + offset, key, 3, 7), 0);
    else
      ASSERT_EQ(pair.a.post(opcode, id, {&sge, 1}, there.address() + offset, key, flags), 0);
  }
  void post_receives(size_t count) {
    const Sge to = Pair::sge(there, there_region, 4096, 64);
    for (uint64_t id = 100; id != 100 + count; ++id)
      ASSERT_EQ(pair.b.qp->post_recv(id, {&to, 1}), 0);
  }
  /// Lets `a` send what it has, and nothing come back.
  void transmit() {
    Pipe nothing;
    while (pair.step(pair.a, pair.a_to_b, nothing)) {
    }
  }
  uint64_t cell() {
    uint64_t value;
    std::memcpy(&value, there.data(), sizeof value);
    return value;
  }

  Pair pair;
  GuardedMemory here{4096}, there{8192};
  MemoryRegion* here_region = pair.reg(pair.a, here, kAllAccess);
  MemoryRegion* there_region = pair.reg(pair.b, there, kAllAccess | kAccessMwBind);
};

struct FirstError : ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Acknowledged, FirstError, ::testing::Bool());

TEST_P(FirstError, RequestsBeforeALocalErrorComplete) {
  Connected c(GetParam());
  c.post(1, SendOpcode::kRead, c.sge(), 0, c.rkey());
  c.post(2, SendOpcode::kWrite, c.sge(), 0, c.rkey());
  c.post(3, SendOpcode::kSend, c.sge(8, 0x100), 0, 0);
  c.post(4, SendOpcode::kRead, c.sge(), 0, c.rkey());
  c.transmit();
  EXPECT_NE(c.pair.a.qp->state(), QpState::kErr) << "the Read has no answer yet";
  c.pair.run();
  EXPECT_EQ(brief(c.pair.a.sends()), (Brief{{1, WcStatus::kSuccess},
                                            {2, WcStatus::kSuccess},
                                            {3, WcStatus::kLocProtErr},
                                            {4, WcStatus::kWrFlushErr}}));
  EXPECT_TRUE(c.pair.a.events.empty()) << "the completion tells";
}

// The peer's own requests are answered while a request waits for its turn to fail.
TEST_P(FirstError, ARequestThatWaitsToFailHoldsUpNoAnswer) {
  Connected c(GetParam());
  c.post(1, SendOpcode::kRead, c.sge(), 0, c.rkey());
  c.post(2, SendOpcode::kSend, c.sge(8, 0x100), 0, 0);
  c.transmit();
  const Sge to = Pair::sge(c.there, c.there_region, 0, 8);
  ASSERT_EQ(c.pair.b.post(SendOpcode::kRead, 9, {&to, 1}, c.here.address(), c.here_region->key), 0);
  c.pair.step(c.pair.b, c.pair.b_to_a, c.pair.a_to_b);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.b.sends()), (Brief{{9, WcStatus::kSuccess}}));
  EXPECT_EQ(brief(c.pair.a.sends()), (Brief{{1, WcStatus::kSuccess}, {2, WcStatus::kLocProtErr}}));
}

// A window that is bound cannot be bound again: the queue pair of its owner fails, and with it the
// Reads that others have under way.
TEST_P(FirstError, ReadsOfAPeerWhoseBindFails) {
  Connected c(GetParam());
  const MemoryRegion* window =
      *c.pair.regions.add_window(c.pair.b.domain, RegionKind::kWindowType2);
  SendRequest bind;
  bind.opcode = SendOpcode::kBindWindow;
  bind.flags = kSendSignaled;
  bind.rkey = c.pair.regions.window_key(*window);
  bind.bind_lkey = c.rkey();
  bind.remote_address = c.there.address();
  bind.bind_length_bytes = 100;
  bind.bind_access = kAccessRemoteRead;
  ASSERT_EQ(c.pair.b.qp->post_send(bind), 0);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.b.sends()), (Brief{{0, WcStatus::kSuccess}}));
  for (uint64_t id = 1; id <= 8; ++id) c.post(id, SendOpcode::kRead, c.sge(), 0, bind.rkey);
  c.transmit();
  ++bind.rkey;
  ASSERT_EQ(c.pair.b.qp->post_send(bind), 0);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.b.sends()), (Brief{{0, WcStatus::kMwBindErr}}));
  const Brief got = brief(c.pair.a.sends());
  ASSERT_EQ(got.size(), 8u);
  EXPECT_EQ(got[0], (std::pair{uint64_t{1}, WcStatus::kRemOpErr}));
  for (size_t i = 1; i < got.size(); ++i) EXPECT_EQ(got[i].second, WcStatus::kWrFlushErr);
}

// The Terminate names a Write that has completed already, or that is not the oldest.
TEST_P(FirstError, TheOldestRequestHasTheReasonOfATerminate) {
  Connected c(GetParam());
  c.post(1, SendOpcode::kWrite, c.sge(), 0, c.rkey() ^ 0x500);
  c.post(2, SendOpcode::kSend, c.sge(), 0, 0);
  c.transmit();
  c.post(3, SendOpcode::kRead, c.sge(), 0, c.rkey());
  c.transmit();
  c.pair.run();
  EXPECT_EQ(brief(c.pair.a.sends()), GetParam() ? (Brief{{1, WcStatus::kRemAccessErr},
                                                         {2, WcStatus::kWrFlushErr},
                                                         {3, WcStatus::kWrFlushErr}})
                                                : (Brief{{1, WcStatus::kSuccess},
                                                         {2, WcStatus::kSuccess},
                                                         {3, WcStatus::kRemAccessErr}}));
  EXPECT_EQ(c.pair.b.events, std::vector{QpEvent::kAccessError});
}

TEST_P(FirstError, ATerminateIsAnEventWhereNoCompletionTells) {
  Connected c(GetParam());
  const Sge bad = Pair::sge(c.there, c.there_region, 0, 8);
  ASSERT_EQ(c.pair.b.post(SendOpcode::kWrite, 9, {&bad, 1}, c.here.address(), 0x77), 0);
  c.pair.run();
  EXPECT_EQ(c.pair.a.events, std::vector{QpEvent::kAccessError});
  EXPECT_EQ(c.pair.b.events, GetParam() ? std::vector<QpEvent>{} : std::vector{QpEvent::kFatal});
  // And the side that has nothing open.
  Connected quiet(GetParam());
  quiet.post(1, SendOpcode::kSend, quiet.sge(8, 0x100), 0, 0);
  quiet.pair.run();
  EXPECT_EQ(quiet.pair.b.events, std::vector{QpEvent::kFatal});
}

TEST_P(FirstError, TheFirstLateRequestHasTheReasonThatNoneHad) {
  Connected c(GetParam());
  EXPECT_FALSE(c.pair.a.qp->end_stream(StreamEnd::kReset));
  for (uint64_t id = 1; id <= 2; ++id) c.post(id, SendOpcode::kRead, c.sge(), 0, c.rkey());
  EXPECT_EQ(brief(c.pair.a.sends()),
            (Brief{{1, GetParam() ? WcStatus::kRetryExcErr : WcStatus::kWrFlushErr},
                   {2, WcStatus::kWrFlushErr}}));
}

TEST_P(FirstError, ALostPeerIsTheReason) {
  for (const StreamEnd end : {StreamEnd::kReset, StreamEnd::kTimeout}) {
    Connected c(GetParam());
    for (uint64_t id = 1; id <= 3; ++id) c.post(id, SendOpcode::kRead, c.sge(), 0, c.rkey());
    c.transmit();
    EXPECT_TRUE(c.pair.a.qp->end_stream(end));
    EXPECT_EQ(brief(c.pair.a.sends()), (Brief{{1, WcStatus::kRetryExcErr},
                                              {2, WcStatus::kWrFlushErr},
                                              {3, WcStatus::kWrFlushErr}}));
  }
}

// ---- Two faults in one request, with acknowledgements

struct TwoFaults : ::testing::Test, Connected {
  TwoFaults() : Connected(true) { std::memset(here.data(), 0x11, here.size()); }
  void expect(SendOpcode opcode, const Sge& sge, uint64_t offset, uint32_t key, WcStatus status) {
    post(1, opcode, sge, offset, key);
    pair.run();
    EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, status}}));
    for (size_t i = 0; i != here.size(); ++i) ASSERT_EQ(here.data()[i], std::byte{0x11}) << i;
  }
};

TEST_F(TwoFaults, ReadsWithBothKeysWrong) {
  expect(SendOpcode::kRead, sge(64, 0x100), 0, rkey() ^ 0x500, WcStatus::kRemAccessErr);
}

TEST_F(TwoFaults, AtomicsWithBothKeysWrong) {
  expect(SendOpcode::kFetchAdd, sge(8, 0x100), 0, rkey() ^ 0x500, WcStatus::kRemAccessErr);
}

TEST_F(TwoFaults, AlignmentComesBeforeTheKey) {
  expect(SendOpcode::kCompareSwap, sge(), 1, rkey() ^ 0x500, WcStatus::kRemInvReqErr);
}

TEST_F(TwoFaults, AlignmentComesBeforeTheLocalKey) {
  expect(SendOpcode::kFetchAdd, sge(8, 0x100), 1, rkey(), WcStatus::kRemInvReqErr);
}

TEST_F(TwoFaults, AnAtomicWithAWrongLocalKeyIsDone) {
  expect(SendOpcode::kFetchAdd, sge(8, 0x100), 0, rkey(), WcStatus::kLocProtErr);
  EXPECT_EQ(cell(), 3u);
  EXPECT_TRUE(pair.a.events.empty()) << "the completion tells";
}

TEST_F(TwoFaults, AReadThatReachesBehindItsRegionWritesNothing) {
  Sge behind = sge(64);
  behind.address += here.size() - 63;
  expect(SendOpcode::kRead, behind, 0, rkey(), WcStatus::kLocProtErr);
  EXPECT_TRUE(here.intact());
}

TEST_F(TwoFaults, AReadIntoReadOnlyMemoryWritesNothing) {
  const MemoryRegion* read_only = pair.reg(pair.a, here, kAccessRemoteRead);
  expect(SendOpcode::kRead, {here.address(), 64, read_only->key.load()}, 0, rkey(),
         WcStatus::kLocProtErr);
}

TEST_F(TwoFaults, AReadIntoAnotherDomainWritesNothing) {
  ProtectionDomain other;
  const MemoryRegion* foreign =
      *pair.regions.add(other, here.data(), here.size(), here.address(), kAllAccess);
  expect(SendOpcode::kRead, {here.address(), 64, foreign->key.load()}, 0, rkey(),
         WcStatus::kLocProtErr);
}

// The second range is wrong: nothing goes to the first one either.
TEST_F(TwoFaults, AReadWithOneWrongRangeWritesNothing) {
  const Sge both[] = {sge(64), sge(64, 0x100)};
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 1, both, there.address(), rkey()), 0);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kLocProtErr}}));
  EXPECT_EQ(here.data()[0], std::byte{0x11});
}

TEST_F(TwoFaults, ARegionThatGoesAwayMeanwhile) {
  post(1, SendOpcode::kRead, sge(64), 0, rkey());
  transmit();
  ASSERT_EQ(pair.regions.invalidate(*here_region), 0);
  pair.a.qp->quiesce(*here_region);
  pair.run();
  EXPECT_EQ(brief(pair.a.sends()), (Brief{{1, WcStatus::kLocProtErr}}));
  EXPECT_EQ(here.data()[0], std::byte{0x11});
}

// Without acknowledgements, as the RFCs allow, the local list is looked at first.
TEST(LocalListFirst, NothingIsSent) {
  Connected c(false);
  c.post(1, SendOpcode::kFetchAdd, c.sge(8, 0x100), 0, c.rkey() ^ 0x500);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.a.sends()), (Brief{{1, WcStatus::kLocProtErr}}));
  EXPECT_EQ(c.cell(), 0u);
}

// ---- Write with Immediate that is refused

TEST_P(FirstError, TheReceiveOfARefusedWriteWithImmediate) {
  Connected c(GetParam());
  c.post_receives(2);
  c.post(1, SendOpcode::kWriteWithImm, c.sge(), 0, c.rkey() ^ 0x500);
  c.pair.run();
  const WcStatus status = GetParam() ? WcStatus::kLocAccessErr : WcStatus::kWrFlushErr;
  EXPECT_EQ(brief(c.pair.b.receives()), (Brief{{100, status}, {101, WcStatus::kWrFlushErr}}));
  EXPECT_EQ(c.pair.b.events, std::vector{QpEvent::kAccessError});
  EXPECT_EQ(c.pair.a.sends().at(0).status,
            GetParam() ? WcStatus::kRemAccessErr : WcStatus::kSuccess);
}

TEST(RefusedWrites, APlainOneTakesNoReceive) {
  Connected c(true);
  c.post_receives(1);
  c.post(1, SendOpcode::kWrite, c.sge(), 0, c.rkey() ^ 0x500);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.b.receives()), (Brief{{100, WcStatus::kWrFlushErr}}));
}

TEST(RefusedWrites, WithoutAReceiveThereIsNoneToFail) {
  Connected c(true);
  c.post(1, SendOpcode::kWriteWithImm, c.sge(), 0, c.rkey() ^ 0x500);
  c.pair.run();
  EXPECT_TRUE(c.pair.b.receives().empty());
  EXPECT_EQ(brief(c.pair.a.sends()), (Brief{{1, WcStatus::kRemAccessErr}}));
}

TEST(RefusedWrites, OneOfASharedQueueIsTaken) {
  SharedReceiveQueue shared(4, 1);
  Connected c(true, &shared);
  const Sge to = Pair::sge(c.there, c.there_region, 4096, 64);
  for (const uint64_t id : {100, 101}) ASSERT_EQ(shared.post(id, {&to, 1}), 0);
  c.post(1, SendOpcode::kWriteWithImm, c.sge(), 0, c.rkey() ^ 0x500);
  c.pair.run();
  EXPECT_EQ(brief(c.pair.b.receives()), (Brief{{100, WcStatus::kLocAccessErr}}));
  EXPECT_EQ(c.pair.b.events, (std::vector{QpEvent::kAccessError, QpEvent::kLastWqeReached}));
}

}  // namespace
}  // namespace uwarp::sim
