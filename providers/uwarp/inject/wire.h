// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One direction of a link that UWARP_FAULT orders: says when bytes that are handed to it at a time
// have come out at the other end. Holds no bytes. Time in, time out; the time is of any clock in
// nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/spinlock.h"
#include "inject/wire_terms.h"

namespace uwarp {

/// Shared by all streams that use the link. Any thread.
class Wire {
 public:
  /// At a limited rate bytes come out in pieces of this size.
  static constexpr size_t kPieceBytes = 4096;
  /// How far back bytes that waited may begin: a thread that came too late for them by more than
  /// this has left the link idle.
  static constexpr uint64_t kSlackNs = 5'000'000;

  explicit Wire(const WireTerms& terms);

  const WireTerms& terms() const { return terms_; }
  /// What is ordered, or else as much as the link carries in its latency, within limits.
  uint64_t queue_bytes() const;
  /// How long the link needs for so many bytes.
  uint64_t transfer_ns(uint64_t bytes) const;
  /// How many bytes may enter at `now_ns`. Not 0 while the queue has any room, so the last of them
  /// may go beyond it by a piece.
  size_t space(uint64_t now_ns) const;
  /// When it is worth asking again after space() was 0: half of the queue has gone.
  uint64_t space_ns(uint64_t now_ns) const;
  /// `bytes` enter. `waited`: they were there before, and found no space; then the link has not
  /// been idle meanwhile. Returns when the last of them has come out.
  uint64_t carry(size_t bytes, uint64_t now_ns, bool waited);

 private:
  uint64_t delay_ns() REQUIRES(lock_);

  const WireTerms terms_;
  const uint64_t queue_ns_;
  mutable SpinLock lock_;                   // leaf
  uint64_t free_ns_ GUARDED_BY(lock_) = 0;  // when the link has taken what entered before
  uint64_t drawn_ GUARDED_BY(lock_) = 0;    // jitters
};

}  // namespace uwarp
