// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CRC32C on ISA-L. Its crc32_iscsi takes and returns the bare register, without preset or final
// inversion, and counts in int, which is why long buffers go in pieces.
#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstdint>

namespace uwarp {

namespace {

constexpr size_t kPiece = size_t{1} << 30;
/// From this size on a run is worth beginning with a cache line: ISA-L takes 64 KiB a sixth faster.
constexpr size_t kLongBytes = 16 << 10;

/// What is to be covered before the rest begins well.
size_t head_of(const unsigned char* at, size_t size) {
  constexpr size_t kCacheLineBytes = 64;
  return size < kLongBytes ? 0 : -reinterpret_cast<uintptr_t>(at) % kCacheLineBytes;
}

}  // namespace

uint32_t crc32c_update(uint32_t reg, const void* bytes, size_t size) {
  // ISA-L's prototype lacks const; it only reads.
  auto* at = static_cast<unsigned char*>(const_cast<void*>(bytes));
  const size_t head = head_of(at, size);
  for (size_t piece = head != 0 ? head : std::min(size, kPiece); piece != 0;
       piece = std::min(size, kPiece)) {
    reg = crc32_iscsi(at, static_cast<int>(piece), reg);
    at += piece;
    size -= piece;
  }
  return reg;
}

}  // namespace uwarp
