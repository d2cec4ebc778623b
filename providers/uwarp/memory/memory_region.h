// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One slot of the STag table: what a key leads to, read as a whole while it may change, and the
// places that are found through it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/atomics.h"
#include "base/ids.h"
#include "base/spinlock.h"

namespace uwarp {

// Several protection domains that a peer may reach by one queue pair: those of the shared receive
// queues of an XRC domain. Looked at on each access, without a lock; changed rarely.

/// Domains are named by their addresses. contains(): any thread. add() and remove(): one thread at
/// a time.
class DomainSet {
 public:
  ~DomainSet() {
    for (Entry* at = first_.load(); at != nullptr;) delete std::exchange(at, at->next);
  }

  bool contains(const void* domain) const {
    return domain != nullptr && find(first_.load(std::memory_order_acquire), domain) != nullptr;
  }
  /// Each add() is taken back by one remove(). Throws std::bad_alloc.
  void add(const void* domain) {
    Entry* const first = first_.load(std::memory_order_relaxed);
    Entry* entry = find(first, domain);
    if (entry == nullptr) entry = find(first, nullptr);  // of a domain that has left
    if (entry == nullptr) {
      entry = new Entry{.next = first};
      first_.store(entry, std::memory_order_release);
    }
    ++entry->count;
    entry->domain.store(domain, std::memory_order_release);
  }
  void remove(const void* domain) {
    Entry* const entry = find(first_.load(std::memory_order_relaxed), domain);
    if (--entry->count == 0) entry->domain.store(nullptr, std::memory_order_release);
  }

 private:
  struct Entry {
    std::atomic<const void*> domain{nullptr};
    uint32_t count = 0;
    Entry* next = nullptr;
  };
  static Entry* find(Entry* at, const void* domain) {
    while (at != nullptr && at->domain.load(std::memory_order_acquire) != domain) at = at->next;
    return at;
  }

  std::atomic<Entry*> first_{nullptr};  // entries stay until the end
};

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

inline constexpr uint32_t kRemoteRights =
    kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;

/// A DDP protection domain: regions and queue pairs of one domain may meet, others may not.
struct ProtectionDomain {
  uint32_t handle = 0;
  /// The engine's own: its regions do not count against what applications may register.
  bool own = false;
  /// Queue pairs and shared receive queues of the domain; it cannot be deallocated before zero.
  std::atomic<uint32_t> users{0};
  /// Regions that refer to it; its memory stays until zero.
  std::atomic<uint32_t> regions{0};
  /// Domains whose regions its queue pairs' peers may use as well; null: none.
  const DomainSet* others = nullptr;

  /// A peer on a queue pair of this domain may use regions of `domain`.
  bool reaches(const ProtectionDomain* domain) const {
    return domain == this || (others != nullptr && others->contains(domain));
  }
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

/// What a key leads to: what a region is made of, or changed into, and what is read of it.
struct RegionShape {
  ProtectionDomain* domain = nullptr;
  void* address = nullptr;
  uint64_t length_bytes = 0;
  /// First tagged offset of the range: its virtual address, an iova, or 0 when zero-based.
  TaggedOffset first = 0;
  uint32_t access = 0;
  MemoryKind memory = MemoryKind::kPlain;

  /// The address that `offset` names, if [offset, offset + length) lies inside; null and `fault`
  /// otherwise: TO and length lie in range and do not wrap. RFC 5041-7.1-t3/t4/t5.
  std::byte* range(TaggedOffset offset, uint64_t length, RegionFault& fault) const {
    if (offset + length < offset) return fault = RegionFault::kWrap, nullptr;
    if (offset < first || offset - first > length_bytes || length > length_bytes - (offset - first))
      return fault = RegionFault::kBounds, nullptr;
    fault = RegionFault::kNone;
    // By number: the base of a region of everything is null.
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(address) + (offset - first));
  }
};

/// The live key, and a version that changes whenever the key comes or goes: one word, so that who
/// finds the same word before and after has read what belongs together.
class RegionKey {
 public:
  uint32_t load(std::memory_order order = std::memory_order_acquire) const {
    return static_cast<uint32_t>(word_.load(order));
  }
  operator uint32_t() const { return load(); }  // NOLINT(google-explicit-constructor): as an atomic
  uint64_t name() const { return word_.load(std::memory_order_acquire); }
  /// `name` is of this key. No region has the key 0.
  static bool names(uint64_t name, uint32_t key) {
    return static_cast<uint32_t>(name) == key && key != 0;
  }
  /// After loads of what the key leads to, each of them an acquire.
  bool is_still(uint64_t name) const { return word_.load(std::memory_order_relaxed) == name; }
  /// 0: none any more. Only one thread at a time.
  void store(uint32_t key) {
    const uint64_t version = (word_.load(std::memory_order_relaxed) >> 32) + 1;
    word_.store(version << 32 | key);
  }

 private:
  Atomic<uint64_t> word_{0};
};

/// One registered range, or a window onto a part of one. Slots never move and are never returned to
/// the allocator while the table lives, so a reader may hold a pointer and must only re-check the
/// key (or the binding of a window) before each use.
class MemoryRegion {
 public:
  /// Key and version.
  using Name = uint64_t;

  /// 0 while the slot is free or changes, or the window is unbound. A region has one key for local
  /// and remote use, as iWARP's STag is one (RFC 5040 8.1.1); its rights decide what a peer may do.
  RegionKey key;
  uint32_t slot = 0;
  uint8_t generation = 0;
  bool hidden = false;  // not to stand in the directory. Under the table's mutex
  Atomic<RegionKind> kind{RegionKind::kRegion};
  mutable SpinLock binding_lock;  // windows: their shape is under it
  // Windows: changes with every bind and unbind, never 0.
  uint32_t binding GUARDED_BY(binding_lock) = 0;
  // Windows: the region behind it, null while unbound. Under the table's mutex.
  MemoryRegion* bound = nullptr;
  // Type 2 windows: RemoteAccessor::stream it is bound to.
  uint64_t stream GUARDED_BY(binding_lock) = 0;
  uint32_t windows = 0;  // regions: windows bound to it. Under the table's mutex

  /// Gives the slot another shape; afterwards `new_key` leads to it. Readers see the old one, the
  /// new one, or no key. Under the table's mutex.
  void change(const RegionShape& shape, uint32_t new_key) {
    key.store(0);
    domain_.store(shape.domain, std::memory_order_release);
    address_.store(shape.address, std::memory_order_release);
    length_bytes_.store(shape.length_bytes, std::memory_order_release);
    first_.store(shape.first, std::memory_order_release);
    access_.store(shape.access, std::memory_order_release);
    memory_.store(shape.memory, std::memory_order_release);
    if (new_key != 0) key.store(new_key);
  }
  /// Where it cannot change meanwhile.
  RegionShape shape() const {
    return {domain_.load(std::memory_order_acquire),       address_.load(std::memory_order_acquire),
            length_bytes_.load(std::memory_order_acquire), first_.load(std::memory_order_acquire),
            access_.load(std::memory_order_acquire),       memory_.load(std::memory_order_acquire)};
  }
  /// What `name` leads to. False: it does not, or not any more.
  bool read(Name name, RegionShape& out) const { return out = shape(), key.is_still(name); }
  const ProtectionDomain* domain() const { return domain_.load(std::memory_order_acquire); }

 private:
  Atomic<ProtectionDomain*> domain_{nullptr};
  Atomic<void*> address_{nullptr};
  Atomic<uint64_t> length_bytes_{0};
  Atomic<TaggedOffset> first_{0};
  Atomic<uint32_t> access_{0};
  Atomic<MemoryKind> memory_{MemoryKind::kPlain};
};

/// The memory that a permitted local access names. The address alone does not tell: it may be null.
struct LocalRange {
  const MemoryRegion* region = nullptr;
  std::byte* address = nullptr;
  MemoryKind memory = MemoryKind::kPlain;

  explicit operator bool() const { return region != nullptr; }
};

/// On whose behalf a key from the wire is used.
struct RemoteAccessor {
  const ProtectionDomain* domain = nullptr;
  /// Names one queue pair for ever (numbers of queue pairs are reused); 0: none.
  uint64_t stream = 0;
  /// Rights (Access) that the queue pair grants at most, even if the region grants more.
  uint32_t granted = 0;
};

/// The memory that a permitted access names. Goes stale: touch it only inside a RangeGuard.
struct RemoteRange {
  const MemoryRegion* region = nullptr;
  std::byte* address = nullptr;
  uint32_t binding = 0;  // of a window when it was looked up; 0 for a region
  MemoryKind memory = MemoryKind::kPlain;

  explicit operator bool() const { return region != nullptr; }
  bool through_window() const { return binding != 0; }
};

/// Tells whether a place may still be touched, and keeps it so for a window. For a region it is the
/// quiescing of streams that keeps it, and the guard costs one load.
class RangeGuard {
 public:
  RangeGuard(const RemoteRange& place, STag stag) {
    if (!place.through_window()) [[likely]] {
      valid_ = place.region->key.load(std::memory_order_acquire) == stag.value;
      return;
    }
    window_ = place.region;
    window_->binding_lock.lock();
    valid_ = window_->binding == place.binding;
  }
  ~RangeGuard() {
    if (window_ != nullptr) window_->binding_lock.unlock();
  }
  RangeGuard(const RangeGuard&) = delete;
  RangeGuard& operator=(const RangeGuard&) = delete;
  explicit operator bool() const { return valid_; }

 private:
  const MemoryRegion* window_ = nullptr;
  bool valid_ = false;
};

}  // namespace uwarp
