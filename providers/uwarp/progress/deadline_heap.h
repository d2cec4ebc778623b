// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Deadlines of sources, earliest first, and until when the helper thread sleeps. Moving a deadline
// back, or clearing it, costs nothing: the entry stays and is corrected when it comes up. So a
// timer that is re-armed per message makes no heap traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/atomics.h"
#include "base/spinlock.h"
#include "progress/source.h"

namespace uwarp {

/// A pairing heap of the sources themselves: takes no memory. Thread-safe. The lock is a leaf.
class DeadlineHeap final : public SourceList {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  /// Sets (or with 0 clears) the one deadline of `source`. True if the sleeper, if there is one,
  /// sleeps past it: it has to be woken.
  bool set(Source& source, uint64_t deadline_ns);

  /// Takes one source whose deadline has passed at `now`; null when there is none.
  std::shared_ptr<Source> take_due(uint64_t now);

  /// A time before which nothing is due; kNever when nothing is queued. Lock-free.
  uint64_t earliest_ns() const { return earliest_ns_.load(); }

  /// The one sleeper is about to sleep until `tick_ns`, if nothing is due before that. Returns when
  /// it has to wake: deadlines, also those of the past, may be `late_ns` late.
  uint64_t begin_sleep(uint64_t now_ns, uint64_t tick_ns, uint64_t late_ns);
  void end_sleep() { sleeping_until_ns_.store(0); }
  bool sleeping() const { return sleeping_until_ns_.load() != 0; }

  void leave(Source& source) override;

 private:
  static Source* meld(Source* a, Source* b);
  static Source* meld_all(Source* first);
  void put_locked(Source& source, uint64_t key_ns) REQUIRES(lock_);
  void take_out_locked(Source& source) REQUIRES(lock_);
  void publish_earliest_locked() REQUIRES(lock_);

  SpinLock lock_;
  Source* first_ GUARDED_BY(lock_) = nullptr;
  Atomic<uint64_t> earliest_ns_{kNever};
  Atomic<uint64_t> sleeping_until_ns_{0};  // 0: awake
};

}  // namespace uwarp
