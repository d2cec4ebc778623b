// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Regions whose memory comes and goes, regions without memory, and regions that change during a
// transfer.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "base/spinlock.h"
#include "sim/sim_pair.h"
#include "unit/kernel_copies.h"

namespace uwarp::sim {
namespace {

constexpr size_t kSize = 64 * 1024;

/// `a` has plain memory. `b`'s memory is on demand and can be unmapped.
struct OnDemand : ::testing::TestWithParam<std::tuple<bool, size_t>> {
  OnDemand()
      : pair(1),
        mine(kSize),
        theirs(static_cast<std::byte*>(
            mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        my_region(pair.reg(pair.a, mine, kAllAccess)),
        their_region(*pair.regions.add({&pair.b.domain, theirs, kSize, address(0),
                                        kAllAccess | kAccessOnDemand, MemoryKind::kOnDemand})) {
    StreamConfig config;
    std::tie(config.crc, pair.chunk_max) = GetParam();
    mine.fill(pair.random);
    pair.connect(config);
  }
  void SetUp() override { UWARP_NEEDS_KERNEL_COPIES(); }
  ~OnDemand() override {
    EXPECT_TRUE(mine.intact());
    munmap(theirs, kSize);
  }
  uint64_t address(size_t offset) const { return reinterpret_cast<uint64_t>(theirs) + offset; }
  Sge here(size_t length) { return Pair::sge(mine, my_region, 0, length); }
  Sge there(size_t length) {
    return {address(0), static_cast<uint32_t>(length), their_region->key.load()};
  }
  /// Unmaps the second half.
  void take_away() { munmap(theirs + kSize / 2, kSize / 2); }
  WcStatus send_status(End& end) {
    const auto done = end.sends();
    return done.size() == 1 ? done[0].status : WcStatus::kFatalErr;
  }
  Pair pair;
  GuardedMemory mine;
  std::byte* theirs;
  MemoryRegion* my_region;
  MemoryRegion* their_region;
};

TEST_P(OnDemand, EverythingWorksWhileTheMemoryIsThere) {
  for (size_t size : {size_t{1}, size_t{8}, size_t{511}, size_t{20000}, kSize}) {
    Sge from = here(size), to = there(size);
    std::memset(theirs, 0, kSize);
    ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, address(0), their_region->key), 0);
    pair.run();
    EXPECT_EQ(send_status(pair.a), WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(theirs, mine.data(), size), 0);
    std::memset(theirs, 0, kSize);
    ASSERT_EQ(pair.b.qp->post_recv(2, {&to, 1}), 0);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, 3, {&from, 1}), 0);
    pair.run();
    EXPECT_EQ(send_status(pair.a), WcStatus::kSuccess);
    EXPECT_EQ(pair.b.receives().size(), 1u);
    EXPECT_EQ(std::memcmp(theirs, mine.data(), size), 0);
    // The memory is mapped again: `b` sends from it, `a` reads it.
    std::memset(mine.data(), 0, kSize);
    ASSERT_EQ(pair.a.qp->post_recv(4, {&from, 1}), 0);
    ASSERT_EQ(pair.b.post(SendOpcode::kSend, 5, {&to, 1}), 0);
    pair.run();
    EXPECT_EQ(send_status(pair.b), WcStatus::kSuccess);
    EXPECT_EQ(pair.a.receives().size(), 1u);
    EXPECT_EQ(std::memcmp(theirs, mine.data(), size), 0);
    std::memset(mine.data(), 0, kSize);
    ASSERT_EQ(pair.a.post(SendOpcode::kRead, 6, {&from, 1}, address(0), their_region->key), 0);
    pair.run();
    EXPECT_EQ(send_status(pair.a), WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(theirs, mine.data(), size), 0);
    mine.fill(pair.random);
    ASSERT_EQ(pair.b.post(SendOpcode::kRead, 7, {&to, 1}, mine.address(), my_region->key), 0);
    pair.run();
    EXPECT_EQ(send_status(pair.b), WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(theirs, mine.data(), size), 0);
  }
}

TEST_P(OnDemand, AtomicsBringThePageIn) {
  Sge result = here(8);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 1, result, address(8), their_region->key, 5),
            0);
  pair.run();
  EXPECT_EQ(send_status(pair.a), WcStatus::kSuccess);
  uint64_t value;
  std::memcpy(&value, theirs + 8, 8);
  EXPECT_EQ(value, 5u);
}

TEST_P(OnDemand, WriteToMissingMemory) {
  take_away();
  Sge from = here(kSize);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, address(0), their_region->key), 0);
  pair.run();
  EXPECT_EQ(pair.b.events, std::vector{QpEvent::kAccessError});
  EXPECT_EQ(pair.a.qp->state(), QpState::kErr);
}

TEST_P(OnDemand, ReceiveIntoMissingMemory) {
  take_away();
  Sge from = here(kSize), to = there(kSize);
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&from, 1}), 0);
  pair.run();
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kLocProtErr);
}

TEST_P(OnDemand, ReadIntoMissingMemory) {
  take_away();
  Sge to = there(kSize);
  ASSERT_EQ(pair.b.post(SendOpcode::kRead, 1, {&to, 1}, mine.address(), my_region->key), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.b), WcStatus::kLocProtErr);
}

TEST_P(OnDemand, SendFromMissingMemory) {
  take_away();
  Sge from = here(kSize), to = there(kSize);
  ASSERT_EQ(pair.a.qp->post_recv(1, {&from, 1}), 0);
  ASSERT_EQ(pair.b.post(SendOpcode::kSend, 2, {&to, 1}), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.b), WcStatus::kLocProtErr);
}

TEST_P(OnDemand, ReadFromMissingMemory) {
  take_away();
  Sge to = here(kSize);
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 1, {&to, 1}, address(0), their_region->key), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.a), WcStatus::kRemAccessErr);
}

TEST_P(OnDemand, AtomicOnMissingMemory) {
  take_away();
  Sge result = here(8);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 1, result, address(kSize - 8),
                               their_region->key, 5),
            0);
  pair.run();
  EXPECT_EQ(send_status(pair.a), WcStatus::kRemAccessErr);
}

TEST_P(OnDemand, AtomicResultIntoMissingMemory) {
  take_away();
  Sge result = {address(kSize - 8), 8, their_region->key.load()};
  ASSERT_EQ(pair.b.post_atomic(SendOpcode::kFetchAdd, 1, result, mine.address(), my_region->key, 5),
            0);
  pair.run();
  EXPECT_EQ(send_status(pair.b), WcStatus::kLocProtErr);
}

TEST_P(OnDemand, WindowOntoIt) {
  MemoryRegion* window = *pair.regions.add_window(pair.b.domain, RegionKind::kWindowType1);
  MemoryRegion* region = *pair.regions.add(
      {&pair.b.domain, theirs, kSize, 0, kAllAccess | kAccessMwBind, MemoryKind::kOnDemand});
  const STag key{pair.regions.window_key(*window)};
  ASSERT_TRUE(
      pair.regions.bind({key, region->key.load(), 0, kSize, kAllAccess}, {&pair.b.domain, 1, ~0u}));
  Sge from = here(20000);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, 0, key.value), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.a), WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(theirs, mine.data(), 20000), 0);
  take_away();
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {&from, 1}, kSize / 2, key.value), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.a), WcStatus::kRemAccessErr);
  pair.regions.release_window(*window);
}

TEST_P(OnDemand, NothingTakesAndGivesAnyAmount) {
  MemoryRegion* nothing = *pair.regions.add(
      {&pair.b.domain, nullptr, ~uint64_t{0}, 0, kAccessLocalWrite, MemoryKind::kNull});
  Sge from = here(kSize), to = {77, kSize, nothing->key.load()};
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&from, 1}), 0);
  pair.run();
  EXPECT_EQ(pair.b.receives().size(), 1u);
  ASSERT_EQ(pair.b.post(SendOpcode::kWrite, 3, {&to, 1}, mine.address(), my_region->key), 0);
  pair.run();
  EXPECT_EQ(send_status(pair.b), WcStatus::kSuccess);
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(mine.data()[i], std::byte{0}) << i;
}

/// If a region changes while a Write is inside a segment, the rest goes to the region's new memory.
TEST_P(OnDemand, ChangedRegionTakesTheRestOfAWrite) {
  GuardedMemory first(kSize), second(kSize);
  MemoryRegion* region = *pair.regions.add({&pair.b.domain, first.data(), kSize, 0, kAllAccess});
  Sge from = here(kSize);
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, 0, region->key), 0);
  pair.a_to_b.capacity = 30000;
  while (pair.a_to_b.bytes.size() < pair.a_to_b.capacity)
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  {
    const QueuePair::Exclusive exclusive = pair.b.qp->lock_exclusive();
    const RegionShape old = region->shape();
    ASSERT_EQ(pair.regions.change(*region, {&pair.b.domain, second.data(), kSize, 0, kAllAccess}),
              0);
    pair.b.qp->region_changed(*region, old, true);
  }
  std::memset(first.data(), 0x77, kSize);
  pair.a_to_b.capacity = 1 << 20;
  pair.run();
  EXPECT_TRUE(pair.b.events.empty());
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(first.data()[i], std::byte{0x77});
  EXPECT_EQ(std::memcmp(second.data() + kSize / 2, mine.data() + kSize / 2, kSize / 2), 0);
}

TEST_P(OnDemand, ChangedRegionTakesNoMoreOfASend) {
  GuardedMemory first(kSize), second(kSize);
  MemoryRegion* region = *pair.regions.add({&pair.b.domain, first.data(), kSize, 0, kAllAccess});
  Sge from = here(kSize), to = {0, kSize, region->key.load()};
  ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
  ASSERT_EQ(pair.a.post(SendOpcode::kSend, 2, {&from, 1}), 0);
  pair.a_to_b.capacity = 30000;
  while (pair.a_to_b.bytes.size() < pair.a_to_b.capacity)
    pair.step(pair.a, pair.a_to_b, pair.b_to_a);
  while (pair.a_to_b.bytes.size() > 10000) pair.step(pair.b, pair.b_to_a, pair.a_to_b);
  {
    const QueuePair::Exclusive exclusive = pair.b.qp->lock_exclusive();
    const RegionShape old = region->shape();
    ASSERT_EQ(pair.regions.change(*region, {&pair.b.domain, second.data(), kSize, 0, kAllAccess}),
              0);
    pair.b.qp->region_changed(*region, old, true);
  }
  std::memset(first.data(), 0x77, kSize);
  pair.a_to_b.capacity = 1 << 20;
  pair.run();
  const auto got = pair.b.receives();
  ASSERT_EQ(got.size(), 1u);
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(first.data()[i], std::byte{0x77});
  // With CRC, no byte is placed and no key is looked up before the segment is complete.
  if (got[0].status == WcStatus::kSuccess) {
    EXPECT_TRUE(std::get<0>(GetParam()));
    EXPECT_EQ(std::memcmp(second.data(), mine.data(), kSize), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    CrcAndCuts, OnDemand,
    ::testing::Combine(::testing::Bool(), ::testing::Values(size_t{0}, size_t{37}, size_t{5000})));

// A page goes away at any point of an atomic. That may end the connection, never the process.
TEST(OnDemandAtomics, WhileAThreadTakesThePageAway) {
  UWARP_NEEDS_KERNEL_COPIES();
  void* const page =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::atomic<bool> stop{false};
  std::thread taker([&] {
    while (!stop.load()) {
      mprotect(page, kSize, PROT_NONE);
      mprotect(page, kSize, PROT_READ | PROT_WRITE);
      for (int i = 0; i < 200; ++i)
        Atomics::cpu_relax();  // some of the atomics meet the missing page
    }
  });
  std::set<WcStatus> seen;
  for (int i = 0; i < 500; ++i) {
    Pair pair(1);
    GuardedMemory mine(8);
    MemoryRegion* const region = *pair.regions.add(
        {&pair.b.domain, page, kSize, 0, kAllAccess | kAccessOnDemand, MemoryKind::kOnDemand});
    const Sge result = Pair::sge(mine, pair.reg(pair.a, mine, kAllAccess), 0, 8);
    pair.connect();
    for (int n = 0; n < 60; ++n)
      EXPECT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 1, result, 8, region->key, 1), 0);
    pair.run();
    for (const WorkCompletion& done : pair.a.sends()) seen.insert(done.status);
  }
  stop = true;
  taker.join();
  munmap(page, kSize);
  const std::set<WcStatus> allowed{WcStatus::kSuccess, WcStatus::kRemAccessErr,
                                   WcStatus::kWrFlushErr};
  EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), seen.begin(), seen.end()));
}

}  // namespace
}  // namespace uwarp::sim
