// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Storing the end of a Write so that its last byte becomes visible after all others: applications
// poll it, or the number that it belongs to.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory/fault_safe_copy.h"

namespace uwarp {

/// How many bytes at the end of [to, to + size) one store can take: it must be aligned, or readers
/// may see a part of it. 1, 2, 4 or 8; 0 of nothing.
inline size_t last_store_bytes(const std::byte* to, size_t size) {
  const uintptr_t end = reinterpret_cast<uintptr_t>(to) + size;
  const uintptr_t alignment = end & (~end + 1);
  return std::bit_floor(std::min({size_t{8}, size, static_cast<size_t>(alignment)}));
}

/// Not std::atomic_ref: on the application's side there is no atomic object.
template <typename Word>
void store_last(std::byte* to, const std::byte* from) {
  using Aliasing [[gnu::may_alias]] = Word;
  Word word;
  std::memcpy(&word, from, sizeof word);
  __atomic_store_n(reinterpret_cast<Aliasing*>(to), word, __ATOMIC_RELEASE);
}

/// Copies `size` bytes, at least one, of which the last ones become visible in one step after the
/// others.
inline void place_last(std::byte* to, const std::byte* from, size_t size) {
  const size_t last = last_store_bytes(to, size);
  const size_t before = size - last;
  std::memcpy(to, from, before);
  switch (last) {
    case 8:
      return store_last<uint64_t>(to + before, from + before);
    case 4:
      return store_last<uint32_t>(to + before, from + before);
    case 2:
      return store_last<uint16_t>(to + before, from + before);
    default:
      return store_last<uint8_t>(to + before, from + before);
  }
}

/// The same by two copies of the kernel, into memory that may not be there. False then.
inline bool place_last_on_demand(std::byte* to, const std::byte* from, size_t size) {
  const size_t before = size - last_store_bytes(to, size);
  return (before == 0 || fault_safe_write(to, from, before)) &&
         fault_safe_write(to + before, from + before, size - before);
}

}  // namespace uwarp
