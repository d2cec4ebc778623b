// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "mr/region_table.h"

#include <sys/random.h>

#include <cerrno>

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

// Local keys are checked for one right at most, remote ones for exactly one.
bool has_rights(const MemoryRegion& region, uint32_t needed) {
  return (region.access & needed) == needed;
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
    : local_cipher_(draw<uint64_t>()),
      remote_cipher_(draw<uint64_t>()),
      chunks_(std::make_unique<std::atomic<Chunk*>[]>(kChunkCount)) {}

MemoryRegion* RegionTable::take_slot() {
  // Fresh slots first: a freed key then stays unused for as long as possible.
  uint32_t slot;
  if (used_slots_ < kMaxMr) {
    slot = used_slots_;
    if (slot % kChunkSlots == 0) {
      auto chunk = std::make_unique<Chunk>();
      chunks_[slot / kChunkSlots].store(chunk.get(), std::memory_order_release);
      owned_.push_back(std::move(chunk));
    }
    ++used_slots_;
  } else if (free_count_ > 0) {
    slot = free_[free_head_];
    free_head_ = (free_head_ + 1) % free_.size();
    --free_count_;
  } else {
    return nullptr;
  }
  MemoryRegion& region =
      chunks_[slot / kChunkSlots].load(std::memory_order_relaxed)->slots[slot % kChunkSlots];
  region.slot = slot;
  return &region;
}

Result<MemoryRegion*> RegionTable::add(ProtectionDomain& domain, void* address, uint64_t length,
                                       TaggedOffset first, uint32_t access) {
  std::lock_guard lock(mutex_);
  MemoryRegion* region = take_slot();
  if (region == nullptr) return Error{ENOMEM};
  region->access = access;
  region->domain = &domain;
  region->base = static_cast<std::byte*>(address);
  region->first = first;
  region->length_bytes = length;
  // The low octet changes with every use of the slot, starting anywhere.
  region->generation = region->generation == 0 ? draw<uint8_t>() : region->generation + 1;
  uint32_t lkey = local_cipher_.encrypt(region->slot) << 8 | region->generation;
  uint32_t rkey = remote_cipher_.encrypt(region->slot) << 8 | region->generation;
  if (lkey == 0) lkey = ++region->generation;  // 0 means "no key"
  if (rkey == 0) rkey = ++region->generation;
  if (rkey == lkey) rkey ^= 0x80;
  domain.regions.fetch_add(1, std::memory_order_relaxed);
  region->lkey.store(lkey, std::memory_order_release);
  region->rkey.store(rkey, std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
  return region;
}

void RegionTable::invalidate(MemoryRegion& region) {
  region.lkey.store(0, std::memory_order_seq_cst);
  region.rkey.store(0, std::memory_order_seq_cst);
}

void RegionTable::release(MemoryRegion& region) {
  std::lock_guard lock(mutex_);
  const_cast<ProtectionDomain*>(region.domain)->regions.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(1, std::memory_order_relaxed);
  if (free_.empty()) free_.resize(kMaxMr);
  free_[(free_head_ + free_count_) % free_.size()] = region.slot;
  ++free_count_;
}

std::byte* RegionTable::local(uint32_t lkey, TaggedOffset offset, uint64_t length, uint32_t needed,
                              const ProtectionDomain& domain, RegionFault& fault) const {
  const MemoryRegion* region = find_local(lkey);
  if (region == nullptr) return fault = RegionFault::kInvalidSTag, nullptr;
  if (region->domain != &domain) return fault = RegionFault::kWrongDomain, nullptr;
  std::byte* address = region->range(offset, length, fault);
  if (address != nullptr && !has_rights(*region, needed))
    return fault = RegionFault::kRights, nullptr;
  return address;
}

const MemoryRegion* RegionTable::remote(STag stag, TaggedOffset offset, uint64_t length,
                                        uint32_t needed, const ProtectionDomain& domain,
                                        RegionFault& fault) const {
  const MemoryRegion* region = find_remote(stag);
  if (region == nullptr) return fault = RegionFault::kInvalidSTag, nullptr;
  if (region->domain != &domain) return fault = RegionFault::kWrongDomain, nullptr;
  if (region->range(offset, length, fault) == nullptr && fault != RegionFault::kNone)
    return nullptr;
  if (!has_rights(*region, needed)) return fault = RegionFault::kRights, nullptr;
  return region;
}

}  // namespace uwarp
