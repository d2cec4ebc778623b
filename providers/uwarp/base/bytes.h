// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Integers in byte buffers, at places whose size the caller has proved. Big-endian (network order)
// unless the name says otherwise; the host's own by load() and store(). No alignment is needed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace uwarp {

static_assert(std::endian::native == std::endian::little, "only little-endian hosts are supported");

template <typename Word>
Word load(const void* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}
template <typename Word>
void store(void* at, Word word) {
  std::memcpy(at, &word, sizeof word);
}

inline uint16_t load_be16(const void* at) { return __builtin_bswap16(load<uint16_t>(at)); }
inline uint32_t load_be32(const void* at) { return __builtin_bswap32(load<uint32_t>(at)); }
inline uint64_t load_be64(const void* at) { return __builtin_bswap64(load<uint64_t>(at)); }
inline uint32_t load_le32(const void* at) { return load<uint32_t>(at); }

inline void store_be16(void* at, uint16_t value) { store(at, __builtin_bswap16(value)); }
inline void store_be32(void* at, uint32_t value) { store(at, __builtin_bswap32(value)); }
inline void store_be64(void* at, uint64_t value) { store(at, __builtin_bswap64(value)); }
inline void store_le32(void* at, uint32_t value) { store(at, value); }

/// The number that an application has put into an enum of the public ABI, which may be none of the
/// enum's values.
template <typename Enum>
unsigned raw_value(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(unsigned));
  unsigned raw;
  std::memcpy(&raw, &value, sizeof raw);
  return raw;
}

}  // namespace uwarp
