// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Deadlines of sources, earliest first. Moving a deadline back, or clearing it, costs nothing: the
// old entry stays and is corrected when it comes up. So a timer that is re-armed per message makes
// no heap traffic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/spinlock.h"
#include "progress/source.h"

namespace uwarp {

/// Thread-safe. The lock is a leaf.
class DeadlineHeap {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  /// Sets (or with 0 clears) the one deadline of `source`. True if it became the earliest of all.
  bool set(Source& source, uint64_t deadline_ns);

  /// Takes one source whose deadline has passed at `now`; null when there is none.
  std::shared_ptr<Source> take_due(uint64_t now);

  /// A time before which nothing is due; kNever when nothing is queued. Lock-free.
  uint64_t earliest_ns() const { return earliest_ns_.load(); }
  /// Entries, also those that no longer count.
  size_t size() {
    const std::lock_guard guard(lock_);
    return heap_.size();
  }

 private:
  struct Entry {
    uint64_t when_ns;
    std::weak_ptr<Source> source;
    // std heaps keep the greatest element in front.
    friend bool operator<(const Entry& a, const Entry& b) { return a.when_ns > b.when_ns; }
  };

  void push_locked(Source& source, uint64_t when_ns);
  bool take_up_behind_locked(Source& source);
  bool came_up_locked(Source& source, uint64_t when_ns, uint64_t now);
  void publish_earliest_locked();

  SpinLock lock_;
  std::vector<Entry> heap_;
  std::atomic<uint64_t> earliest_ns_{kNever};
};

}  // namespace uwarp
