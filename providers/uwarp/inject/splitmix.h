// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Numbers that look random and are the same for the same seed and count (splitmix64).
#pragma once

#include <cstdint>

namespace uwarp {

constexpr uint64_t splitmix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace uwarp
