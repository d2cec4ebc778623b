// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/region_directory.h"

#include <gtest/gtest.h>

#include <vector>

#include "memory/region_table.h"

namespace uwarp {
namespace {

constexpr uint32_t kRights = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead;

struct Shared {
  Shared() { table.enter_into(directory); }
  ProtectionDomain domain;
  std::vector<DirectoryEntry> entries = std::vector<DirectoryEntry>(256);
  RegionDirectory directory{entries.data(), 256};
  PeerRegions peer{entries.data(), 256};
  RegionTable table;
  std::byte memory[4096] = {};

  MemoryRegion& add(TaggedOffset first, uint32_t access = kRights) {
    return **table.add(domain, memory, sizeof memory, first, access);
  }
  std::optional<PeerRegions::Region> find(uint32_t key) const {
    const uint32_t entry = peer.find(key);
    return entry == RegionDirectory::kNowhere ? std::nullopt : peer.read(entry, key);
  }
};

TEST(RegionDirectory, ShowsWhatTheTableKnows) {
  Shared shared;
  const MemoryRegion& region = shared.add(0x10'0000);
  const auto found = shared.find(region.key);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->domain, reinterpret_cast<uintptr_t>(&shared.domain));
  EXPECT_EQ(found->access, kRights);
  EXPECT_EQ(found->range(0x10'0000 + 96, 4000), reinterpret_cast<uintptr_t>(shared.memory) + 96);
  for (const auto& [offset, length] : {std::pair<TaggedOffset, uint64_t>{0x0f'ffff, 1},
                                       {0x10'0001, 4096},
                                       {0x10'1001, 1},
                                       {0x10'0000, ~uint64_t{0}},
                                       {~uint64_t{0}, 2}})
    EXPECT_FALSE(found->range(offset, length)) << offset;
  EXPECT_FALSE(shared.find(region.key ^ 1)) << "an older key of the same place";
}

TEST(RegionDirectory, HasRegionsFromBeforeItWasMade) {
  Shared shared;
  RegionTable table;
  const MemoryRegion& region =
      **table.add(shared.domain, shared.memory, sizeof shared.memory, 0, kRights);
  table.enter_into(shared.directory);
  EXPECT_TRUE(shared.find(region.key));
}

TEST(RegionDirectory, LeavesOutWhatPeersMayNotReachByThemselves) {
  Shared shared;
  EXPECT_FALSE(shared.find(shared.add(0, kAccessLocalWrite).key)) << "no rights";
  EXPECT_FALSE(shared.find(shared.add(0, kAccessLocalWrite | kAccessRemoteAtomic).key));
  RegionShape shape{&shared.domain, shared.memory, 64, 0, kRights, MemoryKind::kOnDemand};
  EXPECT_FALSE(shared.find((*shared.table.add(shape))->key)) << "perhaps not mapped";
  ProtectionDomain own{.own = true};
  EXPECT_FALSE(shared.find((*shared.table.add(own, shared.memory, 64, 0, kRights))->key));
}

TEST(RegionDirectory, ForgetsAndChanges) {
  Shared shared;
  MemoryRegion& region = shared.add(0);
  const uint32_t key = region.key;
  const uint32_t entry = shared.table.take_out_of_directory(region);
  EXPECT_NE(entry, RegionDirectory::kNowhere);
  EXPECT_FALSE(shared.find(key));
  EXPECT_FALSE(shared.peer.read(entry, key)) << "nor who has found it before";
  EXPECT_EQ(shared.table.take_out_of_directory(region), RegionDirectory::kNowhere);
  ASSERT_EQ(shared.table.change(region, {&shared.domain, shared.memory, 100, 7, kRights}), 0);
  ASSERT_TRUE(shared.find(key));
  EXPECT_EQ(shared.find(key)->length_bytes, 100u);
}

// A region to which a window is bound cannot be changed, and stays where it was.
TEST(RegionDirectory, KeepsARegionThatCannotBeChanged) {
  Shared shared;
  MemoryRegion& region = shared.add(0, kRights | kAccessMwBind);
  MemoryRegion& window = **shared.table.add_window(shared.domain, RegionKind::kWindowType1);
  ASSERT_TRUE(shared.table.bind({.key = STag{shared.table.window_key(window)},
                                 .region_key = region.key,
                                 .length_bytes = 64,
                                 .access = kAccessRemoteWrite},
                                {&shared.domain, 0, 0}));
  (void)shared.table.take_out_of_directory(region);
  EXPECT_EQ(shared.table.change(region, {&shared.domain, shared.memory, 100, 7, kRights}), EBUSY);
  EXPECT_TRUE(shared.find(region.key));
  shared.table.release_window(window);
}

// Those that find no place are reached through the stream.
TEST(RegionDirectory, MayBeFull) {
  Shared shared;
  std::vector<const MemoryRegion*> regions;
  for (int i = 0; i < 1000; ++i) regions.push_back(&shared.add(static_cast<TaggedOffset>(i)));
  int found = 0;
  for (size_t i = 0; i != regions.size(); ++i) {
    const auto region = shared.find(regions[i]->key);
    if (!region) continue;
    EXPECT_EQ(region->first, i);
    ++found;
  }
  EXPECT_GT(found, 200);
  EXPECT_LE(found, 256);
}

}  // namespace
}  // namespace uwarp
