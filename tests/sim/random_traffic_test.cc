// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Random operations in both directions over randomly cut pipes, checked against plain memcpy. Each
// request must complete exactly once and in order, the bytes must be those of the memcpy, and guard
// zones must not change.
#include <gtest/gtest.h>

#include <deque>

#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

constexpr size_t kMemory = 300000;

/// One direction of traffic: `from` posts, `to` is the target. Targets never overlap within a run,
/// so the expected bytes do not depend on timing.
struct Traffic {
  Traffic(Pair& pair, End& from, End& to)
      : pair(pair),
        from(from),
        to(to),
        local(pair.reg(from, source, kAllAccess)),
        remote(pair.reg(to, target, kAllAccess)),
        oracle_target(kMemory),
        oracle_source(kMemory) {
    source.fill(pair.random);
    target.fill(pair.random);
    std::memcpy(oracle_source.data(), source.data(), kMemory);
    std::memcpy(oracle_target.data(), target.data(), kMemory);
  }

  std::vector<Sge> cut(size_t offset, size_t length) {
    std::vector<Sge> pieces;
    while (length > 0) {
      const size_t here = pieces.size() == 3 ? length : pick(pair.random, 1, length);
      pieces.push_back(Pair::sge(source, local, offset, here));
      offset += here;
      length -= here;
    }
    return pieces;
  }

  void post_one() {
    const size_t length = pick_length();
    if (cursor + length > kMemory) return;
    const uint64_t kind = pick(pair.random, 0, 2);
    auto pieces = cut(cursor, length);
    uint8_t flags = pick(pair.random, 0, 3) == 0 ? kSendFence : 0;
    if (kind != 2 && length <= 256 && pick(pair.random, 0, 1)) flags |= kSendInline;
    int error;
    if (kind == 0) {
      const size_t room = length + pick(pair.random, 0, 10);
      if (cursor + room > kMemory) return;
      Sge sink{target.address() + cursor, static_cast<uint32_t>(room), remote->key.load()};
      pending.push_back({posted, length, sink});
      error = from.post(SendOpcode::kSend, posted, pieces, 0, 0, flags);
      if (error != 0) return (void)pending.pop_back();
      std::memcpy(oracle_target.data() + cursor, oracle_source.data() + cursor, length);
    } else if (kind == 1) {
      error = from.post(SendOpcode::kWrite, posted, pieces, target.address() + cursor,
                        remote->key.load(), flags);
      if (error != 0) return;
      std::memcpy(oracle_target.data() + cursor, oracle_source.data() + cursor, length);
    } else {
      error = from.post(SendOpcode::kRead, posted, pieces, target.address() + cursor,
                        remote->key.load(), flags);
      if (error != 0) return;
      std::memcpy(oracle_source.data() + cursor, oracle_target.data() + cursor, length);
    }
    ++posted;
    cursor += length + 11;
  }
  void post_receive() {
    if (pending.empty()) return;
    const Expected next = pending.front();
    if (to.qp->post_recv(next.wr_id, {&next.sink, 1}) != 0) return;
    pending.pop_front();
    expected.push_back(next);
  }
  void check_completions() {
    for (const auto& one : from.sends()) {
      ASSERT_EQ(one.status, WcStatus::kSuccess);
      ASSERT_EQ(one.wr_id, completed++);
    }
    for (const auto& one : to.receives()) {
      ASSERT_FALSE(expected.empty());
      ASSERT_EQ(one.status, WcStatus::kSuccess);
      ASSERT_EQ(one.wr_id, expected.front().wr_id);
      ASSERT_EQ(one.byte_len, expected.front().length);
      expected.pop_front();
    }
  }
  void check_end() {
    EXPECT_EQ(completed, posted);
    EXPECT_TRUE(expected.empty());
    EXPECT_TRUE(source.intact());
    EXPECT_TRUE(target.intact());
    EXPECT_EQ(std::memcmp(source.data(), oracle_source.data(), kMemory), 0);
    EXPECT_EQ(std::memcmp(target.data(), oracle_target.data(), kMemory), 0);
  }
  size_t pick_length() {
    switch (pick(pair.random, 0, 9)) {
      case 0:
        return 0;
      case 1:
        return pick(pair.random, 60000, 70000);
      case 2:
        return pick(pair.random, 2000, 9000);
      default:
        return pick(pair.random, 1, 700);
    }
  }

  struct Expected {
    uint64_t wr_id;
    size_t length;
    Sge sink;
  };
  Pair& pair;
  End& from;
  End& to;
  GuardedMemory source{kMemory}, target{kMemory};
  MemoryRegion* local;
  MemoryRegion* remote;
  std::vector<std::byte> oracle_target, oracle_source;
  size_t cursor = 0;
  uint64_t posted = 0, completed = 0;
  std::deque<Expected> pending, expected;
};

class RandomTraffic : public ::testing::TestWithParam<int> {};

// Proves: 4296-3-a 5041-5.2-d 5041-5.2-c
TEST_P(RandomTraffic, MatchesOracle) {
  const uint64_t seed = static_cast<uint64_t>(GetParam()) * 7919 + 1;
  SCOPED_TRACE(seed);
  Pair pair(seed);
  pair.chunk_max =
      pick(pair.random, 1, 3) == 1 ? pick(pair.random, 1, 50) : pick(pair.random, 50, 80000);
  pair.a_to_b.capacity = pick(pair.random, 10, 200000);
  pair.b_to_a.capacity = pick(pair.random, 10, 200000);
  StreamConfig config;
  config.crc = pick(pair.random, 0, 1);
  config.mulpdu =
      static_cast<uint16_t>(pick(pair.random, 0, 1) ? 65535 : pick(pair.random, 128, 3000));
  config.ord = static_cast<uint16_t>(pick(pair.random, 1, 8));
  config.ird = config.ord;
  config.peer_is_uwarp = pick(pair.random, 0, 1);
  pair.connect(config);
  Traffic forth(pair, pair.a, pair.b), back(pair, pair.b, pair.a);
  for (int turn = 0; turn < 400; ++turn) {
    for (Traffic* traffic : {&forth, &back}) {
      if (pick(pair.random, 0, 1)) traffic->post_one();
      if (pick(pair.random, 0, 2)) traffic->post_receive();
    }
    for (uint64_t i = pick(pair.random, 0, 6); i > 0; --i) {
      pair.step(pair.a, pair.a_to_b, pair.b_to_a);
      pair.step(pair.b, pair.b_to_a, pair.a_to_b);
    }
    forth.check_completions();
    back.check_completions();
    if (HasFatalFailure()) return;
  }
  for (int i = 0; i < 200; ++i) {
    forth.post_receive();
    back.post_receive();
    pair.run();
    forth.check_completions();
    back.check_completions();
    if (HasFatalFailure()) return;
  }
  forth.check_end();
  back.check_end();
  EXPECT_TRUE(pair.a.events.empty());
  EXPECT_TRUE(pair.b.events.empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTraffic, ::testing::Range(0, 60));

// The stream breaks at an arbitrary byte. Every request still completes exactly once and in order,
// and none succeeds after the first failure.
class BrokenStream : public ::testing::TestWithParam<int> {};

// Proves: 5041-3-3
TEST_P(BrokenStream, EverythingIsFlushedOnce) {
  const uint64_t seed = static_cast<uint64_t>(GetParam()) * 104729 + 3;
  SCOPED_TRACE(seed);
  Pair pair(seed);
  pair.chunk_max = pick(pair.random, 1, 5000);
  StreamConfig config;
  config.crc = pick(pair.random, 0, 1);
  pair.connect(config);
  Traffic forth(pair, pair.a, pair.b);
  std::vector<uint64_t> receives;
  for (uint64_t id = 0; id < 40; ++id) {
    Sge sink{forth.target.address(), 100000, forth.remote->key.load()};
    ASSERT_EQ(pair.b.qp->post_recv(id, {&sink, 1}), 0);
  }
  for (int i = 0; i < 30; ++i) forth.post_one();
  for (uint64_t i = pick(pair.random, 0, 200); i > 0; --i) {
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
    pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  }
  const int kind = static_cast<int>(pick(pair.random, 0, 3));
  if (kind == 0 && !pair.a_to_b.bytes.empty()) {
    // A flipped bit: the CRC finds it; without CRC it may change the payload and nothing else.
    pair.a_to_b.bytes[pick(pair.random, 0, pair.a_to_b.bytes.size() - 1)] ^= std::byte{0x10};
    pair.run();
  }
  const StreamEnd ends[] = {StreamEnd::kFin, StreamEnd::kReset, StreamEnd::kTimeout,
                            StreamEnd::kLocalClose};
  pair.a.qp->end_stream(ends[kind]);
  pair.b.qp->end_stream(ends[kind]);
  auto sends = pair.a.sends();
  EXPECT_EQ(sends.size(), forth.posted);
  bool failed = false;
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].wr_id, i);
    if (failed) {
      EXPECT_EQ(sends[i].status, WcStatus::kWrFlushErr);
    }
    failed |= sends[i].status != WcStatus::kSuccess;
  }
  auto got = pair.b.receives();
  EXPECT_EQ(got.size(), 40u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].wr_id, i);
  EXPECT_LE(pair.a.events.size(), 1u);
  EXPECT_LE(pair.b.events.size(), 1u);
  EXPECT_EQ(pair.a.qp->state(), QpState::kErr);
  EXPECT_EQ(pair.b.qp->state(), QpState::kErr);
  EXPECT_TRUE(forth.source.intact());
  EXPECT_TRUE(forth.target.intact());
}

INSTANTIATE_TEST_SUITE_P(Seeds, BrokenStream, ::testing::Range(0, 100));

}  // namespace
}  // namespace uwarp::sim
