// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where cache lines begin: copies and CRCs of large payloads are slower where they tear lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uwarp {

inline constexpr size_t kCacheLineBytes = 64;

/// Bytes from `at` to the next cache line; 0 if one begins there.
inline size_t to_cache_line(const void* at) {
  return -reinterpret_cast<uintptr_t>(at) % kCacheLineBytes;
}

}  // namespace uwarp
