// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sources that are to be called again soon, oldest first, each once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "base/atomics.h"
#include "base/mutex.h"
#include "base/spinlock.h"
#include "progress/source.h"

namespace uwarp {

/// A list of the sources themselves: takes no memory. Thread-safe. The lock is a leaf.
class RevisitQueue final : public SourceList {
 public:
  /// False: it is queued already, and will be taken after this call.
  bool add(Source& source) {
    const Lock guard(lock_);
    auto& place = source.revisit_;
    if (std::exchange(place.queued, true)) return false;
    place.list = this;
    place.before = last_;
    (last_ != nullptr ? last_->revisit_.next : first_) = &source;
    last_ = &source;
    waiting_.store(true);
    return true;
  }

  /// Takes as many as there is room for. Returns how many; those that are ending are null.
  size_t take(std::span<std::shared_ptr<Source>> out) {
    const Lock guard(lock_);
    size_t count = 0;
    for (; count < out.size() && first_ != nullptr; ++count) {
      Source& source = *first_;
      take_out_locked(source);
      out[count] = source.weak_from_this().lock();
    }
    return count;
  }

  /// Lock-free. Sequentially consistent: a thread that goes to sleep says so first and then asks.
  bool waiting() const { return waiting_.load(); }

  void leave(Source& source) override {
    const Lock guard(lock_);
    if (source.revisit_.queued) take_out_locked(source);
  }

 private:
  void take_out_locked(Source& source) REQUIRES(lock_) {
    auto& place = source.revisit_;
    (place.before != nullptr ? place.before->revisit_.next : first_) = place.next;
    (place.next != nullptr ? place.next->revisit_.before : last_) = place.before;
    place.next = place.before = nullptr;
    place.queued = false;
    if (first_ == nullptr) waiting_.store(false);
  }

  SpinLock lock_;
  Source* first_ GUARDED_BY(lock_) = nullptr;
  Source* last_ GUARDED_BY(lock_) = nullptr;
  Atomic<bool> waiting_{false};
};

}  // namespace uwarp
