// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/deadline_heap.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"

namespace uwarp {

// Of two heaps the later one goes below the earlier one.
Source* DeadlineHeap::meld(Source* a, Source* b) {
  if (a == nullptr || b == nullptr) return a != nullptr ? a : b;
  if (b->deadline_.key_ns < a->deadline_.key_ns) std::swap(a, b);
  b->deadline_.before = a;
  b->deadline_.next = a->deadline_.below;
  if (b->deadline_.next != nullptr) b->deadline_.next->deadline_.before = b;
  a->deadline_.below = b;
  return a;
}

// Makes one heap of a row of heaps: in pairs first, then these, which keeps heaps flat.
Source* DeadlineHeap::meld_all(Source* first) {
  Source* pairs = nullptr;
  while (first != nullptr) {
    Source* const a = first;
    Source* const b = std::exchange(a->deadline_.next, nullptr);
    first = b != nullptr ? std::exchange(b->deadline_.next, nullptr) : nullptr;
    Source* const pair = meld(a, b);
    pair->deadline_.next = std::exchange(pairs, pair);
  }
  Source* all = nullptr;
  while (pairs != nullptr) {
    Source* const pair = pairs;
    pairs = std::exchange(pair->deadline_.next, nullptr);
    all = meld(all, pair);
  }
  return all;
}

void DeadlineHeap::put_locked(Source& source, uint64_t key_ns) {
  source.deadline_.list = this;
  source.deadline_.key_ns = key_ns;
  first_ = meld(first_, &source);
}

void DeadlineHeap::take_out_locked(Source& source) {
  auto& place = source.deadline_;
  if (place.next != nullptr) place.next->deadline_.before = place.before;
  if (place.before != nullptr) {
    auto& before = place.before->deadline_;
    (before.below == &source ? before.below : before.next) = place.next;
  }
  Source* const rest = meld_all(std::exchange(place.below, nullptr));
  if (rest != nullptr) rest->deadline_.before = nullptr;
  first_ = first_ == &source ? rest : meld(first_, rest);
  place.next = place.before = nullptr;
  place.key_ns = 0;
}

// Sequentially consistent: pairs with begin_sleep().
void DeadlineHeap::publish_earliest_locked() {
  earliest_ns_.store(first_ != nullptr ? first_->deadline_.key_ns : kNever);
}

bool DeadlineHeap::set(Source& source, uint64_t deadline_ns) {
  const Lock guard(lock_);
  auto& place = source.deadline_;
  place.due_ns = deadline_ns;
  if (deadline_ns == 0 || (place.key_ns != 0 && place.key_ns <= deadline_ns)) return false;
  if (place.key_ns != 0) take_out_locked(source);
  put_locked(source, deadline_ns);
  publish_earliest_locked();
  return first_ == &source && deadline_ns < sleeping_until_ns_.load();
}

std::shared_ptr<Source> DeadlineHeap::take_due(uint64_t now) {
  std::shared_ptr<Source> due;
  const Lock guard(lock_);
  while (due == nullptr && first_ != nullptr && first_->deadline_.key_ns <= now) {
    Source& source = *first_;
    take_out_locked(source);
    if (source.deadline_.due_ns > now) {
      put_locked(source, source.deadline_.due_ns);
    } else if (std::exchange(source.deadline_.due_ns, 0) != 0) {
      due = source.weak_from_this().lock();  // null while it ends
    }
  }
  publish_earliest_locked();
  return due;
}

// Says until when this thread sleeps, then looks. A thread that sets a deadline does it in the
// opposite order, so that one of the two sees the other.
uint64_t DeadlineHeap::begin_sleep(uint64_t now_ns, uint64_t tick_ns, uint64_t late_ns) {
  sleeping_until_ns_.store(tick_ns - late_ns);
  const uint64_t due = std::max(earliest_ns_.load(), now_ns);
  const uint64_t until = due < tick_ns - late_ns ? due + late_ns : tick_ns;
  sleeping_until_ns_.store(until - late_ns);
  return until;
}

void DeadlineHeap::leave(Source& source) {
  const Lock guard(lock_);
  if (source.deadline_.key_ns == 0) return;
  take_out_locked(source);
  publish_earliest_locked();
}

}  // namespace uwarp
