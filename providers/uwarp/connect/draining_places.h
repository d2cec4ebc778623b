// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Holds the connections that drain: they wait for the peer's FIN. Their queue pairs are gone, so
// perhaps no other object holds them. A peer need not send a FIN, so when all places are taken the
// oldest connection loses its place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace uwarp {

/// How many places there are if a process may open `open_files` files: a quarter of them, so that
/// peers which keep their end open leave it three quarters. An orderly peer needs its place for a
/// round trip. A process that raised its limit for many connections can end as many at once. The
/// kernel's memory bounds the number: each socket may hold a full buffer.
inline constexpr uint64_t kMostDraining = 4096;
constexpr size_t draining_places(uint64_t open_files) {
  return static_cast<size_t>(std::clamp<uint64_t>(open_files / 4, 1, kMostDraining));
}

/// Holders are kept in the order in which they came. Any thread. Its lock is a leaf, so the caller
/// releases what comes out.
template <class Holder>
class DrainingPlaces {
 public:
  /// Takes memory for all places, because a connection that ends can get none. The kernel gives the
  /// pages when they are used.
  DrainingPlaces() { holders_.reserve(kMostDraining + 1); }
  /// Enters `holder`. If `places` are taken, returns the oldest, which has lost its place.
  [[nodiscard]] std::optional<Holder> enter(Holder holder, size_t places) {
    const std::lock_guard guard(mutex_);
    holders_.push_back(std::move(holder));
    if (holders_.size() <= places) return std::nullopt;
    return take_out(holders_.begin());
  }
  /// Returns `holder` if it had a place.
  std::optional<Holder> leave(const Holder& holder) {
    const std::lock_guard guard(mutex_);
    const auto found = std::ranges::find(holders_, holder);
    return found == holders_.end() ? std::nullopt : std::optional(take_out(found));
  }

 private:
  Holder take_out(typename std::vector<Holder>::iterator at) {
    Holder gone = std::move(*at);
    holders_.erase(at);
    return gone;
  }

  std::mutex mutex_;
  std::vector<Holder> holders_;
};

}  // namespace uwarp
