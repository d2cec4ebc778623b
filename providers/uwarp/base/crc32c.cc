// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CRC32C on ISA-L. Its crc32_iscsi takes and returns the bare register, without preset or final
// inversion, and counts in int, which is why long buffers go in pieces.
#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "base/cache_line.h"

namespace uwarp {

uint32_t crc32c_update(uint32_t reg, const void* bytes, size_t size) {
  constexpr size_t kPiece = size_t{1} << 30;
  // From this size on a run is worth beginning with a cache line: 64 KiB take a sixth less.
  constexpr size_t kLongBytes = 16 << 10;
  // ISA-L's prototype lacks const; it only reads.
  auto* at = static_cast<unsigned char*>(const_cast<void*>(bytes));
  if (const size_t head = size < kLongBytes ? 0 : to_cache_line(at); head != 0) {
    reg = crc32_iscsi(at, static_cast<int>(head), reg);
    at += head;
    size -= head;
  }
  while (size != 0) {
    const size_t piece = std::min(size, kPiece);
    reg = crc32_iscsi(at, static_cast<int>(piece), reg);
    at += piece;
    size -= piece;
  }
  return reg;
}

}  // namespace uwarp
