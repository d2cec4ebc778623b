// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The STag table: which memory a key names, and what may be done to it. Owns the keys and the
// slots; never the memory. Knows nothing of queue pairs, wire formats or sockets.
// Implements RFC 5040 8.1.1 (STag scope and rights) and RFC 5041 7 (tagged buffer checks).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace uwarp {

/// Access rights of a region; the values are those of ibv_access_flags.
enum Access : uint32_t {
  kAccessLocalWrite = 1u << 0,
  kAccessRemoteWrite = 1u << 1,
  kAccessRemoteRead = 1u << 2,
  kAccessRemoteAtomic = 1u << 3,
  kAccessMwBind = 1u << 4,
  kAccessZeroBased = 1u << 5,
  kAccessOnDemand = 1u << 6,
};

/// A DDP protection domain: regions and queue pairs of one domain may meet, others may not.
struct ProtectionDomain {
  uint32_t handle = 0;
  /// Queue pairs and shared receive queues of the domain; it cannot be deallocated before zero.
  std::atomic<uint32_t> users{0};
  /// Regions that refer to it; its memory stays until zero.
  std::atomic<uint32_t> regions{0};
};

/// Why an access was refused. The order is the order of the checks (verbs-level rule).
enum class RegionFault : uint8_t { kNone, kInvalidSTag, kWrongDomain, kBounds, kWrap, kRights };

/// One registered range. Slots never move and are never returned to the allocator while the table
/// lives, so a reader may hold a pointer and must only re-check the key before each use.
struct MemoryRegion {
  /// Live keys; 0 while the slot is free or being torn down. Written last on registration
  /// (release), first on invalidation.
  std::atomic<uint32_t> lkey{0};
  std::atomic<uint32_t> rkey{0};
  uint32_t access = 0;
  uint32_t slot = 0;
  uint8_t generation = 0;
  const ProtectionDomain* domain = nullptr;
  std::byte* base = nullptr;
  /// First tagged offset of the range: its virtual address, an iova, or 0 when zero-based.
  TaggedOffset first = 0;
  uint64_t length_bytes = 0;

  /// The address that `offset` names, if [offset, offset + length) lies inside; null and `fault`
  /// otherwise. Overflow-safe on both ends.
  std::byte* range(TaggedOffset offset, uint64_t length, RegionFault& fault) const {
    if (offset + length < offset) return fault = RegionFault::kWrap, nullptr;
    if (offset < first || offset - first > length_bytes || length > length_bytes - (offset - first))
      return fault = RegionFault::kBounds, nullptr;
    fault = RegionFault::kNone;
    return base + (offset - first);
  }
};

/// A keyed permutation of 24 bits (a four-round Feistel network): slot numbers become the upper 24
/// bits of a key that a peer cannot predict from the keys it has seen.
class SlotCipher {
 public:
  explicit SlotCipher(uint64_t secret) : secret_(secret) {}
  uint32_t encrypt(uint32_t slot) const;
  uint32_t decrypt(uint32_t sealed) const;

 private:
  uint32_t round(uint32_t half, int number) const {
    uint64_t x = (secret_ ^ (half + 0x9e3779b97f4a7c15ull * (number + 1))) * 0xff51afd7ed558ccdull;
    return static_cast<uint32_t>(x >> 40) & 0xfff;
  }
  uint64_t secret_;
};

/// All regions of the process. Registration and removal take a lock; look-ups take none.
class RegionTable {
 public:
  RegionTable();

  /// Enters [address, address + length) with tagged offsets from `first`. The memory stays the
  /// caller's. Errors: ENOMEM when max_mr is reached.
  Result<MemoryRegion*> add(ProtectionDomain& domain, void* address, uint64_t length,
                            TaggedOffset first, uint32_t access);

  /// Makes both keys invalid at once. Accesses that looked the region up before may still be under
  /// way: the caller quiesces the queue pairs of the domain, then calls release().
  void invalidate(MemoryRegion& region);

  /// Gives the slot back. Freed slots are reused oldest first, so that a key stays unused long.
  void release(MemoryRegion& region);

  /// The region of a local key, null if there is none. Lock-free.
  const MemoryRegion* find_local(uint32_t lkey) const {
    return check(local_cipher_.decrypt(lkey >> 8), &MemoryRegion::lkey, lkey);
  }
  /// The region of a key from the wire, null if there is none. Lock-free.
  const MemoryRegion* find_remote(STag stag) const {
    return check(remote_cipher_.decrypt(stag.value >> 8), &MemoryRegion::rkey, stag.value);
  }

  /// Address of [offset, offset + length) under a local key for `needed` rights (0 or
  /// kAccessLocalWrite); null and `fault` otherwise.
  std::byte* local(uint32_t lkey, TaggedOffset offset, uint64_t length, uint32_t needed,
                   const ProtectionDomain& domain, RegionFault& fault) const;

  /// The region behind a key from the wire if the whole access is allowed; null and `fault`
  /// otherwise. Checks in the order of RegionFault.
  const MemoryRegion* remote(STag stag, TaggedOffset offset, uint64_t length, uint32_t needed,
                             const ProtectionDomain& domain, RegionFault& fault) const;

  uint32_t live_count() const { return live_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunkCount = 1024;  // 2^20 slots; slot numbers fit 24 bits
  struct Chunk {
    MemoryRegion slots[kChunkSlots];
  };

  const MemoryRegion* check(uint32_t slot, std::atomic<uint32_t> MemoryRegion::*key,
                            uint32_t expected) const {
    if (slot >= kChunkSlots * kChunkCount || expected == 0) return nullptr;
    const Chunk* chunk = chunks_[slot / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const MemoryRegion& region = chunk->slots[slot % kChunkSlots];
    return (region.*key).load(std::memory_order_acquire) == expected ? &region : nullptr;
  }
  MemoryRegion* take_slot();

  SlotCipher local_cipher_;
  SlotCipher remote_cipher_;
  std::unique_ptr<std::atomic<Chunk*>[]> chunks_;
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::mutex mutex_;
  std::vector<uint32_t> free_;   // ring, oldest first
  size_t free_head_ = 0;
  size_t free_count_ = 0;
  uint32_t used_slots_ = 0;
  std::atomic<uint32_t> live_{0};
};

}  // namespace uwarp
