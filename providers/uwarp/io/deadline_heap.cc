// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Lazy corrections of the deadline heap.
#include "io/deadline_heap.h"

#include <algorithm>
#include <mutex>

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
  if (source.queued_ns_ != 0 && source.queued_ns_ <= deadline_ns) return false;
  const bool first = heap_.empty() || deadline_ns < heap_.front().when_ns;
  push_locked(source, deadline_ns);  // a later entry of the same source no longer counts
  publish_earliest_locked();
  return first;
}

std::shared_ptr<Source> DeadlineHeap::take_due(uint64_t now) {
  // Released after the lock: the last reference may run the destructor of a source.
  std::shared_ptr<Source> source;
  std::vector<std::shared_ptr<Source>> passed_over;
  const std::lock_guard guard(lock_);
  while (!heap_.empty() && heap_.front().when_ns <= now) {
    std::pop_heap(heap_.begin(), heap_.end());
    const uint64_t when_ns = heap_.back().when_ns;
    source = heap_.back().source.lock();
    heap_.pop_back();
    if (source == nullptr) continue;
    if (source->queued_ns_ == when_ns) {
      source->queued_ns_ = 0;
      if (source->deadline_ns_ != 0 && source->deadline_ns_ <= now) {
        source->deadline_ns_ = 0;
        publish_earliest_locked();
        return source;
      }
      if (source->deadline_ns_ != 0) push_locked(*source, source->deadline_ns_);
    }
    passed_over.push_back(std::move(source));
  }
  publish_earliest_locked();
  return nullptr;
}

}  // namespace uwarp
