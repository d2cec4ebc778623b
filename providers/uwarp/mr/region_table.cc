// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "mr/region_table.h"

#include <sys/random.h>

#include <cerrno>
#include <new>

#include "base/limits.h"

namespace uwarp {
namespace {

/// Random octets for keys, which peers must not be able to guess (RFC 5040 8.1.1).
template <typename T>
T draw() {
  T value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

constexpr uint32_t kRemoteRights = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;

/// Slots show their domain to everybody as constant; counting on it is the table's business.
ProtectionDomain& owner_of(const MemoryRegion& region) {
  return const_cast<ProtectionDomain&>(*region.domain.load());
}

// The checks behind that of the key, in the order of RegionFault.
RegionFault check_place(const MemoryRegion& region, TaggedOffset offset, uint64_t length,
                        uint32_t needed, const RemoteAccessor& who, RemotePlace& place) {
  if (region.domain != who.domain) return RegionFault::kWrongDomain;
  RegionFault fault;
  std::byte* address = region.range(offset, length, fault);
  if (fault != RegionFault::kNone) return fault;
  if ((region.access & who.granted & needed) != needed) return RegionFault::kRights;
  place.region = &region;
  place.address = address;
  place.memory = region.memory;
  return RegionFault::kNone;
}

}  // namespace

uint32_t SlotCipher::encrypt(uint32_t slot) const {
  uint32_t left = slot >> 12, right = slot & 0xfff;
  for (int number = 0; number < 4; ++number) {
    uint32_t mixed = left ^ round(right, number);
    left = right;
    right = mixed;
  }
  return left << 12 | right;
}

uint32_t SlotCipher::decrypt(uint32_t sealed) const {
  uint32_t left = sealed >> 12, right = sealed & 0xfff;
  for (int number = 3; number >= 0; --number) {
    uint32_t mixed = right ^ round(left, number);
    right = left;
    left = mixed;
  }
  return left << 12 | right;
}

RegionTable::RegionTable()
    : cipher_(draw<uint64_t>()),
      chunks_(std::make_unique<std::atomic<Chunk*>[]>(kChunkCount)),
      free_regions_(kMaxMr),
      free_windows_(kMaxMw) {
  static_assert(kMaxMr + kMaxMw < kChunkSlots * kChunkCount);
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
  // Fresh slots first: a freed key then stays unused for as long as possible.
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
  free.ring[(free.head + free.count) % free.limit] = slot;
  ++free.count;
}

void RegionTable::fill_in(MemoryRegion& region, const RegionShape& shape) {
  region.access = shape.access;
  region.memory = shape.memory;
  region.domain = shape.domain;
  region.base = static_cast<std::byte*>(shape.address);
  region.first = shape.first;
  region.length_bytes = shape.length_bytes;
  shape.domain->regions.fetch_add(1, std::memory_order_relaxed);
}

Result<MemoryRegion*> RegionTable::add(const RegionShape& shape) {
  std::lock_guard lock(mutex_);
  MemoryRegion* region = take_slot(free_regions_);
  if (region == nullptr) return Error{ENOMEM};
  fill_in(*region, shape);
  // The low octet changes with every use of the slot, starting anywhere.
  region->generation = region->generation == 0 ? draw<uint8_t>() : region->generation + 1;
  const uint32_t key = cipher_.encrypt(region->slot) << 8 | region->generation;
  region->key.store(key, std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
  return region;
}

int RegionTable::change(MemoryRegion& region, const RegionShape& shape) {
  std::lock_guard lock(mutex_);
  if (region.windows != 0) return EBUSY;
  ProtectionDomain& before = owner_of(region);
  fill_in(region, shape);
  before.regions.fetch_sub(1, std::memory_order_release);
  return 0;
}

int RegionTable::invalidate(MemoryRegion& region) {
  std::lock_guard lock(mutex_);
  if (region.windows != 0) return EBUSY;
  region.key.store(0, std::memory_order_seq_cst);
  return 0;
}

void RegionTable::release(MemoryRegion& region) {
  std::lock_guard lock(mutex_);
  owner_of(region).regions.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(1, std::memory_order_relaxed);
  give_back(free_regions_, region.slot);
}

// ---- Windows

Result<MemoryRegion*> RegionTable::add_window(ProtectionDomain& domain, RegionKind kind) {
  std::lock_guard lock(mutex_);
  MemoryRegion* window = take_slot(free_windows_);
  if (window == nullptr) return Error{ENOMEM};
  std::lock_guard binding(window->binding_lock);
  if (window->binding == 0) {
    window->binding = 1;
    window->generation = draw<uint8_t>();
  } else {
    ++window->generation;
  }
  window->kind = kind;
  window->domain = &domain;
  domain.users.fetch_add(1, std::memory_order_relaxed);
  live_.fetch_add(1, std::memory_order_relaxed);
  return window;
}

const MemoryRegion* RegionTable::find_region(uint32_t key) const {
  const MemoryRegion* found = find(key);
  return found != nullptr && found->kind.load(std::memory_order_relaxed) == RegionKind::kRegion
             ? found
             : nullptr;
}

MemoryRegion* RegionTable::find_window(STag key) {
  const uint32_t number = cipher_.decrypt(key.value >> 8);
  if (number >= used_slots_) return nullptr;
  MemoryRegion& found = slot(number);
  return found.kind != RegionKind::kRegion && found.domain != nullptr ? &found : nullptr;
}

bool RegionTable::may_bind(const MemoryRegion& region, const WindowBinding& binding,
                           const RemoteAccessor& who) const {
  RegionFault fault;
  const bool written = binding.access & (kAccessRemoteWrite | kAccessRemoteAtomic);
  return region.domain == who.domain && (region.access & kAccessMwBind) &&
         (!written || (region.access & kAccessLocalWrite)) &&
         (region.range(binding.address, binding.length_bytes, fault), fault == RegionFault::kNone);
}

bool RegionTable::bind(const WindowBinding& binding, const RemoteAccessor& who) {
  std::lock_guard lock(mutex_);
  MemoryRegion* window = find_window(binding.key);
  if (window == nullptr || window->domain != who.domain) return false;
  const bool type2 = window->kind == RegionKind::kWindowType2;
  // A type 2 window is invalidated before it is bound anew, so that nobody loses it unawares.
  if (type2 && (window->bound != nullptr || binding.length_bytes == 0)) return false;
  MemoryRegion* region = nullptr;
  if (binding.length_bytes != 0) {
    region = const_cast<MemoryRegion*>(find_region(binding.region_key));
    if (region == nullptr || !may_bind(*region, binding, who)) return false;
  }
  std::lock_guard bound(window->binding_lock);
  unbind_locked(*window);
  window->generation = static_cast<uint8_t>(binding.key.value);
  if (region == nullptr) return true;
  RegionFault fault;
  window->base = region->range(binding.address, binding.length_bytes, fault);
  window->first = (binding.access & kAccessZeroBased) ? 0 : binding.address;
  window->length_bytes = binding.length_bytes;
  window->access = binding.access & kRemoteRights;
  window->memory = region->memory;
  window->bound = region;
  window->stream = type2 ? who.stream : 0;
  ++region->windows;
  window->key.store(binding.key.value, std::memory_order_release);
  return true;
}

// Under the table's mutex and the binding lock.
void RegionTable::unbind_locked(MemoryRegion& window) {
  window.key.store(0, std::memory_order_release);
  if (++window.binding == 0) window.binding = 1;
  if (window.bound != nullptr) --window.bound->windows;
  window.bound = nullptr;
  window.stream = 0;
}

bool RegionTable::invalidate_window(STag key, const RemoteAccessor& who) {
  std::lock_guard lock(mutex_);
  MemoryRegion* window = find_window(key);
  if (window == nullptr || window->kind != RegionKind::kWindowType2) return false;
  std::lock_guard binding(window->binding_lock);
  if (window->key.load(std::memory_order_relaxed) != key.value || window->domain != who.domain ||
      window->stream != who.stream)
    return false;
  unbind_locked(*window);
  return true;
}

void RegionTable::release_window(MemoryRegion& window) {
  std::lock_guard lock(mutex_);
  std::lock_guard binding(window.binding_lock);
  unbind_locked(window);
  owner_of(window).users.fetch_sub(1, std::memory_order_relaxed);
  window.domain = nullptr;
  live_.fetch_sub(1, std::memory_order_relaxed);
  give_back(free_windows_, window.slot);
}

void RegionTable::unbind_stream(uint64_t stream) {
  std::lock_guard lock(mutex_);
  for (uint32_t number = 0; number < used_slots_; ++number) {
    MemoryRegion& window = slot(number);
    if (window.kind != RegionKind::kWindowType2) continue;
    std::lock_guard binding(window.binding_lock);
    if (window.stream == stream) unbind_locked(window);
  }
}

// ---- Look-ups

LocalPlace RegionTable::local(uint32_t key, TaggedOffset offset, uint64_t length, uint32_t needed,
                              const ProtectionDomain& domain, RegionFault& fault) const {
  const MemoryRegion* region = find_region(key);
  if (region == nullptr) return fault = RegionFault::kInvalidSTag, LocalPlace{};
  if (region->domain != &domain) return fault = RegionFault::kWrongDomain, LocalPlace{};
  std::byte* address = region->range(offset, length, fault);
  if (fault != RegionFault::kNone) return {};
  if ((region->access & needed) != needed) return fault = RegionFault::kRights, LocalPlace{};
  return {region, address};
}

RegionFault RegionTable::remote(STag stag, TaggedOffset offset, uint64_t length, uint32_t needed,
                                const RemoteAccessor& who, RemotePlace& place) const {
  place.region = nullptr;
  place.binding = 0;
  const MemoryRegion* region = find(stag);
  if (region == nullptr) return RegionFault::kInvalidSTag;
  if (region->kind.load(std::memory_order_relaxed) == RegionKind::kRegion) [[likely]]
    return check_place(*region, offset, length, needed, who, place);
  std::lock_guard binding(region->binding_lock);
  // It may have been unbound since the key was found.
  if (region->key.load(std::memory_order_relaxed) != stag.value) return RegionFault::kInvalidSTag;
  if (region->kind == RegionKind::kWindowType2 && region->stream != who.stream)
    return RegionFault::kWrongDomain;
  const RegionFault fault = check_place(*region, offset, length, needed, who, place);
  if (fault == RegionFault::kNone) place.binding = region->binding;
  return fault;
}

}  // namespace uwarp
