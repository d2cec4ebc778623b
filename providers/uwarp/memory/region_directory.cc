// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/region_directory.h"

namespace uwarp {
namespace {

// The upper 24 bits of a key are as good as random.
uint32_t entry_of(uint32_t key, uint32_t probe, uint32_t mask) {
  return ((key >> 8) + probe) & mask;
}

}  // namespace

void RegionDirectory::enter(uint32_t key, const RegionShape& shape) {
  constexpr uint32_t kRights = kAccessRemoteWrite | kAccessRemoteRead;
  if ((shape.access & kRights) == 0 || shape.memory != MemoryKind::kPlain || shape.domain->own)
    return;
  for (uint32_t probe = 0; probe != kDirectoryProbes; ++probe) {
    DirectoryEntry& entry = entries_[entry_of(key, probe, mask_)];
    if (entry.key.load(std::memory_order_relaxed) != 0) continue;
    entry.domain.store(reinterpret_cast<uintptr_t>(shape.domain), std::memory_order_release);
    entry.address.store(reinterpret_cast<uintptr_t>(shape.address), std::memory_order_release);
    entry.length_bytes.store(shape.length_bytes, std::memory_order_release);
    entry.first.store(shape.first, std::memory_order_release);
    entry.access.store(shape.access, std::memory_order_release);
    return entry.key.store(key);
  }
}

uint32_t RegionDirectory::remove(uint32_t key) {
  const uint32_t at = PeerRegions(entries_, mask_ + 1).find(key);
  if (at != kNowhere) entries_[at].key.store(0);
  return at;
}

uint32_t PeerRegions::find(uint32_t key) const {
  for (uint32_t probe = 0; probe != kDirectoryProbes; ++probe) {
    const uint32_t at = entry_of(key, probe, mask_);
    if (entries_[at].key.load(std::memory_order_relaxed) == key) return at;
  }
  return RegionDirectory::kNowhere;
}

std::optional<PeerRegions::Region> PeerRegions::read(uint32_t at, uint32_t key) const {
  const DirectoryEntry& entry = entries_[at];
  if (entry.key.load(std::memory_order_seq_cst) != key) return std::nullopt;
  return Region{
      entry.domain.load(std::memory_order_acquire), entry.address.load(std::memory_order_acquire),
      entry.length_bytes.load(std::memory_order_acquire),
      entry.first.load(std::memory_order_acquire), entry.access.load(std::memory_order_acquire)};
}

}  // namespace uwarp
