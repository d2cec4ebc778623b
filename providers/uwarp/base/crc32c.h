// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Incremental CRC32C (Castagnoli) as MPA uses it: reflected, register preset and final inversion
// of all ones. RFC 5044 4.4. The arithmetic is ISA-L's, which picks the CPU's best path once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uwarp {

/// Register before the first byte.
constexpr uint32_t crc32c_begin() { return 0xFFFFFFFFu; }

/// Register after `size` further bytes.
uint32_t crc32c_update(uint32_t reg, const void* bytes, size_t size);

/// CRC value of what the register has seen. On the wire its least significant byte goes first.
constexpr uint32_t crc32c_end(uint32_t reg) { return ~reg; }

/// CRC value of one buffer: "123456789" gives 0xE3069283.
inline uint32_t crc32c(const void* bytes, size_t size) {
  return crc32c_end(crc32c_update(crc32c_begin(), bytes, size));
}

}  // namespace uwarp
