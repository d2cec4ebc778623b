// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a rule of UWARP_FAULT orders of a link.
#pragma once

#include <cstdint>

namespace uwarp {

/// Without a rate nothing waits for the link.
struct WireTerms {
  static constexpr uint64_t kMostNs = 1'000'000'000;
  static constexpr uint64_t kLeastRate = 10'000, kMostRate = 1'000'000'000'000;
  static constexpr uint64_t kLeastQueue = 4096, kMostQueue = 1'000'000'000;

  uint64_t latency_ns = 0;
  uint64_t jitter_ns = 0;        // more or less than the latency; not above it
  uint64_t bits_per_second = 0;  // 0: no limit
  uint64_t queue_bytes = 0;      // that may wait for the link; 0: Wire::queue_bytes()
  uint64_t seed = 1;             // of the jitter
};

}  // namespace uwarp
