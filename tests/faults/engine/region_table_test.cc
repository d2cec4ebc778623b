// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/region_table.h"

#include <cerrno>

#include "faults/engine/without_memory.h"

namespace uwarp {
namespace {

TEST(RegionTableWithoutMemory, FirstRegionIsRefusedAndTheNextIsGood) {
  RegionTable table;
  ProtectionDomain domain;
  std::byte memory[64];
  const auto add = [&] { return table.add(domain, memory, sizeof memory, 0, kAccessLocalWrite); };
  EXPECT_TRUE(without_memory([&] {
    const auto refused = add();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error(), ENOMEM);
  }));
  EXPECT_EQ(domain.regions.load(), 0u);
  const auto region = add();
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(table.find(STag{(*region)->key.load()}), *region);
  EXPECT_EQ(table.invalidate(**region), 0);
  // Releasing a region allocates nothing.
  EXPECT_FALSE(without_memory([&] { table.release(**region); }));
  EXPECT_EQ(domain.regions.load(), 0u);
  EXPECT_EQ(table.live_count(), 0u);
}

}  // namespace
}  // namespace uwarp
