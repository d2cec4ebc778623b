// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/wire.h"

#include <algorithm>

#include "base/mutex.h"
#include "inject/splitmix.h"

namespace uwarp {
namespace {

constexpr uint64_t kBitsPerByte = 8;
constexpr uint64_t kNsPerSecond = 1'000'000'000;
constexpr uint64_t kUsualLeastQueue = 64 << 10, kUsualMostQueue = 1 << 20;

/// As many bytes as `bits_per_second` carries in `ns`. The product may need more than 64 bits.
uint64_t bytes_in(uint64_t ns, uint64_t bits_per_second) {
  const auto bits = static_cast<unsigned __int128>(ns) * bits_per_second / kNsPerSecond;
  return static_cast<uint64_t>(bits / kBitsPerByte);
}

}  // namespace

uint64_t Wire::queue_bytes() const {
  if (terms_.queue_bytes != 0) return terms_.queue_bytes;
  return std::clamp(bytes_in(terms_.latency_ns, terms_.bits_per_second), kUsualLeastQueue,
                    kUsualMostQueue);
}

uint64_t Wire::transfer_ns(uint64_t bytes) const {
  if (terms_.bits_per_second == 0) return 0;
  const auto scaled = static_cast<unsigned __int128>(bytes) * kBitsPerByte * kNsPerSecond;
  return static_cast<uint64_t>(scaled / terms_.bits_per_second);
}

Wire::Wire(const WireTerms& terms) : terms_(terms), queue_ns_(transfer_ns(queue_bytes())) {}

size_t Wire::space(uint64_t now_ns) const {
  if (terms_.bits_per_second == 0) return ~size_t{0};
  const Lock guard(lock_);
  const uint64_t waits_ns = free_ns_ > now_ns ? free_ns_ - now_ns : 0;
  if (waits_ns >= queue_ns_) return 0;
  return std::max<size_t>(bytes_in(queue_ns_ - waits_ns, terms_.bits_per_second), kPieceBytes);
}

uint64_t Wire::space_ns(uint64_t now_ns) const {
  const Lock guard(lock_);
  return std::max(now_ns, free_ns_ - std::min(free_ns_, queue_ns_ / 2));
}

uint64_t Wire::carry(size_t bytes, uint64_t now_ns, bool waited) {
  const Lock guard(lock_);
  const uint64_t earliest = waited ? now_ns - std::min(now_ns, kSlackNs) : now_ns;
  free_ns_ = std::max(free_ns_, earliest) + transfer_ns(bytes);
  return free_ns_ + delay_ns();
}

uint64_t Wire::delay_ns() {
  if (terms_.jitter_ns == 0) return terms_.latency_ns;
  const uint64_t drawn = splitmix(terms_.seed + ++drawn_) % (2 * terms_.jitter_ns + 1);
  return terms_.latency_ns - terms_.jitter_ns + drawn;
}

}  // namespace uwarp
