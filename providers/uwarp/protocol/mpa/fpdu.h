// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The frame around one DDP segment on the TCP stream: length, pad and CRC. Markers are not
// supported anywhere (a peer that asks for them is refused). One follows the other: RFC 5044-6-a.
//
//   ULPDU_Length (2) | ULPDU | pad (0..3, zero) | CRC32C (4, least significant byte first)
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/limits.h"

namespace uwarp {

inline constexpr size_t kFpduLengthSize = 2;
inline constexpr size_t kFpduPadMax = 3;
inline constexpr size_t kFpduCrcSize = 4;
inline constexpr size_t kFpduTrailerMax = kFpduPadMax + kFpduCrcSize;

/// Zero bytes behind a ULPDU of that length, up to a multiple of four. RFC 5044-4.1-b.
constexpr size_t fpdu_pad(size_t ulpdu_length) {
  return (0 - (kFpduLengthSize + ulpdu_length)) & 3;
}

/// Pad and CRC together. The CRC field is there even if CRCs are off. RFC 5044-4.1-d.
constexpr size_t fpdu_trailer_size(size_t ulpdu_length) {
  return fpdu_pad(ulpdu_length) + kFpduCrcSize;
}

/// Size of the whole FPDU, always a multiple of 4.
constexpr size_t fpdu_size(size_t ulpdu_length) {
  return kFpduLengthSize + ulpdu_length + fpdu_trailer_size(ulpdu_length);
}

inline constexpr size_t kFpduSizeMax = fpdu_size(kUlpduMax);

/// A ULPDU of this size and more belongs to a large message: others like it are likely to follow,
/// and its bytes are worth system calls of their own.
inline constexpr size_t kLargeUlpdu = 16384;

static_assert(fpdu_pad(14) == 0 && fpdu_pad(23) == 3 && fpdu_pad(20) == 2 && fpdu_pad(25) == 1);
static_assert(fpdu_size(14) == 20 && fpdu_size(23) == 32 && kFpduSizeMax == 65544);

/// Largest ULPDU whose FPDU fits into one TCP segment of `emss` bytes. RFC 5044-4.5-a. (A
/// rounding term keeps the FPDU a multiple of 4.) Never below kUlpduMin or above kUlpduMax.
constexpr uint32_t mulpdu_for(uint32_t emss) {
  const uint32_t overhead = 6 + emss % 4;
  const uint32_t fitting = emss > overhead ? emss - overhead : 0;
  return std::clamp(fitting, kUlpduMin, kUlpduMax);
}

static_assert(mulpdu_for(1460) == 1454 && fpdu_size(mulpdu_for(1460)) == 1460);
static_assert(mulpdu_for(1448) == 1442 && mulpdu_for(65483) == 65474);

/// Writes zero pad and the CRC value (0 if CRCs are off) behind a ULPDU; returns the bytes
/// written. `at` has room for kFpduTrailerMax.
inline size_t write_fpdu_trailer(std::byte* at, size_t ulpdu_length, uint32_t crc_or_zero) {
  const size_t pad = fpdu_pad(ulpdu_length);
  // Four bytes of zero cover any pad; the CRC then overwrites what is too much.
  store_le32(at, 0);
  store_le32(at + pad, crc_or_zero);
  return pad + kFpduCrcSize;
}

/// True if the last four bytes of a whole FPDU are the CRC32C of those before. RFC 5044-4.4-a.
inline bool verify_fpdu_crc(std::span<const std::byte> fpdu) {
  if (fpdu.size() < kFpduLengthSize + kFpduCrcSize) return false;
  const size_t covered = fpdu.size() - kFpduCrcSize;
  return crc32c(fpdu.data(), covered) == load_le32(fpdu.data() + covered);
}

}  // namespace uwarp
