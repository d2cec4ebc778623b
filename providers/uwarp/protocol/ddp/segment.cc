// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/ddp/segment.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "memory/fault_safe_copy.h"

namespace uwarp {

// Calls `visit(range, address, size)` for the pieces of [offset, offset + size), which lies inside
// the list, as long as it returns true; what it returned last.
template <typename Visit>
bool BufferList::each_piece(uint64_t offset, uint64_t size, Visit&& visit) {
  assert(offset + size <= all_.length_bytes);
  if (offset < all_.last.offset) all_.last = {};
  while (size > 0) {
    const Range& range = ranges_[all_.last.range];
    const uint64_t skip = offset - all_.last.offset;
    if (skip >= range.length) {
      all_.last = {all_.last.range + 1, all_.last.offset + range.length};
      continue;
    }
    const size_t here = std::min<uint64_t>(range.length - skip, size);
    if (!visit(range, range.address + skip, here)) return false;
    offset += here;
    size -= here;
  }
  return true;
}

size_t BufferList::describe(uint64_t offset, uint64_t& length, iovec* out, size_t max) {
  size_t used = 0;
  uint64_t done = 0;
  each_piece(offset, length, [&](const Range&, std::byte* at, size_t size) {
    out[used++] = {at, size};
    done += size;
    return used < max;
  });
  length = done;
  return used;
}

bool BufferList::copy_in(uint64_t offset, const std::byte* from, size_t size) {
  return each_piece(offset, size, [&](const Range& range, std::byte* at, size_t here) {
    const std::byte* const piece = std::exchange(from, from + here);
    if (range.memory == MemoryKind::kOnDemand) [[unlikely]]
      return fault_safe_write(at, piece, here);
    if (range.memory == MemoryKind::kPlain) [[likely]]
      std::memcpy(at, piece, here);
    return true;
  });
}

bool BufferList::copy_out(uint64_t offset, std::byte* to, size_t size) {
  return each_piece(offset, size, [&](const Range& range, const std::byte* at, size_t here) {
    std::byte* const piece = std::exchange(to, to + here);
    if (range.memory == MemoryKind::kOnDemand) [[unlikely]]
      return fault_safe_read(piece, at, here);
    if (range.memory == MemoryKind::kPlain) [[likely]]
      std::memcpy(piece, at, here);
    else
      std::memset(piece, 0, here);
    return true;
  });
}

void BufferList::revoke(const MemoryRegion& region) {
  for (uint32_t i = 0; i < all_.count; ++i) all_.revoked |= ranges_[i].region == &region;
}

}  // namespace uwarp
