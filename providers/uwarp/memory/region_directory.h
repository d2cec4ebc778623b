// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the STag table knows, for peers on this host that may read and write the memory of this
// process: which keys there are, and what they lead to. Its memory is shared with them, and only
// this process writes it. The table stays the truth: a region that finds no place here is reached
// through the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/atomics.h"
#include "memory/memory_region.h"

namespace uwarp {

/// A region; a cache line. Zero: none.
struct alignas(64) DirectoryEntry {
  RegionKey key;
  Atomic<uint64_t> domain{0};  // names the protection domain
  Atomic<uint64_t> address{0};
  Atomic<uint64_t> length_bytes{0};
  Atomic<uint64_t> first{0};  // tagged offset
  Atomic<uint32_t> access{0};
};

/// A key may stand in any of the entries from its own one on, so many of them.
inline constexpr uint32_t kDirectoryProbes = 8;

/// By the process whose regions they are. One thread at a time.
class RegionDirectory {
 public:
  static constexpr uint32_t kEntries = 1 << 16;
  static constexpr size_t kBytes = kEntries * sizeof(DirectoryEntry);
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  /// `entries`: zeros, a power of two of them.
  explicit RegionDirectory(DirectoryEntry* entries, uint32_t count = kEntries)
      : entries_(entries), mask_(count - 1) {}

  /// Only what has rights for peers, and is mapped for as long as it is registered.
  void enter(uint32_t key, const RegionShape& shape);
  /// Peers do not find the key any more. One that has found it may still use it: the entry that the
  /// key had, or kNowhere.
  uint32_t remove(uint32_t key);

 private:
  DirectoryEntry* const entries_;
  const uint32_t mask_;
};

/// By a peer, which believes nothing of what it reads but that it is the other's own loss.
class PeerRegions {
 public:
  PeerRegions(const DirectoryEntry* entries, uint32_t count = RegionDirectory::kEntries)
      : entries_(entries), mask_(count - 1) {}

  struct Region {
    uint64_t domain;
    uint64_t address;
    uint64_t length_bytes;
    TaggedOffset first;
    uint32_t access;

    /// The address that [offset, offset + length) begins at; nothing if it does not lie inside.
    std::optional<uint64_t> range(TaggedOffset offset, uint64_t length) const {
      if (offset < first || offset - first > length_bytes ||
          length > length_bytes - (offset - first))
        return std::nullopt;
      return address + (offset - first);
    }
  };
  /// The entry of a key; kNowhere.
  uint32_t find(uint32_t key) const;
  /// What the key leads to, if it still stands in `entry`. Between RemoteUse::begin() and end(), in
  /// which the entry does not become another's.
  std::optional<Region> read(uint32_t entry, uint32_t key) const;

 private:
  const DirectoryEntry* const entries_;
  const uint32_t mask_;
};

}  // namespace uwarp
