// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Integers in byte buffers, at places whose size the caller has proved. Big-endian (network order)
// unless the name says otherwise. No alignment is needed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace uwarp {

static_assert(std::endian::native == std::endian::little, "only little-endian hosts are supported");

inline uint16_t load_be16(const void* at) {
  uint16_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap16(raw);
}

inline uint32_t load_be32(const void* at) {
  uint32_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap32(raw);
}

inline uint64_t load_be64(const void* at) {
  uint64_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap64(raw);
}

inline uint32_t load_le32(const void* at) {
  uint32_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return raw;
}

inline void store_be16(void* at, uint16_t value) {
  const uint16_t raw = __builtin_bswap16(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_be32(void* at, uint32_t value) {
  const uint32_t raw = __builtin_bswap32(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_be64(void* at, uint64_t value) {
  const uint64_t raw = __builtin_bswap64(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_le32(void* at, uint32_t value) { std::memcpy(at, &value, sizeof value); }

}  // namespace uwarp
