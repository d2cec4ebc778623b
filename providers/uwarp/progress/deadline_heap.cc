// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Lazy corrections of the deadline heap.
#include "progress/deadline_heap.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace uwarp {

void DeadlineHeap::push_locked(Source& source, uint64_t when_ns) {
  source.queued_ns_ = when_ns;
  heap_.push_back({when_ns, source.weak_from_this()});
  std::push_heap(heap_.begin(), heap_.end());
}

void DeadlineHeap::publish_earliest_locked() {
  // Sequentially consistent: pairs with the helper thread that says it sleeps and looks again.
  earliest_ns_.store(heap_.empty() ? kNever : heap_.front().when_ns);
}

bool DeadlineHeap::set(Source& source, uint64_t deadline_ns) {
  const std::lock_guard guard(lock_);
  source.deadline_ns_ = deadline_ns;
  if (deadline_ns == 0) return false;
  const bool queued = source.queued_ns_ != 0;
  if (queued ? source.queued_ns_ <= deadline_ns : take_up_behind_locked(source)) return false;
  const bool first = heap_.empty() || deadline_ns < heap_.front().when_ns;
  if (queued) source.behind_ns_ = source.queued_ns_;
  push_locked(source, deadline_ns);
  publish_earliest_locked();
  return first;
}

// A far deadline with a near one before it, again and again, would fill the heap with the far ones.
bool DeadlineHeap::take_up_behind_locked(Source& source) {
  if (source.behind_ns_ == 0 || source.behind_ns_ > source.deadline_ns_) return false;
  source.queued_ns_ = std::exchange(source.behind_ns_, 0);
  return true;
}

std::shared_ptr<Source> DeadlineHeap::take_due(uint64_t now) {
  for (;;) {
    std::shared_ptr<Source> source;  // let go of after the lock: it may be the last reference
    const std::lock_guard guard(lock_);
    if (heap_.empty() || heap_.front().when_ns > now) return nullptr;
    std::pop_heap(heap_.begin(), heap_.end());
    const uint64_t when_ns = heap_.back().when_ns;
    source = heap_.back().source.lock();
    heap_.pop_back();
    const bool due = source != nullptr && came_up_locked(*source, when_ns, now);
    publish_earliest_locked();
    if (due) return source;
  }
}

// True if the deadline has passed.
bool DeadlineHeap::came_up_locked(Source& source, uint64_t when_ns, uint64_t now) {
  if (source.behind_ns_ == when_ns) source.behind_ns_ = 0;
  if (source.queued_ns_ != when_ns) return false;
  source.queued_ns_ = 0;
  if (source.deadline_ns_ == 0) return false;
  if (source.deadline_ns_ <= now) {
    source.deadline_ns_ = 0;
    return true;
  }
  if (!take_up_behind_locked(source)) push_locked(source, source.deadline_ns_);
  return false;
}

}  // namespace uwarp
