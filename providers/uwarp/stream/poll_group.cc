// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Choosing which streams a poller reads directly.
#include "stream/poll_group.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/tuning.h"

namespace uwarp {

PollGroup& PollGroup::of(CompletionQueue& cq) {
  if (PollGroup* group = find(cq)) return *group;
  auto* made = new PollGroup;
  CompletionQueueDriver* current = nullptr;
  if (cq.driver.compare_exchange_strong(current, made)) return *made;
  delete made;
  return *static_cast<PollGroup*>(current);
}

void PollGroup::publish_extra_locked() {
  direct_count_.store(direct_.size(), std::memory_order_relaxed);
  extra_.store(total_ - direct_.size(), std::memory_order_relaxed);
}

void PollGroup::add(Stream& stream) {
  const std::lock_guard guard(lock_);
  {
    const std::lock_guard waiting(waiting_lock_);
    // Posting allocates nothing.
    if (waiting_.capacity() <= total_) waiting_.reserve(2 * total_ + tuning::kDirectStreams);
  }
  direct_.reserve(tuning::kDirectOfSome);  // nor does polling
  stream.member_of(*this) = true;
  ++total_;
  if (direct_.size() < direct_room()) direct_.push_back({&stream, 0});
  while (direct_.size() > direct_room()) direct_.pop_back();
  publish_extra_locked();
}

void PollGroup::remove(Stream& stream) {
  const std::lock_guard guard(lock_);
  if (!std::exchange(stream.member_of(*this), false)) return;
  --total_;
  std::erase_if(direct_, [&](const Direct& entry) { return entry.stream == &stream; });
  forget_waiting(stream);
  publish_extra_locked();
}

void PollGroup::note_busy(Stream& stream) {
  if (!needs_epoll() || !lock_.try_lock()) return;
  const std::lock_guard guard(lock_, std::adopt_lock);
  const auto same = [&](const Direct& entry) { return entry.stream == &stream; };
  if (std::any_of(direct_.begin(), direct_.end(), same)) return;
  if (!stream.member_of(*this)) return;  // not yet, or not any more
  asks_left_.store(tuning::kAsks, std::memory_order_relaxed);
  if (direct_.size() < direct_room()) {
    direct_.push_back({&stream, 0});
  } else {
    // The one that has been silent longest makes room, unless all are busy.
    const auto idlest = std::max_element(
        direct_.begin(), direct_.end(),
        [](const Direct& a, const Direct& b) { return a.idle_turns < b.idle_turns; });
    if (idlest->idle_turns == 0) return;
    *idlest = {&stream, 0};
  }
  publish_extra_locked();
}

void PollGroup::add_waiting(Stream& stream) {
  const std::lock_guard guard(waiting_lock_);
  waiting_.push_back(&stream);
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

void PollGroup::forget_waiting(Stream& stream) {
  const std::lock_guard guard(waiting_lock_);
  std::erase(waiting_, &stream);
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

Stream* PollGroup::take_waiting() {
  const std::lock_guard guard(waiting_lock_);
  if (waiting_.empty()) return nullptr;
  Stream* const stream = waiting_.back();
  waiting_.pop_back();
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
  return stream;
}

// Under the group's lock, which remove() takes: a stream that was on the list lives meanwhile.
void PollGroup::transmit_waiting() {
  while (has_waiting() && lock_.try_lock()) {
    StreamEvents notice;
    {
      const std::lock_guard guard(lock_, std::adopt_lock);
      while (notice.owner == nullptr) {
        Stream* const stream = take_waiting();
        if (stream == nullptr) break;
        stream->transmit_waiting(*this, notice);
      }
    }
    Stream::deliver(notice);
  }
}

// In turn, from where the last look ended. Answers come in the order of the questions, and who
// polls asks anew in the order of the answers: behind one that has come, the first that has not
// come yet is followed by others of that kind.
bool PollGroup::poll() {
  if (total_.load(std::memory_order_relaxed) == 0 || !lock_.try_lock()) return false;
  bool progressed = false;
  bool bulk = false;
  StreamEvents notice;
  {
    const std::lock_guard guard(lock_, std::adopt_lock);
    for (size_t left = direct_.size(); left > 0; --left) {
      if (next_ >= direct_.size()) next_ = 0;
      Direct& entry = direct_[next_];
      Stream& stream = *entry.stream;
      const bool found = stream.receive(tuning::kTurnBytes, notice);
      bulk |= stream.awaits_bulk();
      if (found) {
        progressed = true;
        entry.idle_turns = 0;
        ++next_;
      } else if (++entry.idle_turns > tuning::kIdleTurns && total_ > tuning::kDirectStreams) {
        entry = direct_.back();
        direct_.pop_back();
        publish_extra_locked();
      } else if (progressed) {
        break;  // the next poll begins here
      } else {
        ++next_;
      }
      // One notice at a time: its owner must be told without this lock.
      if (notice.owner != nullptr) break;
    }
  }
  awaits_bulk_.store(bulk, std::memory_order_relaxed);
  Stream::deliver(notice);
  return progressed;
}

bool PollGroup::shares_core() {
  if (!lock_.try_lock()) return false;
  const std::lock_guard guard(lock_, std::adopt_lock);
  return !direct_.empty() && direct_[next_ % direct_.size()].stream->shares_core();
}

}  // namespace uwarp
