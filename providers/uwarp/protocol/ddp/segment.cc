// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/ddp/segment.h"

#include <algorithm>

#include "memory/fault_safe_copy.h"

namespace uwarp {

void BufferList::seek(uint64_t offset) {
  if (offset < index_offset_) rewind();
  while (index_ < count_ && offset - index_offset_ >= ranges_[index_].length) {
    index_offset_ += ranges_[index_].length;
    ++index_;
  }
}

size_t BufferList::describe(uint64_t offset, uint64_t& length, iovec* out, size_t max) {
  seek(offset);
  uint64_t done = 0;
  size_t used = 0;
  uint32_t index = index_;
  uint64_t skip = offset - index_offset_;
  while (done < length && used < max && index < count_) {
    uint64_t here = std::min<uint64_t>(ranges_[index].length - skip, length - done);
    out[used++] = {ranges_[index].address + skip, static_cast<size_t>(here)};
    done += here;
    skip = 0;
    ++index;
  }
  length = done;
  return used;
}

bool BufferList::copy_in(uint64_t offset, const std::byte* from, size_t size) {
  while (size > 0) {
    seek(offset);
    const Range& range = ranges_[index_];
    uint64_t skip = offset - index_offset_;
    size_t here = std::min<size_t>(range.length - skip, size);
    if (range.memory == MemoryKind::kPlain) [[likely]] {
      std::memcpy(range.address + skip, from, here);
    } else if (range.memory == MemoryKind::kOnDemand &&
               !fault_safe_write(range.address + skip, from, here)) {
      return false;
    }
    from += here;
    offset += here;
    size -= here;
  }
  return true;
}

bool BufferList::copy_out(uint64_t offset, std::byte* to, size_t size) {
  while (size > 0) {
    seek(offset);
    const Range& range = ranges_[index_];
    uint64_t skip = offset - index_offset_;
    size_t here = std::min<size_t>(range.length - skip, size);
    if (range.memory == MemoryKind::kPlain) [[likely]] {
      std::memcpy(to, range.address + skip, here);
    } else if (range.memory == MemoryKind::kNull) {
      std::memset(to, 0, here);
    } else if (!fault_safe_read(to, range.address + skip, here)) {
      return false;
    }
    to += here;
    offset += here;
    size -= here;
  }
  return true;
}

void BufferList::revoke(const MemoryRegion& region) {
  for (uint32_t i = 0; i < count_; ++i) revoked_ |= ranges_[i].region == &region;
}

}  // namespace uwarp
