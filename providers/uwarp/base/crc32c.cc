// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CRC32C on ISA-L. Its crc32_iscsi takes and returns the bare register, without preset or final
// inversion, and counts in int, which is why long buffers go in pieces.
#include "base/crc32c.h"

#include <isa-l/crc.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "base/cache_line.h"

namespace uwarp {
namespace {

#if defined(__x86_64__)
[[gnu::target("avx")]] void clear_upper_halves() { _mm256_zeroupper(); }
#endif

/// ISA-L leaves the upper halves of vector registers in use, and until they are cleared every
/// instruction that writes a lower half has to preserve them: all that follows takes up to twice as
/// long, small messages above all.
void leave_vectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) clear_upper_halves();
#endif
}

}  // namespace

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
  leave_vectors();
  return reg;
}

}  // namespace uwarp
