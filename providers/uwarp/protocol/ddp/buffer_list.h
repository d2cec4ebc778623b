// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory of one message: an ordered list of ranges that gathers an outgoing message or takes an
// incoming one at any message offset. Keys were resolved before. RFC 5041 5.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/limits.h"
#include "memory/region_table.h"

namespace uwarp {

/// Up to kMaxSge ranges seen as one run of bytes. Remembers where the last access ended, so that
/// walking a message front to back costs nothing per range already passed.
class BufferList {
 public:
  void clear() {
    count_ = 0;
    length_bytes_ = 0;
    plain_ = true;
    revoked_ = false;
    rewind();
  }
  /// Adds memory of our own; empty ranges are left out. The caller adds at most kMaxSge.
  void append(std::byte* address, uint32_t length) {
    append(address, length, nullptr, MemoryKind::kPlain);
  }
  /// Adds memory of a region.
  void append(std::byte* address, uint32_t length, const MemoryRegion* region, MemoryKind memory) {
    if (length == 0) return;
    ranges_[count_++] = {address, region, length, memory};
    length_bytes_ += length;
    plain_ &= memory == MemoryKind::kPlain;
  }
  uint64_t length_bytes() const { return length_bytes_; }
  /// All of it may be handed to the kernel, or touched in any way. Otherwise only copy_in() and
  /// copy_out() may be used.
  bool plain() const { return plain_; }

  /// Describes [offset, offset + length) as up to `max` iovecs; returns their number and lowers
  /// `length` to what they hold. The range must lie inside the list.
  size_t describe(uint64_t offset, uint64_t& length, iovec* out, size_t max);
  /// Copies `size` bytes to `offset`; they must fit. False: some memory is not there (only of
  /// regions on demand).
  bool copy_in(uint64_t offset, const std::byte* from, size_t size);
  /// Copies `size` bytes out of `offset`. False: some memory is not there.
  bool copy_out(uint64_t offset, std::byte* to, size_t size);
  /// The region's memory may not be touched any more: nor, if a range is of it, that of the list.
  void revoke(const MemoryRegion& region);
  bool revoked() const { return revoked_; }

 private:
  struct Range {
    std::byte* address;
    const MemoryRegion* region;  // null: memory of our own
    uint32_t length;
    MemoryKind memory;
  };
  void rewind() {
    index_ = 0;
    index_offset_ = 0;
  }
  void seek(uint64_t offset);

  bool plain_ = true;
  bool revoked_ = false;
  uint32_t count_ = 0;
  uint32_t index_ = 0;         // range that the last access ended in
  uint64_t index_offset_ = 0;  // message offset at which that range starts
  uint64_t length_bytes_ = 0;
  Range ranges_[kMaxSge];
};

}  // namespace uwarp
