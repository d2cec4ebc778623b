// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Depths of Reads as the peer is told of them: with acknowledged completions one more than the
// application uses, for the Reads that acknowledge.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/limits.h"
#include "base/settings.h"
#include "protocol/wire/mpa_start_frame.h"

namespace uwarp {

inline uint16_t with_reserve(uint16_t depth) {
  return settings().acknowledged() && depth < kDepthNotNegotiated ? depth + 1 : depth;
}

inline uint16_t without_reserve(uint16_t depth) {
  return settings().acknowledged() && depth > 0 ? depth - 1 : depth;
}

/// Depth as rdma_cm can carry it, when the peer has named none or more than we have.
inline uint16_t offered_depth(bool on_wire, uint16_t depth) {
  constexpr uint16_t kMost = kMaxRdAtom;
  return on_wire ? std::min(without_reserve(depth), kMost) : kMost;
}

}  // namespace uwarp
