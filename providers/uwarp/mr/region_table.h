// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The STag table: which memory a key names, and what may be done to it. Owns the keys and the
// slots; never the memory. Knows nothing of queue pairs, wire formats or sockets.
// Implements RFC 5040 8.1.1 (STag scope and rights) and RFC 5041 7 (tagged buffer checks).
//
// A region is looked up without a lock: its slot changes only while no stream can be using it
// (the caller of release() has seen to that). A window is bound and unbound while streams run, so
// whoever goes through one holds its binding lock as long as it touches the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/ids.h"
#include "base/result.h"
#include "base/spinlock.h"

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

/// How the memory of a region may be touched.
enum class MemoryKind : uint8_t {
  kPlain,     // mapped for as long as it is registered: by any instruction
  kOnDemand,  // perhaps not mapped at this moment: by fault_safe_read() and its like only
  kNull,      // none at all: reads as zeros, and what is written is dropped
};

/// What a slot of the table is; fixed for the life of the slot once it has been used.
enum class RegionKind : uint8_t { kRegion, kWindowType1, kWindowType2 };

/// One registered range, or a window onto a part of one. Slots never move and are never returned to
/// the allocator while the table lives, so a reader may hold a pointer and must only re-check the
/// key (or the binding of a window) before each use.
struct MemoryRegion {
  /// The live key; 0 while the slot is free or being torn down, or the window unbound. Written last
  /// on registration (release), first on invalidation. A region has one key for local and remote
  /// use, as iWARP's STag is one (RFC 5040 8.1.1); its rights decide what a peer may do with it.
  std::atomic<uint32_t> key{0};
  uint32_t access = 0;
  uint32_t slot = 0;
  uint8_t generation = 0;
  std::atomic<RegionKind> kind{RegionKind::kRegion};
  mutable SpinLock binding_lock;  // windows: range, rights, stream and binding are under it
  uint32_t binding = 0;           // windows: changes with every bind and unbind, never 0
  MemoryKind memory = MemoryKind::kPlain;
  /// Atomic because streams of other domains look at it at any time, and turn away.
  std::atomic<const ProtectionDomain*> domain{nullptr};
  std::byte* base = nullptr;
  /// First tagged offset of the range: its virtual address, an iova, or 0 when zero-based.
  TaggedOffset first = 0;
  uint64_t length_bytes = 0;
  MemoryRegion* bound = nullptr;  // windows: the region behind it, null while unbound
  uint64_t stream = 0;            // type 2 windows: RemoteAccessor::stream it is bound to
  uint32_t windows = 0;           // regions: windows bound to it. Under the table's mutex

  /// The address that `offset` names, if [offset, offset + length) lies inside; null and `fault`
  /// otherwise. Overflow-safe on both ends.
  std::byte* range(TaggedOffset offset, uint64_t length, RegionFault& fault) const {
    if (offset + length < offset) return fault = RegionFault::kWrap, nullptr;
    if (offset < first || offset - first > length_bytes || length > length_bytes - (offset - first))
      return fault = RegionFault::kBounds, nullptr;
    fault = RegionFault::kNone;
    // By number: the base of a region of everything is null.
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(base) + (offset - first));
  }
};

/// What a region is made of, or changed into.
struct RegionShape {
  ProtectionDomain* domain = nullptr;
  void* address = nullptr;
  uint64_t length_bytes = 0;
  TaggedOffset first = 0;
  uint32_t access = 0;
  MemoryKind memory = MemoryKind::kPlain;
};

/// The memory that a permitted local access names. The address alone does not tell: it may be null.
struct LocalPlace {
  const MemoryRegion* region = nullptr;
  std::byte* address = nullptr;

  explicit operator bool() const { return region != nullptr; }
};

/// On whose behalf a key from the wire is used.
struct RemoteAccessor {
  const ProtectionDomain* domain = nullptr;
  /// Names one queue pair for ever (numbers of queue pairs are reused); 0 is nobody.
  uint64_t stream = 0;
  /// Rights (Access) that the queue pair grants at most, whatever the region says.
  uint32_t granted = 0;
};

/// The memory that a permitted access names. Goes stale: touch it only inside a PlaceGuard.
struct RemotePlace {
  const MemoryRegion* region = nullptr;
  std::byte* address = nullptr;
  uint32_t binding = 0;  // of a window when it was looked up; 0 for a region
  MemoryKind memory = MemoryKind::kPlain;

  explicit operator bool() const { return region != nullptr; }
  bool through_window() const { return binding != 0; }
};

/// Tells whether a place may still be touched, and keeps it so for a window. For a region it is the
/// quiescing of streams that keeps it, and the guard costs one load.
class PlaceGuard {
 public:
  PlaceGuard(const RemotePlace& place, STag stag) {
    if (!place.through_window()) [[likely]] {
      valid_ = place.region->key.load(std::memory_order_acquire) == stag.value;
      return;
    }
    window_ = place.region;
    window_->binding_lock.lock();
    valid_ = window_->binding == place.binding;
  }
  ~PlaceGuard() {
    if (window_ != nullptr) window_->binding_lock.unlock();
  }
  PlaceGuard(const PlaceGuard&) = delete;
  PlaceGuard& operator=(const PlaceGuard&) = delete;
  explicit operator bool() const { return valid_; }

 private:
  const MemoryRegion* window_ = nullptr;
  bool valid_ = false;
};

/// What BIND_MW asks for.
struct WindowBinding {
  /// The key to be valid afterwards. Its upper 24 bits name the window.
  STag key;
  uint32_t region_key = 0;
  /// The part of the region to show, in the region's own numbering. Type 1: length 0 unbinds.
  TaggedOffset address = 0;
  uint64_t length_bytes = 0;
  /// Remote rights, and kAccessZeroBased for offsets that count from 0.
  uint32_t access = 0;
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
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  /// Enters [address, address + length_bytes) with tagged offsets from `first`. The memory stays
  /// the caller's. Errors: ENOMEM when max_mr is reached.
  Result<MemoryRegion*> add(const RegionShape& shape);
  Result<MemoryRegion*> add(ProtectionDomain& domain, void* address, uint64_t length,
                            TaggedOffset first, uint32_t access) {
    return add(RegionShape{&domain, address, length, first, access});
  }

  /// Makes something else of a region; its key stays. The caller sees to it that no stream of the
  /// old or the new domain looks anything up meanwhile. EBUSY (and nothing done) while windows are
  /// bound to it.
  int change(MemoryRegion& region, const RegionShape& shape);

  /// Makes the key of a region invalid at once. Accesses that looked it up before may still be
  /// under way: the caller quiesces the queue pairs of the domain, then calls release(). EBUSY (and
  /// nothing done) while windows are bound to it.
  int invalidate(MemoryRegion& region);

  /// Gives the slot back. Freed slots are reused oldest first, so that a key stays unused long.
  void release(MemoryRegion& region);

  /// Enters a window, unbound. Errors: ENOMEM when max_mw is reached.
  Result<MemoryRegion*> add_window(ProtectionDomain& domain, RegionKind kind);
  /// A key of the window: the low octet is the one it had last, or a random one at first.
  uint32_t window_key(const MemoryRegion& window) const {
    return cipher_.encrypt(window.slot) << 8 | window.generation;
  }
  /// Executes BIND_MW for `who`. False when it is not allowed: no such window or region, foreign
  /// domain, out of range, region without kAccessMwBind (or without kAccessLocalWrite when the
  /// window shall be written), type 2 window that is bound already.
  bool bind(const WindowBinding& binding, const RemoteAccessor& who);
  /// Makes a type 2 window that is bound to who.stream invalid; no access through it is under way
  /// on return. False (and nothing done) for anything else that `key` may name.
  bool invalidate_window(STag key, const RemoteAccessor& who);
  /// Unbinds, if bound, and gives the slot back.
  void release_window(MemoryRegion& window);
  /// Unbinds all type 2 windows of a queue pair that goes away.
  void unbind_stream(uint64_t stream);

  /// The region or bound window of a key, null if there is none. Lock-free.
  const MemoryRegion* find(uint32_t key) const {
    const MemoryRegion* region = recent_[key].load(std::memory_order_acquire);
    if (region != nullptr && region->key.load(std::memory_order_acquire) == key && key != 0)
      return region;
    region = check(cipher_.decrypt(key >> 8), key);
    if (region != nullptr) recent_[key].store(region, std::memory_order_release);
    return region;
  }
  const MemoryRegion* find(STag stag) const { return find(stag.value); }

  /// The memory [offset, offset + length) of a region for local use with `needed` rights (0 or
  /// kAccessLocalWrite); nothing and `fault` otherwise. A window's key is none for local use.
  LocalPlace local(uint32_t key, TaggedOffset offset, uint64_t length, uint32_t needed,
                   const ProtectionDomain& domain, RegionFault& fault) const;

  /// Why an access by a key from the wire is refused, checked in the order of RegionFault; kNone,
  /// and `place` is the memory, if all of it is allowed. A place that is refused is empty.
  RegionFault remote(STag stag, TaggedOffset offset, uint64_t length, uint32_t needed,
                     const RemoteAccessor& who, RemotePlace& place) const;

  uint32_t live_count() const { return live_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunkCount = 1024;  // 2^20 slots; slot numbers fit 24 bits
  struct Chunk {
    MemoryRegion slots[kChunkSlots];
  };

  /// Where keys were found last, by the low bits of their upper 24: deciphering one takes as long
  /// as the rest of the work on a small message's header.
  class RecentKeys {
   public:
    std::atomic<const MemoryRegion*>& operator[](uint32_t key) {
      return slots_[(key >> 8) % kSlots];
    }

   private:
    static constexpr size_t kSlots = 64;
    std::atomic<const MemoryRegion*> slots_[kSlots] = {};
  };

  const MemoryRegion* check(uint32_t slot, uint32_t key) const {
    if (slot >= kChunkSlots * kChunkCount || key == 0) return nullptr;
    const Chunk* chunk = chunks_[slot / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const MemoryRegion& region = chunk->slots[slot % kChunkSlots];
    return region.key.load(std::memory_order_acquire) == key ? &region : nullptr;
  }
  /// Slots of one kind that have been used and are free again, oldest first.
  struct FreeSlots {
    explicit FreeSlots(uint32_t limit)
        : limit(limit), ring(std::make_unique_for_overwrite<uint32_t[]>(limit)) {}
    const uint32_t limit;  // slots of this kind at most
    uint32_t used = 0;     // ... that exist
    size_t head = 0;
    size_t count = 0;
    std::unique_ptr<uint32_t[]> ring;  // of `limit`; untouched as far as none has come back
  };

  MemoryRegion& slot(uint32_t number) const {
    return chunks_[number / kChunkSlots]
        .load(std::memory_order_acquire)
        ->slots[number % kChunkSlots];
  }
  static void fill_in(MemoryRegion& region, const RegionShape& shape);
  MemoryRegion* take_slot(FreeSlots& free);
  MemoryRegion* fresh_slot();
  static void give_back(FreeSlots& free, uint32_t slot);
  const MemoryRegion* find_region(uint32_t key) const;
  MemoryRegion* find_window(STag key);
  bool may_bind(const MemoryRegion& region, const WindowBinding& binding,
                const RemoteAccessor& who) const;
  static void unbind_locked(MemoryRegion& window);

  SlotCipher cipher_;
  mutable RecentKeys recent_;
  std::unique_ptr<std::atomic<Chunk*>[]> chunks_;
  std::mutex mutex_;
  FreeSlots free_regions_;
  FreeSlots free_windows_;
  uint32_t used_slots_ = 0;
  std::atomic<uint32_t> live_{0};
};

}  // namespace uwarp
