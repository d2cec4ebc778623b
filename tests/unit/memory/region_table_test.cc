// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/region_table.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace uwarp {
namespace {

constexpr uint32_t kAll = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead;

struct Table : ::testing::Test {
  MemoryRegion* add(uint32_t access = kAll) {
    return *table.add(domain, memory, sizeof memory, 0x1000, access);
  }
  RegionFault remote(STag stag, TaggedOffset offset, uint64_t length,
                     uint32_t needed = kAccessRemoteWrite) {
    RemoteRange place;
    const RegionFault fault = table.remote(stag, offset, length, needed, {&domain, 1, ~0u}, place);
    EXPECT_EQ(bool{place}, fault == RegionFault::kNone);
    return fault;
  }
  RegionTable table;
  ProtectionDomain domain, other;
  std::byte memory[256];
};

TEST_F(Table, KeyNamesTheRegionForLocalAndForRemoteUse) {
  MemoryRegion* region = add();
  EXPECT_EQ(table.find(STag{region->key.load()}), region);
  RegionFault fault;
  EXPECT_EQ(table.local(region->key.load(), 0x1000, 1, 0, domain, fault).region, region);
  EXPECT_EQ(remote(STag{region->key.load()}, 0x1000, 1), RegionFault::kNone);
  EXPECT_EQ(table.find(STag{0}), nullptr);
}

TEST_F(Table, CountsWhatIsLive) {
  EXPECT_EQ(table.live_count(), 0u);
  MemoryRegion* region = add();
  MemoryRegion* window = *table.add_window(domain, RegionKind::kWindowType1);
  EXPECT_EQ(table.live_count(), 2u);
  EXPECT_EQ(domain.regions.load(), 1u);
  EXPECT_EQ(domain.users.load(), 1u);
  table.release_window(*window);
  EXPECT_EQ(table.invalidate(*region), 0);
  EXPECT_EQ(table.live_count(), 1u);
  table.release(*region);
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(domain.regions.load(), 0u);
  EXPECT_EQ(domain.users.load(), 0u);
}

// A peer may know the key of a region that it may not access.
TEST_F(Table, KeyWithoutRemoteRightsIsRefused) {
  for (uint32_t access : {uint32_t{0}, uint32_t{kAccessLocalWrite}}) {
    const STag stag{add(access)->key.load()};
    for (uint32_t needed : {kAccessRemoteWrite, kAccessRemoteRead, kAccessRemoteAtomic})
      EXPECT_EQ(remote(stag, 0x1000, 8, needed), RegionFault::kRights);
  }
}

TEST_F(Table, KeyOfAWindowIsNoneForLocalUse) {
  const uint32_t region = add(kAll | kAccessMwBind)->key.load();
  MemoryRegion* window = *table.add_window(domain, RegionKind::kWindowType1);
  MemoryRegion* other = *table.add_window(domain, RegionKind::kWindowType1);
  const STag key{table.window_key(*window)};
  ASSERT_TRUE(table.bind({key, region, 0x1000, 16, kAccessRemoteWrite}, {&domain, 1, ~0u}));
  ASSERT_EQ(remote(key, 0x1000, 1), RegionFault::kNone);
  RegionFault fault;
  EXPECT_FALSE(table.local(key.value, 0x1000, 1, 0, domain, fault));
  EXPECT_EQ(fault, RegionFault::kInvalidSTag);
  // Another window cannot be bound to it either.
  EXPECT_FALSE(
      table.bind({STag{table.window_key(*other)}, key.value, 0x1000, 16, kAccessRemoteWrite},
                 {&domain, 1, ~0u}));
}

TEST_F(Table, BoundsAreExactAndOverflowSafe) {
  const STag stag{add()->key.load()};
  EXPECT_EQ(remote(stag, 0x1000, 256), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x10ff, 1), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x1100, 0), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x0fff, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1000, 257), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1100, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1101, 1), RegionFault::kBounds) << "begins behind the end";
  EXPECT_EQ(remote(stag, 0x1101, 0), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, ~uint64_t{0} - 3, 8), RegionFault::kWrap);
  EXPECT_EQ(remote(stag, 0x1001, ~uint64_t{0}), RegionFault::kWrap);
  EXPECT_EQ(remote(stag, 1, ~uint64_t{0} - 1), RegionFault::kBounds);
}

TEST_F(Table, ChecksComeInOrder) {
  const STag stag{add(kAccessRemoteRead)->key.load()};
  RemoteRange place;
  EXPECT_EQ(table.remote(stag, 0, 1, kAccessRemoteWrite, {&other, 1, ~0u}, place),
            RegionFault::kWrongDomain);
  EXPECT_EQ(remote(stag, 0, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1000, 1), RegionFault::kRights);
  EXPECT_EQ(remote(stag, 0x1000, 1, kAccessRemoteRead), RegionFault::kNone);
}

TEST_F(Table, LocalAccessNeedsTheRightToWriteOnlyForSinks) {
  const uint32_t key = add(0)->key.load();
  RegionFault fault;
  EXPECT_EQ(table.local(key, 0x1010, 16, 0, domain, fault).address, memory + 16);
  EXPECT_FALSE(table.local(key, 0x1010, 16, kAccessLocalWrite, domain, fault));
  EXPECT_EQ(fault, RegionFault::kRights);
}

TEST_F(Table, InvalidKeysStayInvalidLong) {
  MemoryRegion* region = add();
  const STag stag{region->key.load()};
  table.invalidate(*region);
  EXPECT_EQ(remote(stag, 0x1000, 1), RegionFault::kInvalidSTag);
  table.release(*region);
  std::set<uint32_t> keys;
  for (int i = 0; i < 5000; ++i) {
    MemoryRegion* next = add();
    EXPECT_NE(next->key.load(), stag.value);
    keys.insert(next->key.load());
    table.invalidate(*next);
    table.release(*next);
  }
  EXPECT_EQ(keys.size(), 5000u);
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(domain.regions.load(), 0u);
}

TEST_F(Table, ChangedRegionKeepsItsKey) {
  MemoryRegion* region = add();
  const uint32_t key = region->key.load();
  ASSERT_EQ(table.change(*region, {&other, memory + 16, 32, 0, kAccessLocalWrite}), 0);
  EXPECT_EQ(region->key.load(), key);
  EXPECT_EQ(domain.regions.load(), 0u);
  EXPECT_EQ(other.regions.load(), 1u);
  RegionFault fault;
  EXPECT_FALSE(table.local(key, 0, 1, 0, domain, fault));
  EXPECT_EQ(table.local(key, 8, 8, kAccessLocalWrite, other, fault).address, memory + 24);
  EXPECT_FALSE(table.local(key, 1, 32, 0, other, fault));
}

TEST_F(Table, NoChangeWhileAWindowIsBound) {
  MemoryRegion* region = add(kAll | kAccessMwBind);
  MemoryRegion* window = *table.add_window(domain, RegionKind::kWindowType1);
  ASSERT_TRUE(table.bind(
      {STag{table.window_key(*window)}, region->key.load(), 0x1000, 16, kAccessRemoteRead},
      {&domain, 1, ~0u}));
  EXPECT_EQ(table.change(*region, {&domain, memory, 32, 0, kAll}), EBUSY);
  EXPECT_EQ(remote(STag{region->key.load()}, 0x1000, 64), RegionFault::kNone);
  table.release_window(*window);
  EXPECT_EQ(table.change(*region, {&domain, memory, 32, 0, kAll}), 0);
}

TEST_F(Table, RegionWithoutMemoryIsForLocalUse) {
  MemoryRegion* region =
      *table.add({&domain, nullptr, ~uint64_t{0}, 0, kAccessLocalWrite, MemoryKind::kNull});
  EXPECT_EQ(remote(STag{region->key.load()}, 0, 8), RegionFault::kRights);
  RegionFault fault;
  EXPECT_TRUE(table.local(region->key.load(), ~uint64_t{0} - 10, 10, 0, domain, fault));
  EXPECT_TRUE(table.local(region->key.load(), 0, 1 << 30, kAccessLocalWrite, domain, fault));
}

}  // namespace
}  // namespace uwarp
