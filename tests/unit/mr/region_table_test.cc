// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "mr/region_table.h"

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
    RemotePlace place;
    const RegionFault fault = table.remote(stag, offset, length, needed, {&domain, 1, ~0u}, place);
    EXPECT_EQ(bool{place}, fault == RegionFault::kNone);
    return fault;
  }
  RegionTable table;
  ProtectionDomain domain, other;
  std::byte memory[256];
};

TEST(SlotCipher, IsAPermutation) {
  SlotCipher cipher(0x1234567890abcdef);
  std::set<uint32_t> seen;
  for (uint32_t slot = 0; slot < 100000; ++slot) {
    const uint32_t sealed = cipher.encrypt(slot);
    EXPECT_LT(sealed, 1u << 24);
    EXPECT_EQ(cipher.decrypt(sealed), slot);
    seen.insert(sealed);
  }
  EXPECT_EQ(seen.size(), 100000u);
}

TEST_F(Table, KeysDifferAndNameTheRegion) {
  MemoryRegion* region = add();
  EXPECT_NE(region->lkey.load(), region->rkey.load());
  EXPECT_EQ(table.find_local(region->lkey.load()), region);
  EXPECT_EQ(table.find_remote(STag{region->rkey.load()}), region);
  // A local key is no key on the wire, and the reverse.
  EXPECT_EQ(table.find_remote(STag{region->lkey.load()}), nullptr);
  EXPECT_EQ(table.find_local(region->rkey.load()), nullptr);
  EXPECT_EQ(table.find_remote(STag{0}), nullptr);
}

TEST_F(Table, BoundsAreExactAndOverflowSafe) {
  const STag stag{add()->rkey.load()};
  EXPECT_EQ(remote(stag, 0x1000, 256), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x10ff, 1), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x1100, 0), RegionFault::kNone);
  EXPECT_EQ(remote(stag, 0x0fff, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1000, 257), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1100, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, ~uint64_t{0} - 3, 8), RegionFault::kWrap);
  EXPECT_EQ(remote(stag, 0x1001, ~uint64_t{0}), RegionFault::kWrap);
  EXPECT_EQ(remote(stag, 1, ~uint64_t{0} - 1), RegionFault::kBounds);
}

TEST_F(Table, ChecksComeInOrder) {
  const STag stag{add(kAccessRemoteRead)->rkey.load()};
  RemotePlace place;
  EXPECT_EQ(table.remote(stag, 0, 1, kAccessRemoteWrite, {&other, 1, ~0u}, place),
            RegionFault::kWrongDomain);
  EXPECT_EQ(remote(stag, 0, 1), RegionFault::kBounds);
  EXPECT_EQ(remote(stag, 0x1000, 1), RegionFault::kRights);
  EXPECT_EQ(remote(stag, 0x1000, 1, kAccessRemoteRead), RegionFault::kNone);
}

TEST_F(Table, LocalAccessNeedsTheRightToWriteOnlyForSinks) {
  const uint32_t lkey = add(0)->lkey.load();
  RegionFault fault;
  EXPECT_EQ(table.local(lkey, 0x1010, 16, 0, domain, fault).address, memory + 16);
  EXPECT_FALSE(table.local(lkey, 0x1010, 16, kAccessLocalWrite, domain, fault));
  EXPECT_EQ(fault, RegionFault::kRights);
}

TEST_F(Table, InvalidKeysStayInvalidLong) {
  MemoryRegion* region = add();
  const STag stag{region->rkey.load()};
  table.invalidate(*region);
  EXPECT_EQ(remote(stag, 0x1000, 1), RegionFault::kInvalidSTag);
  table.release(*region);
  std::set<uint32_t> keys;
  for (int i = 0; i < 5000; ++i) {
    MemoryRegion* next = add();
    EXPECT_NE(next->rkey.load(), stag.value);
    keys.insert(next->rkey.load());
    table.invalidate(*next);
    table.release(*next);
  }
  EXPECT_EQ(keys.size(), 5000u);
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_EQ(domain.regions.load(), 0u);
}

TEST_F(Table, ChangedRegionKeepsItsKeys) {
  MemoryRegion* region = add();
  const uint32_t lkey = region->lkey.load(), rkey = region->rkey.load();
  ASSERT_EQ(table.change(*region, {&other, memory + 16, 32, 0, kAccessLocalWrite}), 0);
  EXPECT_EQ(region->lkey.load(), lkey);
  EXPECT_EQ(region->rkey.load(), rkey);
  EXPECT_EQ(domain.regions.load(), 0u);
  EXPECT_EQ(other.regions.load(), 1u);
  RegionFault fault;
  EXPECT_FALSE(table.local(lkey, 0, 1, 0, domain, fault));
  EXPECT_EQ(table.local(lkey, 8, 8, kAccessLocalWrite, other, fault).address, memory + 24);
  EXPECT_FALSE(table.local(lkey, 1, 32, 0, other, fault));
}

TEST_F(Table, NoChangeWhileAWindowIsBound) {
  MemoryRegion* region = add(kAll | kAccessMwBind);
  MemoryRegion* window = *table.add_window(domain, RegionKind::kWindowType1);
  ASSERT_TRUE(table.bind(
      {STag{table.window_key(*window)}, region->lkey.load(), 0x1000, 16, kAccessRemoteRead},
      {&domain, 1, ~0u}));
  EXPECT_EQ(table.change(*region, {&domain, memory, 32, 0, kAll}), EBUSY);
  EXPECT_EQ(remote(STag{region->rkey.load()}, 0x1000, 64), RegionFault::kNone);
  table.release_window(*window);
  EXPECT_EQ(table.change(*region, {&domain, memory, 32, 0, kAll}), 0);
}

TEST_F(Table, RegionWithoutMemoryHasNoRemoteKey) {
  MemoryRegion* region =
      *table.add({&domain, nullptr, ~uint64_t{0}, 0, kAccessLocalWrite, MemoryKind::kNull});
  EXPECT_EQ(region->rkey.load(), 0u);
  RegionFault fault;
  EXPECT_TRUE(table.local(region->lkey.load(), ~uint64_t{0} - 10, 10, 0, domain, fault));
  EXPECT_TRUE(table.local(region->lkey.load(), 0, 1 << 30, kAccessLocalWrite, domain, fault));
}

}  // namespace
}  // namespace uwarp
