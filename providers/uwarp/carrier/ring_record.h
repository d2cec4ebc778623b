// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What lies in a ring: the stream is cut into records of 8-byte steps, which are bytes, or a place
// in the writer's memory from which the reader takes them by itself. A ring that is empty begins
// again at its start, so that a stream of small messages stays in the cache: positions carry a
// generation.
#pragma once

#include <cstdint>

namespace uwarp {

/// A generation, which changes when the ring begins again at its start, and bytes since then.
struct RingPosition {
  uint32_t generation = 0;
  uint32_t bytes = 0;

  uint64_t word() const { return uint64_t{generation} << 32 | bytes; }
  static RingPosition of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
  }
};

struct RingRecord {
  enum Kind : uint32_t { kBytes = 0, kPlace = 1, kSkip = 2 };
  uint32_t bytes = 0;
  uint32_t kind = kBytes;

  /// Bytes behind it in the ring: of a place its address.
  uint32_t inside() const { return kind == kPlace ? uint32_t{sizeof(uint64_t)} : bytes; }
};
inline constexpr uint32_t kRingStep = 8;
static_assert(sizeof(RingRecord) == kRingStep);

constexpr uint32_t ring_steps(uint32_t bytes) { return (bytes + kRingStep - 1) & ~(kRingStep - 1); }

}  // namespace uwarp
