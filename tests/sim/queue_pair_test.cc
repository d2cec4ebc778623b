// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Operations and failures of one connected pair: what completes, with which status, in which order,
// and which bytes change.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

struct Connected : ::testing::TestWithParam<std::tuple<bool, size_t>> {
  Connected() : pair(7) {
    pair.chunk_max = std::get<1>(GetParam());
    StreamConfig config;
    config.crc = std::get<0>(GetParam());
    pair.connect(config);
    here_region = pair.reg(pair.a, here, kAllAccess);
    there_region = pair.reg(pair.b, there, kAllAccess);
    here.fill(pair.random);
  }
  ~Connected() override {
    EXPECT_TRUE(here.intact());
    EXPECT_TRUE(there.intact());
  }
  Sge mine(size_t offset, size_t length) { return Pair::sge(here, here_region, offset, length); }
  Sge theirs(size_t offset, size_t length) {
    return Pair::sge(there, there_region, offset, length);
  }
  /// Deregisters the memory of `end`, which the application then uses for something else, and lets
  /// what was held up go on.
  void leave(End& end, MemoryRegion& region, GuardedMemory& memory) {
    pair.regions.invalidate(region);
    end.qp->quiesce(region);
    std::memset(memory.data(), 0x77, kSize);
    pair.a_to_b.capacity = 1 << 20;
    pair.run();
  }
  uint32_t rkey() { return there_region->key.load(); }
  bool equal(size_t from, size_t to, size_t length) {
    return std::memcmp(here.data() + from, there.data() + to, length) == 0;
  }

  static constexpr size_t kSize = 400000;
  Pair pair;
  GuardedMemory here{kSize}, there{kSize};
  MemoryRegion* here_region = nullptr;
  MemoryRegion* there_region = nullptr;
};

TEST_P(Connected, SendsOfAllSizesArriveInOrder) {
  const size_t sizes[] = {0, 1, 3, 4, 5, 64, 511, 512, 513, 4096, 65517, 65518, 200000};
  uint64_t id = 0;
  for (size_t size : sizes) {
    Sge to = theirs(0, size), from = mine(0, size);
    ASSERT_EQ(pair.b.qp->post_recv(id, {&to, 1}), 0);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, id, {&from, 1}), 0);
    pair.run();
    auto sent = pair.a.sends();
    auto got = pair.b.receives();
    ASSERT_EQ(sent.size(), 1u) << size;
    ASSERT_EQ(got.size(), 1u) << size;
    EXPECT_EQ(sent[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[0].wr_id, id);
    EXPECT_EQ(got[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[0].byte_len, size);
    EXPECT_TRUE(equal(0, 0, size)) << size;
    ++id;
  }
}

TEST_P(Connected, WriteIsPlacedAndNotReported) {
  Sge pieces[] = {mine(10, 1), mine(20, 70000), mine(100000, 3), mine(200000, 100)};
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, pieces, there.address() + 5, rkey()), 0);
  pair.run();
  ASSERT_EQ(pair.a.sends().size(), 1u);
  EXPECT_TRUE(pair.b.receives().empty());
  size_t at = 5;
  for (const Sge& piece : pieces) {
    EXPECT_TRUE(equal(piece.address - here.address(), at, piece.length_bytes));
    at += piece.length_bytes;
  }
  EXPECT_EQ(there.data()[4], std::byte{0});
  EXPECT_EQ(there.data()[at], std::byte{0});
}

// sent() says whether anything is left, so that the caller need not build another window to find
// out.
TEST_P(Connected, SentReportsWhetherThereIsMore) {
  const Sge small = mine(0, 8);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&small, 1}, there.address(), rkey()), 0);
  pair.run();
  (void)pair.a.sends();
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&small, 1}, there.address(), rkey()), 0);
  auto turn = pair.a.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  Transmitter& transmitter = pair.a.qp->transmitter();
  const auto send = [&](size_t limit) {
    return transmitter.sent(pair.a_to_b.write(transmitter.next_iovecs(), limit));
  };
  EXPECT_TRUE(send(5)) << "half of it is left";
  EXPECT_FALSE(send(~size_t{0}));
  EXPECT_TRUE(transmitter.dry());
  EXPECT_TRUE(transmitter.next_iovecs().empty());
  const Sge large = mine(0, kSize);  // more than one batch with CRC on
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 3, {&large, 1}, there.address(), rkey()), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 4, {&small, 1}, there.address(), rkey(), kSendFence), 0);
  while (send(~size_t{0})) EXPECT_FALSE(transmitter.dry());
  EXPECT_TRUE(transmitter.next_iovecs().empty());
  (void)turn.end();
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 3u);
}

TEST_P(Connected, ReadScatters) {
  there.fill(pair.random);
  Sge pieces[] = {mine(1, 3), mine(7, 66000), mine(100001, 1), mine(150000, 9999)};
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 9, pieces, there.address() + 11, rkey()), 0);
  pair.run();
  auto done = pair.a.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  EXPECT_EQ(done[0].opcode, WcOpcode::kRead);
  EXPECT_EQ(done[0].byte_len, 3u + 66000 + 1 + 9999);
  size_t at = 11;
  for (const Sge& piece : pieces) {
    EXPECT_TRUE(equal(piece.address - here.address(), at, piece.length_bytes));
    at += piece.length_bytes;
  }
}

TEST_P(Connected, ZeroLengthOperations) {
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {}, 0xdead, 0xbeef), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {}, 0xdead, 0xbeef), 0);
  ASSERT_EQ(pair.b.qp->post_recv(3, {}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 4, {}), 0);
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 3u);
  ASSERT_EQ(pair.b.receives().size(), 1u);
  EXPECT_TRUE(pair.a.events.empty());
  EXPECT_TRUE(pair.b.events.empty());
}

TEST_P(Connected, InlineMayBeOverwrittenAfterPost) {
  Sge from = mine(0, 200);
  from.lkey = 0;  // not checked
  const std::vector<std::byte> kept(here.data(), here.data() + 200);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, there.address(), rkey(),
                        kSendSignaled | kSendInline),
            0);
  std::memset(here.data(), 0, 200);
  pair.run();
  EXPECT_EQ(std::memcmp(there.data(), kept.data(), 200), 0);
}

// Proves: 5041-7.1-u2c
TEST_P(Connected, SendWaitsForReceive) {
  Sge from = mine(0, 70000), to = theirs(0, 70000);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {&from, 1}), 0);
  pair.run();
  EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
  EXPECT_TRUE(pair.b.receives().empty());
  ASSERT_EQ(pair.b.qp->post_recv(2, {&to, 1}), 0);
  pair.run();
  ASSERT_EQ(pair.b.receives().size(), 1u);
  EXPECT_TRUE(equal(0, 0, 70000));
}

TEST_P(Connected, HeldStreamExpires) {
  Sge from = mine(0, 10);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {&from, 1}), 0);
  pair.run();
  {
    const auto lock = pair.b.qp->receive_side().lock_exclusive();
    pair.b.outcome |= pair.b.qp->receiver().expire();
  }
  pair.run();
  EXPECT_EQ(pair.b.events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(pair.a.qp->state(), QpState::kErr);
  EXPECT_TRUE(pair.b.qp->transmitter().finished());
}

// Each failure gives one request its own status, flushes the rest, raises one event and puts both
// ends in ERR.
struct Failure {
  const char* name;
  SendOpcode opcode;
  int64_t remote_offset;
  size_t length;
  bool bad_key;
  uint32_t access;  // of the target region
  WcStatus status;
  QpEvent event;
  uint32_t vendor_err;
};

TEST_P(Connected, BadRemoteAccess) {
  const Failure cases[] = {
      {"write with unknown STag", SendOpcode::kWrite, 0, 16, true, kAllAccess,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x010100},
      {"write before the region", SendOpcode::kWrite, -1, 16, false, kAllAccess,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x010101},
      {"write behind the region", SendOpcode::kWrite, kSize - 15, 16, false, kAllAccess,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x010101},
      {"write without the right", SendOpcode::kWrite, 0, 16, false, kAccessRemoteRead,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x010100},
      {"read with unknown STag", SendOpcode::kRead, 0, 16, true, kAllAccess,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x000100},
      {"read behind the region", SendOpcode::kRead, kSize, 1, false, kAllAccess,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x000101},
      {"read without the right", SendOpcode::kRead, 0, 16, false, kAccessLocalWrite,
       WcStatus::kRemAccessErr, QpEvent::kAccessError, 0x000102},
  };
  for (const Failure& c : cases) {
    SCOPED_TRACE(c.name);
    Pair fresh(11);
    fresh.chunk_max = std::get<1>(GetParam());
    StreamConfig config;
    config.crc = std::get<0>(GetParam());
    fresh.connect(config);
    MemoryRegion* source = fresh.reg(fresh.a, here, kAllAccess);
    MemoryRegion* target = fresh.reg(fresh.b, there, c.access);
    const std::vector<std::byte> before(there.data(), there.data() + kSize);
    Sge piece = Pair::sge(here, source, 0, c.length);
    const uint32_t key = target->key.load() ^ (c.bad_key ? 0x55u : 0u);
    const uint64_t remote = there.address() + static_cast<uint64_t>(c.remote_offset);
    for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(fresh.b.qp->post_recv(100 + id, {}), 0);
    // A valid Read comes first, so that a Write is still open when the Terminate comes.
    ASSERT_EQ(fresh.a.post(SendOpcode::kRead, 0, {}, 0, 0), 0);
    ASSERT_EQ(fresh.a.post(c.opcode, 1, {&piece, 1}, remote, key), 0);
    ASSERT_EQ(fresh.a.post(SendOpcode::kRead, 2, {}, 0, 0), 0);
    fresh.run();
    auto sent = fresh.a.sends();
    ASSERT_EQ(sent.size(), 3u);
    EXPECT_EQ(fresh.b.events, std::vector{c.event});
    EXPECT_EQ(fresh.a.events, std::vector{QpEvent::kFatal});
    if (c.opcode == SendOpcode::kRead) {
      EXPECT_EQ(sent[0].status, WcStatus::kSuccess);
      EXPECT_EQ(sent[1].status, c.status);
      EXPECT_EQ(sent[1].vendor_err, c.vendor_err | 1u << 31);
    }
    const auto first = std::ranges::find_if(
        sent, [](const WorkCompletion& one) { return one.status != WcStatus::kSuccess; });
    EXPECT_EQ(first->status, c.status) << "the first one that fails says why";
    auto flushed = fresh.b.receives();
    ASSERT_EQ(flushed.size(), 3u);
    for (const auto& one : flushed) EXPECT_EQ(one.status, WcStatus::kWrFlushErr);
    EXPECT_EQ(fresh.a.qp->state(), QpState::kErr);
    EXPECT_EQ(fresh.b.qp->state(), QpState::kErr);
    EXPECT_EQ(std::memcmp(before.data(), there.data(), kSize), 0);
    fresh.regions.invalidate(*source);
    fresh.regions.invalidate(*target);
  }
}

TEST_P(Connected, SendTooLong) {
  Sge to = theirs(0, 100), from = mine(0, 101);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.b.qp->post_recv(2, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 3, {&from, 1}), 0);
  pair.run();
  auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].status, WcStatus::kLocLenErr);
  EXPECT_EQ(got[1].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(pair.b.events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(there.data()[0], std::byte{0});
}

TEST_P(Connected, SendWithInvalidateOfARegionIsRefused) {
  Sge to = theirs(0, 100), from = mine(0, 10);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSendWithInvalidate, 3, {&from, 1}, 0, rkey()), 0);
  pair.run();
  auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kRemInvReqErr);
  EXPECT_EQ(got[0].vendor_err, 0x000109u);
  EXPECT_NE(pair.regions.find(STag{rkey()}), nullptr);
}

TEST_P(Connected, LocalProtectionError) {
  Sge good = mine(0, 10), bad = mine(0, 10);
  bad.lkey ^= 1;
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&good, 1}, there.address(), rkey()), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&bad, 1}, there.address() + 10, rkey()), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 3, {&good, 1}, there.address() + 20, rkey()), 0);
  pair.run();
  auto sent = pair.a.sends();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[1].status, WcStatus::kLocProtErr);
  EXPECT_EQ(sent[2].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(pair.a.events.empty());  // the completion reports it
  EXPECT_EQ(pair.b.qp->state(), QpState::kErr);
  EXPECT_EQ(there.data()[20], std::byte{0});
}

TEST_P(Connected, FenceHoldsBackUntilReadIsDone) {
  // The Read is posted behind a large Write, so its answer comes late.
  there.fill(pair.random);
  Sge sink = mine(0, 1000), from = mine(1000, 1000);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 1, {&sink, 1}, there.address(), rkey()), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&from, 1}, there.address(), rkey(),
                        kSendSignaled | kSendFence),
            0);
  const std::vector<std::byte> old(there.data(), there.data() + 1000);
  pair.run();
  EXPECT_EQ(std::memcmp(here.data(), old.data(), 1000), 0);
  EXPECT_TRUE(equal(1000, 0, 1000));
  EXPECT_EQ(pair.a.sends().size(), 2u);
}

TEST_P(Connected, OrdLimitsReads) {
  there.fill(pair.random);
  for (uint64_t id = 0; id < 60; ++id) {
    Sge sink = mine(id * 100, 100);
    ASSERT_EQ(pair.a.post(SendOpcode::kRead, id, {&sink, 1}, there.address() + id * 100, rkey()),
              0);
  }
  pair.run();
  auto done = pair.a.sends();
  ASSERT_EQ(done.size(), 60u);
  for (uint64_t id = 0; id < 60; ++id) {
    EXPECT_EQ(done[id].wr_id, id);
    EXPECT_EQ(done[id].status, WcStatus::kSuccess);
  }
  EXPECT_TRUE(equal(0, 0, 6000));
  EXPECT_TRUE(pair.b.events.empty());
}

TEST_P(Connected, FinAtBoundaryFlushesSilently) {
  ASSERT_EQ(pair.b.qp->post_recv(5, {}), 0);
  pair.run();
  pair.b.qp->end_stream(StreamEnd::kFin);
  auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(pair.b.events.empty());
  EXPECT_EQ(pair.b.qp->state(), QpState::kErr);
  // A request that is posted in ERR is flushed too.
  ASSERT_EQ(pair.b.qp->post_recv(6, {}), 0);
  ASSERT_EQ(pair.b.post(SendOpcode::kSend, 7, {}), 0);
  EXPECT_EQ(pair.b.receives().size(), 1u);
  EXPECT_EQ(pair.b.sends().size(), 1u);
}

TEST_P(Connected, DeregisteredSinkIsNotTouched) {
  // A Send stops in the middle, its receive's region is deregistered, then the rest arrives.
  Sge to = theirs(0, 100000), from = mine(0, 100000);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&from, 1}), 0);
  pair.a_to_b.capacity = 30000;
  for (int i = 0; i < 20; ++i) {
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
    if (pair.a_to_b.bytes.size() == pair.a_to_b.capacity) break;
  }
  pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  leave(pair.b, *there_region, there);
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(there.data()[i], std::byte{0x77});
}

TEST_P(Connected, DeregisteredSourceIsNotRead) {
  std::memset(here.data(), 0x11, kSize);
  const Sge to = theirs(0, kSize), from = mine(0, kSize);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&from, 1}), 0);
  pair.a_to_b.capacity = 30000;
  pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  leave(pair.a, *here_region, here);
  EXPECT_EQ(there.data()[0], std::byte{0x11}) << "something came";
  for (size_t i = 0; i < kSize; ++i) ASSERT_NE(there.data()[i], std::byte{0x77}) << i;
}

// With iWARP an event says so, beside the completions of what it takes along.
TEST_P(Connected, AnEndWithSendsOpenIsAnEvent) {
  const Sge there_too = theirs(0, kSize), from = mine(0, kSize);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, there.address(), rkey()), 0);
  ASSERT_EQ(
      pair.b.post(SendOpcode::kWrite, 2, {&there_too, 1}, here.address(), here_region->key.load()),
      0);
  pair.a_to_b.capacity = pair.b_to_a.capacity = 100;
  pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  EXPECT_TRUE(pair.a.qp->end_stream(StreamEnd::kReset));
  EXPECT_TRUE(pair.b.qp->end_stream(StreamEnd::kTimeout));
  for (End* end : {&pair.a, &pair.b}) {
    EXPECT_EQ(end->events, std::vector{QpEvent::kFatal});
    const auto done = end->sends();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, WcStatus::kRetryExcErr);
  }
}

/// Sends of 64 KiB: each has a second segment of about twenty bytes.
class LargeSends : public ::testing::Test {
 protected:
  static constexpr size_t kMessage = 65536;

  void SetUp() override {
    pair.connect();
    from = Pair::sge(here, pair.reg(pair.a, here, kAllAccess), 0, kMessage);
    to = Pair::sge(there, pair.reg(pair.b, there, kAllAccess), 0, kMessage);
  }
  void send(size_t messages) {
    for (size_t i = 0; i < messages; ++i) {
      ASSERT_EQ(pair.b.qp->post_recv(i, {&to, 1}), 0);
      ASSERT_EQ(pair.a.post(SendOpcode::kSend, i, {&from, 1}), 0);
    }
  }

  Pair pair{7};
  GuardedMemory here{kMessage}, there{kMessage};
  Sge from, to;
};

// A large segment is expected again after such a short second segment.
TEST_F(LargeSends, GoStraightToTheirPlace) {
  constexpr size_t kMessages = 4;
  send(1);
  pair.run();
  send(kMessages);
  while (pair.step(pair.a, pair.a_to_b, pair.b_to_a)) {
  }
  ASSERT_GT(pair.a_to_b.bytes.size(), kMessages * kMessage);
  size_t reads = 0, staged = 0;
  const auto* const place = there.data();
  for (; !pair.a_to_b.bytes.empty(); ++reads) {
    const auto lock = pair.b.qp->receive_side().lock_exclusive();
    const std::span<const iovec> window = pair.b.qp->receiver().next_iovecs(pair.b.staging);
    size_t left = pair.a_to_b.read(window, kMessages * kMessage * 2);
    (void)pair.b.qp->receiver().received(pair.b.staging, left);
    for (const iovec& piece : window) {
      const size_t taken = std::min(left, piece.iov_len);
      if (piece.iov_base < place || piece.iov_base >= place + kMessage) staged += taken;
      left -= taken;
    }
  }
  EXPECT_EQ(pair.b.receives().size(), 1 + kMessages);
  EXPECT_LE(reads, kMessages + 1);
  EXPECT_LT(staged, kMessages * 128 + 4096);
}

// A large segment is expected only after another large one, for the next few segments.
TEST_F(LargeSends, AreExpectedBehindOthers) {
  const auto small = [this](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(pair.b.qp->post_recv(i, {&to, 1}), 0);
      ASSERT_EQ(pair.a.post(SendOpcode::kSend, i, {}), 0);
    }
    pair.run();
  };
  small(3);
  EXPECT_FALSE(pair.b.qp->receiver().expects_large());
  send(1);
  pair.run();
  EXPECT_TRUE(pair.b.qp->receiver().expects_large());
  small(3);
  EXPECT_FALSE(pair.b.qp->receiver().expects_large());
}

// If a batch is full and only a few bytes of its message are left, they are sent in the same call.
TEST_F(LargeSends, NeedNoCallForTheirShortEnd) {
  constexpr size_t kMessages = 32;
  send(kMessages);
  pair.a_to_b.capacity = 2 * kMessages * kMessage;
  auto turn = pair.a.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  size_t calls = 0;
  for (auto window = pair.a.qp->transmitter().next_iovecs(); !window.empty();
       window = pair.a.qp->transmitter().next_iovecs()) {
    size_t size = 0;
    for (const iovec& piece : window) size += piece.iov_len;
    EXPECT_GE(size, kMessage);
    pair.a.qp->transmitter().sent(pair.a_to_b.write(window, size));
    ++calls;
  }
  (void)turn.end();
  EXPECT_LE(calls, kMessages * kMessage / TransmitBatch::kBytes);
  pair.run();
  EXPECT_EQ(pair.b.receives().size(), kMessages);
}

INSTANTIATE_TEST_SUITE_P(CrcAndCuts, Connected,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(size_t{0}, size_t{1}, size_t{37},
                                                              size_t{5000})));

}  // namespace
}  // namespace uwarp::sim
