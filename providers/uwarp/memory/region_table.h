// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The STag table: which memory a key names, and what may be done to it. Owns the keys and the
// slots; never the memory. Knows nothing of queue pairs, wire formats or sockets.
//
// A region is looked up without a lock, whole or not at all (memory_region.h), and its slot is
// given to another only when no stream can be using it (the caller of release() has seen to that).
// A window is bound and unbound while streams run, so a thread that uses one holds its binding lock
// as long as it touches the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "memory/memory_region.h"
#include "memory/region_directory.h"

namespace uwarp {

// Slot numbers become the upper 24 bits of keys that a peer cannot predict from the keys that it
// has seen. RFC 5040-8.1.1-8, 5042-a.

/// A keyed permutation of 24 bits: a balanced Feistel network whose round function is SipHash-2-4
/// over the half and the number of the round. Four rounds withstand as many known keys as a half
/// has values to the power of one half; twice as many rounds leave a margin.
class SlotCipher {
 public:
  explicit SlotCipher(const SipKey& secret) : secret_(secret) {}

  uint32_t encrypt(uint32_t slot) const;
  uint32_t decrypt(uint32_t sealed) const;

 private:
  uint32_t round(uint32_t half, int number) const;

  const SipKey secret_;
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

/// All regions of the process. Registration and removal take a lock; look-ups take none.
class RegionTable {
 public:
  /// Most regions and windows of the application.
  explicit RegionTable(uint32_t max_regions = kMaxMr, uint32_t max_windows = kMaxMw);
  ~RegionTable();

  /// Enters [address, address + length_bytes) with tagged offsets from `first`. The memory stays
  /// the caller's, and may have other keys: RFC 5040-3.2-g, 4296-2.1.2-d. Errors: ENOMEM (max_mr).
  Result<MemoryRegion*> add(const RegionShape& shape);
  Result<MemoryRegion*> add(ProtectionDomain& domain, void* address, uint64_t length,
                            TaggedOffset first, uint32_t access) {
    return add(RegionShape{&domain, address, length, first, access});
  }

  /// Makes something else of a region; its key stays. The caller ensures that no stream of the old
  /// or the new domain looks anything up meanwhile. EBUSY (and nothing done) while windows are
  /// bound to it.
  int change(MemoryRegion& region, const RegionShape& shape);

  /// Makes the key of a region invalid at once. Accesses that looked it up before may still be
  /// under way: the caller quiesces the queue pairs of the domain, then calls release(). EBUSY
  /// while windows are bound to it. RFC 5040-3.2-h, 5040-8.1.1-4/6, 5042-b.
  int invalidate(MemoryRegion& region);

  /// From now on `directory` has all regions that peers may find there. Once; it lives as long as
  /// the table.
  void enter_into(RegionDirectory& directory);
  /// No peer finds the region in the directory any more, until change(): the entry that it had
  /// there, or RegionDirectory::kNowhere.
  uint32_t take_out_of_directory(MemoryRegion& region);

  /// Gives the slot back. Freed slots are reused oldest first, so that a key stays unused long.
  void release(MemoryRegion& region);

  /// Enters a window, unbound. Errors: ENOMEM when max_mw is reached.
  Result<MemoryRegion*> add_window(ProtectionDomain& domain, RegionKind kind);
  /// A key of the window: the low byte is the one it had last, or a random one at first.
  uint32_t window_key(const MemoryRegion& window) const { return key_of(window); }
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
    MemoryRegion::Name name;
    return find(key, name);
  }
  const MemoryRegion* find(STag stag) const { return find(stag.value); }

  /// The memory [offset, offset + length) of a region for local use with `needed` rights (0 or
  /// kAccessLocalWrite); nothing and `fault` otherwise. A window's key is none for local use.
  LocalRange local(uint32_t key, TaggedOffset offset, uint64_t length, uint32_t needed,
                   const ProtectionDomain& domain, RegionFault& fault) const;

  /// Why an access by a key from the wire is refused, checked in the order of RegionFault; kNone,
  /// and `place` is the memory, if all of it is allowed. A place that is refused is empty.
  RegionFault remote(STag stag, TaggedOffset offset, uint64_t length, uint32_t needed,
                     const RemoteAccessor& who, RemoteRange& place) const;

  /// Held over an atomic on memory on demand, which is not one instruction.
  Mutex on_demand_atomics;

  uint32_t live_count() const { return live_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunkCount = 1024;  // 2^20 slots; slot numbers fit 24 bits
  struct Chunk {
    MemoryRegion slots[kChunkSlots];
  };

  /// Where keys were found last, by the low bits of their upper 24: deciphering one takes longer
  /// than the rest of the work on a small message's header.
  class RecentKeys {
   public:
    std::atomic<const MemoryRegion*>& operator[](uint32_t key) {
      return slots_[(key >> 8) % kSlots];
    }

   private:
    static constexpr size_t kSlots = 256;
    std::atomic<const MemoryRegion*> slots_[kSlots] = {};
  };

  /// Fills in `name` for MemoryRegion::read().
  const MemoryRegion* find(uint32_t key, MemoryRegion::Name& name) const {
    const MemoryRegion* region = recent_[key].load(std::memory_order_acquire);
    if (region != nullptr && RegionKey::names(name = region->key.name(), key)) return region;
    region = check(cipher_.decrypt(key >> 8), key, name);
    if (region != nullptr) recent_[key].store(region, std::memory_order_release);
    return region;
  }
  const MemoryRegion* check(uint32_t slot, uint32_t key, MemoryRegion::Name& name) const {
    if (slot >= kChunkSlots * kChunkCount) return nullptr;
    const Chunk* chunk = chunks_[slot / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const MemoryRegion& region = chunk->slots[slot % kChunkSlots];
    return RegionKey::names(name = region.key.name(), key) ? &region : nullptr;
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
  MemoryRegion* take_slot(FreeSlots& free) REQUIRES(mutex_);
  MemoryRegion* fresh_slot() REQUIRES(mutex_);
  static void give_back(FreeSlots& free, uint32_t slot);
  FreeSlots& slots_of(const ProtectionDomain& domain) REQUIRES(mutex_) {
    return domain.own ? free_own_ : free_regions_;
  }
  MemoryRegion* find_window(STag key) REQUIRES(mutex_);
  static bool may_bind(const RegionShape& region, const WindowBinding& binding,
                       const RemoteAccessor& who);
  void unbind_locked(MemoryRegion& window) REQUIRES(mutex_, window.binding_lock);
  uint32_t key_of(const MemoryRegion& region) const {
    return cipher_.encrypt(region.slot) << 8 | region.generation;
  }
  void enter_locked(MemoryRegion& region) REQUIRES(mutex_) {
    region.hidden = false;
    if (directory_ != nullptr && (region.shape().access & kRemoteRights) != 0)
      directory_->enter(key_of(region), region.shape());
  }

  SlotCipher cipher_;
  mutable RecentKeys recent_;
  std::unique_ptr<std::atomic<Chunk*>[]> chunks_;
  Mutex mutex_;
  FreeSlots free_regions_ GUARDED_BY(mutex_);
  FreeSlots free_own_ GUARDED_BY(mutex_);
  FreeSlots free_windows_ GUARDED_BY(mutex_);
  uint32_t used_slots_ GUARDED_BY(mutex_) = 0;
  RegionDirectory* directory_ GUARDED_BY(mutex_) = nullptr;  // or null
  std::atomic<uint32_t> live_{0};
};

}  // namespace uwarp
