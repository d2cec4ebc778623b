// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A running queue pair has all the memory that it needs, or goes on without more. No step is left
// half done, and no side stays taken.
#include <sys/mman.h>

#include "faults/engine/without_memory.h"
#include "sim/sim_pair.h"
#include "unit/kernel_copies.h"

namespace uwarp::sim {
namespace {

constexpr size_t kBytes = 128 << 10;
constexpr size_t kLarge = 40'000;

struct WithoutMemory : ::testing::Test {
  WithoutMemory()
      : of_a(kBytes),
        of_b(kBytes),
        region_a(pair.reg(pair.a, of_a, kAllRights)),
        region_b(pair.reg(pair.b, of_b, kAllRights)) {
    of_a.fill(pair.random);
    of_b.fill(pair.random);
    pair.connect();
    pair.run();
  }
  static constexpr uint32_t kAllRights = kAccessLocalWrite | kAccessRemoteWrite |
                                         kAccessRemoteRead | kAccessRemoteAtomic | kAccessMwBind;

  Sge here(size_t length, size_t offset = 0) { return Pair::sge(of_a, region_a, offset, length); }
  int read(uint64_t id, size_t length, uint64_t from, uint32_t key) {
    const Sge to = here(length);
    return pair.a.post(SendOpcode::kRead, id, {&to, 1}, from, key);
  }
  void expect_success(End& end, size_t count) {
    const auto done = end.sends();
    EXPECT_EQ(done.size(), count);
    for (const WorkCompletion& one : done) EXPECT_EQ(one.status, WcStatus::kSuccess) << one.wr_id;
  }

  /// Sends what `end` has to send while its allocation fails. True if it tried to allocate.
  bool send_without_memory(End& end, Pipe& out, size_t limit = ~size_t{0}) {
    auto turn = end.qp->transmit_side().begin();
    EXPECT_TRUE(turn);
    std::span<const iovec> window;
    const bool asked = without_memory([&] { window = end.qp->transmitter().next_iovecs(); });
    sent = out.write(window, limit);
    if (sent != 0) (void)end.qp->transmitter().sent(sent);
    (void)turn.end();
    return asked;
  }
  bool receive_without_memory(End& end, Pipe& in) {
    const auto side = end.qp->receive_side().lock_exclusive();
    size_t count = 0;
    const bool asked = without_memory([&] {
      const auto window = end.qp->receiver().next_iovecs(end.staging);
      count = in.read(window, ~size_t{0});
      end.outcome |= end.qp->receiver().received(end.staging, count);
    });
    if (!end.staging) end.staging = std::make_unique<StagingBuffer>();
    return asked;
  }
  void expect_both_sides_free(End& end) {
    EXPECT_TRUE(end.qp->transmit_side().try_begin());
    EXPECT_TRUE(end.qp->receive_side().try_begin());
  }
  /// Posts a Send; the kernel accepts a part of it.
  void send_a_part() {
    const Sge from = here(kLarge);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {&from, 1}), 0);
    EXPECT_FALSE(send_without_memory(pair.a, pair.a_to_b, 100));
  }
  /// The stream has ended, and nothing more is sent.
  void expect_silent_end() {
    const auto turn = pair.a.qp->transmit_side().begin();
    EXPECT_TRUE(turn);
    EXPECT_TRUE(pair.a.qp->transmitter().next_iovecs().empty());
    EXPECT_TRUE(pair.a.qp->transmitter().finished());
    pair.a_to_b.log.clear();  // the stream ends inside an FPDU
  }

  Pair pair{1};
  GuardedMemory of_a;
  GuardedMemory of_b;
  MemoryRegion* region_a;
  MemoryRegion* region_b;
  size_t sent = 0;
};

// The rings were allocated when the stream began.
TEST_F(WithoutMemory, FirstReadAndAtomicNeedNone) {
  const Sge result = here(8, 1 << 16);
  const uint64_t cell = of_b.address() + (1 << 16);
  ASSERT_EQ(read(1, kLarge, of_b.address(), region_b->key), 0);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 2, result, cell, region_b->key, 1), 0);
  for (int turn = 0; turn < 4; ++turn) {
    EXPECT_FALSE(send_without_memory(pair.a, pair.a_to_b)) << turn;
    EXPECT_FALSE(receive_without_memory(pair.b, pair.a_to_b)) << turn;
    EXPECT_FALSE(send_without_memory(pair.b, pair.b_to_a)) << turn;
    EXPECT_FALSE(receive_without_memory(pair.a, pair.b_to_a)) << turn;
  }
  pair.run();
  expect_success(pair.a, 2);
}

TEST_F(WithoutMemory, StreamThatCannotBeginHasNotBegun) {
  RegionTable regions;
  End end(regions);
  end.qp->to_rtr();
  StreamConfig config;
  config.ord = config.ird = 16;
  int throws = 0;
  for (int n = 1; n <= 2; ++n) {
    fail_allocation(n);
    try {
      (void)end.qp->start_stream(config);
    } catch (const std::bad_alloc&) {
      ++throws;
    }
    EXPECT_TRUE(stop_failing_allocations());
    EXPECT_EQ(end.qp->state(), QpState::kRtr);
    expect_both_sides_free(end);
  }
  EXPECT_EQ(throws, 2);
  EXPECT_TRUE(end.qp->start_stream(config));
  EXPECT_EQ(end.qp->state(), QpState::kRts);
}

// A failure flushes at once. The rest of a half-sent message would be sent from a copy; without
// memory for the copy it is not sent.
TEST_F(WithoutMemory, FlushOfWhatIsHalfSent) {
  send_a_part();
  EXPECT_TRUE(without_memory([&] { pair.a.qp->to_error(); }));
  expect_both_sides_free(pair.a);
  const auto done = pair.a.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kWrFlushErr);
  expect_silent_end();
}

TEST_F(WithoutMemory, DeregistrationOfWhatIsHalfSent) {
  send_a_part();
  ASSERT_EQ(pair.regions.invalidate(*region_a), 0);
  EXPECT_TRUE(without_memory([&] { pair.a.qp->quiesce(*region_a); }));
  expect_both_sides_free(pair.a);
  EXPECT_TRUE(pair.a.qp->flush_due());
  pair.a.qp->flush();
  EXPECT_EQ(pair.a.sends().size(), 1u);
  expect_silent_end();
}

TEST_F(WithoutMemory, ChangeOfARegionThatIsHalfSent) {
  send_a_part();
  EXPECT_TRUE(without_memory([&] {
    const auto held = pair.a.qp->lock_exclusive();
    pair.a.qp->region_changed(*region_a, region_a->shape(), true);
  }));
  expect_both_sides_free(pair.a);
  EXPECT_TRUE(pair.a.qp->flush_due());
  pair.a.qp->flush();
  EXPECT_EQ(pair.a.sends().size(), 1u);
  expect_silent_end();
}

// Memory on demand is sent from a copy. If the copy cannot be allocated, the next turn tries again.
TEST_F(WithoutMemory, SendFromARegionOnDemand) {
  UWARP_NEEDS_KERNEL_COPIES();
  const auto region =
      pair.regions.add({&pair.a.domain, of_a.data(), kBytes, of_a.address(),
                        kAccessLocalWrite | kAccessOnDemand, MemoryKind::kOnDemand});
  ASSERT_TRUE(region.ok());
  const Sge to = Pair::sge(of_b, region_b, 0, kLarge);
  const Sge small = here(64), large = Pair::sge(of_a, *region, 0, kLarge);
  for (uint64_t id : {1, 2}) ASSERT_EQ(pair.b.qp->post_recv(id, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 1, {&small, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&large, 1}), 0);
  EXPECT_TRUE(send_without_memory(pair.a, pair.a_to_b));
  EXPECT_LT(sent, 200u) << "the small one";
  EXPECT_GT(sent, 64u);
  EXPECT_TRUE(send_without_memory(pair.a, pair.a_to_b));
  EXPECT_EQ(sent, 0u);
  EXPECT_TRUE(pair.a.qp->transmitter().unfinished());
  EXPECT_FALSE(pair.a.qp->transmitter().dry());
  EXPECT_FALSE(pair.a.qp->transmitter().idle());
  pair.run();
  expect_success(pair.a, 2);
  EXPECT_EQ(pair.b.receives().size(), 2u);
  EXPECT_EQ(std::memcmp(of_b.data(), of_a.data(), kLarge), 0);
}

TEST_F(WithoutMemory, AnswerThroughAWindow) {
  const auto window = pair.regions.add_window(pair.b.domain, RegionKind::kWindowType1);
  ASSERT_TRUE(window.ok());
  SendRequest bind;
  bind.opcode = SendOpcode::kBindWindow;
  bind.flags = kSendSignaled;
  bind.rkey = pair.regions.window_key(**window);
  bind.bind_lkey = region_b->key.load();
  bind.remote_address = of_b.address();
  bind.bind_length_bytes = kBytes;
  bind.bind_access = kAccessRemoteRead;
  ASSERT_EQ(pair.b.qp->post_send(bind), 0);
  pair.run();
  expect_success(pair.b, 1);
  ASSERT_EQ(read(1, kLarge, of_b.address(), bind.rkey), 0);
  EXPECT_FALSE(send_without_memory(pair.a, pair.a_to_b));
  EXPECT_FALSE(receive_without_memory(pair.b, pair.a_to_b));
  EXPECT_TRUE(send_without_memory(pair.b, pair.b_to_a));
  EXPECT_EQ(sent, 0u);
  EXPECT_TRUE(pair.b.qp->transmitter().unfinished());
  pair.run();
  expect_success(pair.a, 1);
  EXPECT_EQ(std::memcmp(of_a.data(), of_b.data(), kLarge), 0);
}

// An answer is owed from memory that an atomic is to change. It is sent from a copy or, without
// memory for one, before the atomic executes.
TEST_F(WithoutMemory, AtomicBehindAnAnswer) {
  uint64_t before;
  std::memcpy(&before, of_b.data(), sizeof before);
  const Sge result = here(8, 1 << 16);
  ASSERT_EQ(read(1, kLarge, of_b.address(), region_b->key), 0);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 2, result, of_b.address(), region_b->key, 1),
            0);
  EXPECT_FALSE(send_without_memory(pair.a, pair.a_to_b));
  EXPECT_FALSE(receive_without_memory(pair.b, pair.a_to_b));
  EXPECT_TRUE(send_without_memory(pair.b, pair.b_to_a));
  EXPECT_GT(sent, kLarge) << "the first answer";
  uint64_t now;
  std::memcpy(&now, of_b.data(), sizeof now);
  EXPECT_EQ(now, before);
  pair.run();
  expect_success(pair.a, 2);
  std::memcpy(&now, of_b.data(), sizeof now);
  EXPECT_EQ(now, before + 1);
  uint64_t answered;
  std::memcpy(&answered, of_a.data(), sizeof answered);
  EXPECT_EQ(answered, before);
}

}  // namespace
}  // namespace uwarp::sim
