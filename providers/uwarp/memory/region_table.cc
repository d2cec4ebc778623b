// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/region_table.h"

#include <array>
#include <cassert>
#include <cerrno>
#include <new>

#include "base/limits.h"
#include "base/mutex.h"
#include "base/random.h"

namespace uwarp {

namespace {

constexpr int kRounds = 8;
constexpr int kHalfBits = 12;
constexpr uint32_t kHalfMask = (1u << kHalfBits) - 1;

}  // namespace

uint32_t SlotCipher::round(uint32_t half, int number) const {
  const std::array message{static_cast<std::byte>(half), static_cast<std::byte>(half >> 8),
                           static_cast<std::byte>(number)};
  return static_cast<uint32_t>(SipHash::of(secret_, message)) & kHalfMask;
}

uint32_t SlotCipher::encrypt(uint32_t slot) const {
  uint32_t left = slot >> kHalfBits, right = slot & kHalfMask;
  for (int number = 0; number < kRounds; ++number) {
    const uint32_t mixed = left ^ round(right, number);
    left = right;
    right = mixed;
  }
  return left << kHalfBits | right;
}

uint32_t SlotCipher::decrypt(uint32_t sealed) const {
  uint32_t left = sealed >> kHalfBits, right = sealed & kHalfMask;
  for (int number = kRounds; number-- > 0;) {
    const uint32_t mixed = right ^ round(left, number);
    right = left;
    left = mixed;
  }
  return left << kHalfBits | right;
}

namespace {

/// The first of a place in the table: peers must not be able to guess keys.
uint8_t random_generation() { return static_cast<uint8_t>(random_word()); }

// The checks behind that of the key, in the order of RegionFault.
RegionFault check_place(const MemoryRegion& region, const RegionShape& shape, TaggedOffset offset,
                        uint64_t length, uint32_t needed, const RemoteAccessor& who,
                        RemoteRange& place) {
  if (shape.domain != who.domain && (who.domain == nullptr || !who.domain->reaches(shape.domain)))
      [[unlikely]]
    return RegionFault::kWrongDomain;  // of another domain: RFC 5040-8.1.1-1, 5041-8.2-a
  RegionFault fault;
  std::byte* address = shape.range(offset, length, fault);
  if (fault != RegionFault::kNone) return fault;  // to the byte: RFC 5040-8.1.1-3, 5041-8.1-a
  // Each key has rights of its own. RFC 5041-7.1-t2, 5042-c, 4296-2.2.1-b, 4296-3-c.
  if ((shape.access & who.granted & needed) != needed) return RegionFault::kRights;
  place.region = &region;
  place.address = address;
  place.memory = shape.memory;
  return RegionFault::kNone;
}

[[gnu::noinline]] RegionFault check_window(const MemoryRegion& window, MemoryRegion::Name name,
                                           TaggedOffset offset, uint64_t length, uint32_t needed,
                                           const RemoteAccessor& who, RemoteRange& place) {
  RegionShape shape;
  const Lock binding(window.binding_lock);
  // It may have been unbound since the key was found.
  if (!window.read(name, shape)) return RegionFault::kInvalidSTag;
  if (window.kind == RegionKind::kWindowType2 && window.stream != who.stream)
    return RegionFault::kWrongDomain;  // of another stream: RFC 5040-8.1.1-2, 5041-8.2-b/d
  const RegionFault fault = check_place(window, shape, offset, length, needed, who, place);
  if (fault == RegionFault::kNone) place.binding = window.binding;
  return fault;
}

}  // namespace

RegionTable::RegionTable(uint32_t max_regions, uint32_t max_windows)
    : cipher_(SipKey{random_word(), random_word()}),
      chunks_(std::make_unique<std::atomic<Chunk*>[]>(kChunkCount)),
      free_regions_(max_regions),
      free_own_(kMaxOwnMr),
      free_windows_(max_windows) {
  static_assert(kMaxMr + kMaxOwnMr + kMaxMw < kChunkSlots * kChunkCount);
  assert(max_regions <= kMaxMr && max_windows <= kMaxMw);
}

RegionTable::~RegionTable() {
  for (uint32_t i = 0; i < kChunkCount; ++i) delete chunks_[i].load();
}

// Null without memory for it.
MemoryRegion* RegionTable::fresh_slot() {
  for (;;) {
    const uint32_t number = used_slots_;
    std::atomic<Chunk*>& chunk = chunks_[number / kChunkSlots];
    if (chunk.load(std::memory_order_relaxed) == nullptr)
      chunk.store(new (std::nothrow) Chunk, std::memory_order_release);
    if (chunk.load(std::memory_order_relaxed) == nullptr) return nullptr;
    ++used_slots_;
    slot(number).slot = number;
    // With upper bits of zero an application could choose the key 0, which means "no key".
    if (cipher_.encrypt(number) != 0) return &slot(number);
  }
}

MemoryRegion* RegionTable::take_slot(FreeSlots& free) {
  // Fresh slots first: a freed key then stays unused for as long as possible. RFC 5042-n.
  if (free.used < free.limit) {
    MemoryRegion* const fresh = fresh_slot();
    if (fresh != nullptr) ++free.used;
    return fresh;
  }
  if (free.count == 0) return nullptr;
  MemoryRegion& oldest = slot(free.ring[free.head]);
  free.head = (free.head + 1) % free.limit;
  --free.count;
  return &oldest;
}

void RegionTable::give_back(FreeSlots& free, uint32_t slot) {
  assert(free.count < free.used);
  free.ring[(free.head + free.count) % free.limit] = slot;
  ++free.count;
}

Result<MemoryRegion*> RegionTable::add(const RegionShape& shape) {
  const Lock lock(mutex_);
  MemoryRegion* region = take_slot(slots_of(*shape.domain));
  if (region == nullptr) return Error{ENOMEM};
  // The low byte changes with every use of the slot, starting anywhere.
  region->generation = region->generation == 0 ? random_generation() : region->generation + 1;
  region->change(shape, key_of(*region));
  enter_locked(*region);
  shape.domain->regions.fetch_add(1, std::memory_order_relaxed);
  live_.fetch_add(1, std::memory_order_relaxed);
  return region;
}

int RegionTable::change(MemoryRegion& region, const RegionShape& shape) {
  const Lock lock(mutex_);
  if (region.windows != 0) {
    enter_locked(region);
    return EBUSY;
  }
  ProtectionDomain& before = *region.shape().domain;
  region.change(shape, region.key);
  enter_locked(region);
  shape.domain->regions.fetch_add(1, std::memory_order_relaxed);
  before.regions.fetch_sub(1, std::memory_order_release);
  return 0;
}

int RegionTable::invalidate(MemoryRegion& region) {
  const Lock lock(mutex_);
  if (region.windows != 0) return EBUSY;
  region.key.store(0);
  return 0;
}

void RegionTable::enter_into(RegionDirectory& directory) {
  const Lock lock(mutex_);
  directory_ = &directory;
  for (uint32_t number = 0; number != used_slots_; ++number) {
    MemoryRegion& region = slot(number);
    if (region.kind == RegionKind::kRegion && region.key != 0 && !region.hidden)
      enter_locked(region);
  }
}

uint32_t RegionTable::take_out_of_directory(MemoryRegion& region) {
  const Lock lock(mutex_);
  region.hidden = true;
  return directory_ != nullptr ? directory_->remove(key_of(region)) : RegionDirectory::kNowhere;
}

void RegionTable::release(MemoryRegion& region) {
  const Lock lock(mutex_);
  ProtectionDomain& domain = *region.shape().domain;
  give_back(slots_of(domain), region.slot);
  live_.fetch_sub(1, std::memory_order_relaxed);
  domain.regions.fetch_sub(1, std::memory_order_relaxed);
}

// ---- Windows

Result<MemoryRegion*> RegionTable::add_window(ProtectionDomain& domain, RegionKind kind) {
  const Lock lock(mutex_);
  MemoryRegion* window = take_slot(free_windows_);
  if (window == nullptr) return Error{ENOMEM};
  const Lock binding(window->binding_lock);
  if (window->binding == 0) {
    window->binding = 1;
    window->generation = random_generation();
  } else {
    ++window->generation;
  }
  window->kind = kind;
  window->change({.domain = &domain}, 0);
  domain.users.fetch_add(1, std::memory_order_relaxed);
  live_.fetch_add(1, std::memory_order_relaxed);
  return window;
}

MemoryRegion* RegionTable::find_window(STag key) {
  const uint32_t number = cipher_.decrypt(key.value >> 8);
  if (number >= used_slots_) return nullptr;
  MemoryRegion& found = slot(number);
  return found.kind != RegionKind::kRegion && found.domain() != nullptr ? &found : nullptr;
}

bool RegionTable::may_bind(const RegionShape& region, const WindowBinding& binding,
                           const RemoteAccessor& who) {
  RegionFault fault;
  const bool written = binding.access & (kAccessRemoteWrite | kAccessRemoteAtomic);
  return region.domain == who.domain && (region.access & kAccessMwBind) &&
         (!written || (region.access & kAccessLocalWrite)) &&
         (region.range(binding.address, binding.length_bytes, fault), fault == RegionFault::kNone);
}

bool RegionTable::bind(const WindowBinding& binding, const RemoteAccessor& who) {
  const Lock lock(mutex_);
  MemoryRegion* window = find_window(binding.key);
  if (window == nullptr || window->domain() != who.domain) return false;
  const bool type2 = window->kind == RegionKind::kWindowType2;
  // A type 2 window must be invalidated before it is bound anew, so that no peer loses it unawares.
  if (type2 && (window->bound != nullptr || binding.length_bytes == 0)) return false;
  MemoryRegion* region = nullptr;
  if (binding.length_bytes != 0) {
    region = const_cast<MemoryRegion*>(find(binding.region_key));
    if (region == nullptr || region->kind != RegionKind::kRegion ||
        !may_bind(region->shape(), binding, who))
      return false;
  }
  const Lock bound(window->binding_lock);
  unbind_locked(*window);
  window->generation = static_cast<uint8_t>(binding.key.value);
  if (region == nullptr) return true;
  RegionFault fault;
  RegionShape shown = region->shape();
  shown.address = shown.range(binding.address, binding.length_bytes, fault);
  shown.first = (binding.access & kAccessZeroBased) ? 0 : binding.address;
  shown.length_bytes = binding.length_bytes;
  shown.access = binding.access & kRemoteRights;
  window->bound = region;
  window->stream = type2 ? who.stream : 0;  // which it is tied to: RFC 5041-8.3-3
  ++region->windows;
  window->change(shown, binding.key.value);
  return true;
}

void RegionTable::unbind_locked(MemoryRegion& window) {
  window.key.store(0);
  if (++window.binding == 0) window.binding = 1;
  assert(window.bound == nullptr || window.bound->windows != 0);
  if (window.bound != nullptr) --window.bound->windows;
  window.bound = nullptr;
  window.stream = 0;
}

bool RegionTable::invalidate_window(STag key, const RemoteAccessor& who) {
  const Lock lock(mutex_);
  MemoryRegion* window = find_window(key);
  if (window == nullptr || window->kind != RegionKind::kWindowType2) return false;
  const Lock binding(window->binding_lock);
  if (window->key != key.value || window->domain() != who.domain || window->stream != who.stream)
    return false;  // not of this stream alone: RFC 5040-5.3-o/q, 5040-7.2-e, 5040-8.1.1-7, 5042-l
  unbind_locked(*window);
  return true;
}

void RegionTable::release_window(MemoryRegion& window) {
  const Lock lock(mutex_);
  const Lock binding(window.binding_lock);
  unbind_locked(window);
  window.shape().domain->users.fetch_sub(1, std::memory_order_relaxed);
  window.change({}, 0);
  live_.fetch_sub(1, std::memory_order_relaxed);
  give_back(free_windows_, window.slot);
}

void RegionTable::unbind_stream(uint64_t stream) {
  const Lock lock(mutex_);
  for (uint32_t number = 0; number < used_slots_; ++number) {
    MemoryRegion& window = slot(number);
    if (window.kind != RegionKind::kWindowType2) continue;
    const Lock binding(window.binding_lock);
    if (window.stream == stream) unbind_locked(window);
  }
}

// ---- Look-ups

LocalRange RegionTable::local(uint32_t key, TaggedOffset offset, uint64_t length, uint32_t needed,
                              const ProtectionDomain& domain, RegionFault& fault) const {
  MemoryRegion::Name name;
  RegionShape shape;
  const MemoryRegion* region = find(key, name);
  if (region == nullptr || region->kind.load(std::memory_order_relaxed) != RegionKind::kRegion ||
      !region->read(name, shape))
    return fault = RegionFault::kInvalidSTag, LocalRange{};
  if (shape.domain != &domain) return fault = RegionFault::kWrongDomain, LocalRange{};
  std::byte* address = shape.range(offset, length, fault);
  if (fault != RegionFault::kNone) return {};
  if ((shape.access & needed) != needed) return fault = RegionFault::kRights, LocalRange{};
  return {region, address, shape.memory};
}

RegionFault RegionTable::remote(STag stag, TaggedOffset offset, uint64_t length, uint32_t needed,
                                const RemoteAccessor& who, RemoteRange& place) const {
  place.region = nullptr;
  place.binding = 0;
  MemoryRegion::Name name;
  RegionShape shape;
  const MemoryRegion* region = find(stag.value, name);
  if (region == nullptr) return RegionFault::kInvalidSTag;  // RFC 5041-7.1-t1, 5041-8.3-5
  if (region->kind.load(std::memory_order_relaxed) != RegionKind::kRegion) [[unlikely]]
    return check_window(*region, name, offset, length, needed, who, place);
  if (!region->read(name, shape)) [[unlikely]]
    return RegionFault::kInvalidSTag;
  return check_place(*region, shape, offset, length, needed, who, place);
}

}  // namespace uwarp
