// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The codes of ibv_mtu: 1 for 256 bytes, to 5 for 4,096.
#pragma once

#include <cstdint>

namespace uwarp {

/// The largest one that fits into a frame of a netdev with so many bytes.
inline uint8_t mtu_code(uint32_t mtu_bytes) {
  uint8_t code = 1;
  for (uint32_t bytes = 512; code < 5 && bytes <= mtu_bytes; bytes *= 2) ++code;
  return code;
}

}  // namespace uwarp
