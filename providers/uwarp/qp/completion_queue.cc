// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/completion_queue.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <span>
#include <utility>

#include "base/mutex.h"

namespace uwarp {

namespace {

uintptr_t this_thread() {
  static thread_local char own;
  return reinterpret_cast<uintptr_t>(&own);
}

}  // namespace

CompletionQueue::CompletionQueue(uint32_t capacity, CompletionNotifier* notifier,
                                 CompletionQueueOptions options)
    : capacity_(std::bit_ceil(std::max(capacity, 1u))),
      mask_(capacity_.load() - 1),
      ring_(std::make_unique<WorkCompletion[]>(mask_ + 1)),
      times_(options.clock != nullptr ? std::make_unique<CompletionTime[]>(mask_ + 1) : nullptr),
      notifier_(notifier),
      options_(options),
      own_slot_(options.slot == nullptr ? std::make_unique<CompletionSlot>() : nullptr),
      slot_(options.slot == nullptr ? *own_slot_ : *options.slot) {
  slot_.capacity.store(capacity_.load(), std::memory_order_relaxed);
}

bool CompletionQueue::push(const WorkCompletion& completion, bool solicited,
                           std::atomic<uint64_t>* index) {
  const Lock lock(producer_lock_);
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  const bool full = tail - head_.load(std::memory_order_acquire) > mask_;
  if (index != nullptr) index->store(full ? 0 : tail, std::memory_order_relaxed);
  if (full) [[unlikely]]
    return overrun_locked();
  ring_[tail & mask_] = completion;
  if (times_ != nullptr) [[unlikely]]
    times_[tail & mask_] = options_.clock();
  tail_.store(tail + 1, std::memory_order_release);
  slot_.pushed.add(1);
  if (completion.status != WcStatus::kSuccess) [[unlikely]]
    slot_.failed.add(1);
  const bool at_once = solicited || completion.status != WcStatus::kSuccess;
  if (at_once) solicited_end_ = tail + 1;
  // arm() takes the same lock: a thread that arms after this sees the completion when it polls.
  if (armed_ != Armed::kNo) [[unlikely]]
    notify_locked(at_once);
  return true;
}

// False: the completion is lost, and that queue pair alone has to fail. RFC 5040-8.1.1-10, 5042-j.
bool CompletionQueue::overrun_locked() {
  slot_.overruns.add(1);
  if (options_.ignore_overrun) return true;
  overrun_.store(true, std::memory_order_release);
  if (!overrun_reported_ && notifier_ != nullptr) notifier_->completion_overrun();
  overrun_reported_ = true;
  return false;
}

// Of a queue that is armed. RFC 5040-5.3-f/g, 7306-6.3-h.
void CompletionQueue::notify_locked(bool at_once) {
  if (at_once) return raise_locked();
  if (armed_ != Armed::kAny) return;
  if (++held_back_ >= moderation_) {
    raise_locked();
  } else if (held_back_ == 1 && notifier_ != nullptr) {
    notifier_->completion_moderated();
  }
}

void CompletionQueue::raise_locked() {
  armed_ = Armed::kNo;
  held_back_ = 0;
  armer_.store(0, std::memory_order_relaxed);
  slot_.events.add(1);
  if (notifier_ != nullptr) notifier_->completion_event();
}

void CompletionQueue::raise_armed() {
  const Lock lock(producer_lock_);
  if (armed_ != Armed::kNo) raise_locked();
}

void CompletionQueue::moderate(uint32_t count) {
  const Lock lock(producer_lock_);
  moderation_ = count;
  if (held_back_ != 0 && held_back_ >= moderation_) raise_locked();
}

void CompletionQueue::flush_moderation() {
  const Lock lock(producer_lock_);
  if (held_back_ != 0) raise_locked();
}

int CompletionQueue::resize(uint32_t capacity) {
  const uint32_t size = std::bit_ceil(std::max(capacity, 1u));
  auto ring = std::make_unique<WorkCompletion[]>(size);
  auto times = times_ != nullptr ? std::make_unique<CompletionTime[]>(size) : nullptr;
  const Lock consumer(consumer_lock_);
  const Lock producer(producer_lock_);
  const uint64_t head = head_.load(std::memory_order_relaxed);
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  assert(tail - head <= mask_ + 1 && solicited_end_ <= tail && stored_end_ <= tail);
  if (tail - head > capacity) return EINVAL;
  for (uint64_t i = head; i != tail; ++i) {
    ring[i & (size - 1)] = ring_[i & mask_];
    if (times != nullptr) times[i & (size - 1)] = times_[i & mask_];
  }
  ring_.swap(ring);
  times_.swap(times);
  mask_ = size - 1;
  capacity_.store(size, std::memory_order_relaxed);
  slot_.capacity.store(size, std::memory_order_relaxed);
  return 0;
}

// Both sides stand still, so that the rest can move in place: polling costs nothing for it. It
// moves to higher indices, because who remembers an index waits until polled() has passed it.
void CompletionQueue::drop(uint32_t qp_num, Drop which) {
  const Lock consumer(consumer_lock_);
  const Lock producer(producer_lock_);
  const uint64_t head = head_.load(std::memory_order_relaxed);
  uint64_t kept = tail_.load(std::memory_order_relaxed);
  const auto goes = [&](uint64_t i) {
    const WorkCompletion& one = ring_[i & mask_];
    return one.qp_num == qp_num && (which == Drop::kAll || one.status != WcStatus::kSuccess);
  };
  for (uint64_t i = kept; i-- != head;) {
    if (goes(i)) continue;
    --kept;
    if (kept == i) continue;
    ring_[kept & mask_] = ring_[i & mask_];
    if (times_ != nullptr) times_[kept & mask_] = times_[i & mask_];
  }
  assert(head <= kept);
  head_.store(kept, std::memory_order_release);
  for (uint64_t* end : {&solicited_end_, &stored_end_})
    if (*end > head) *end = tail_.load(std::memory_order_relaxed);  // as far as they may have moved
  if (kept >= stored_end_) armer_.store(0, std::memory_order_relaxed);
  slot_.polled.add(kept - head);  // the application will not
}

// Ends a poll that took `taken`; the consumer lock is held.
int CompletionQueue::taken(uint32_t taken, bool wanted) {
  head_.store(head_.load(std::memory_order_relaxed) + taken, std::memory_order_release);
  if (taken != 0) {
    slot_.polled.add(taken);
    if (armer_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      note_stored_taken();
  }
  if (taken == 0 && wanted && overrun_.load(std::memory_order_acquire)) return -1;
  return static_cast<int>(taken);
}

void CompletionQueue::trace_polled(WorkCompletion* completions, uint32_t count) {
  for (WorkCompletion& each : std::span(completions, count)) {
    TraceStep step;
    step.kind = TraceStep::Kind::kPolled;
    step.opcode = static_cast<uint8_t>(each.opcode);
    step.queue_pair = each.qp_num;
    // A datagram needs the field for what it is there for.
    if ((each.wc_flags & kWcGrh) == 0) step.position = std::exchange(each.src_qp, 0);
    step.status = static_cast<uint32_t>(each.status);
    step.wr_id = each.wr_id;
    options_.trace->note(step);
  }
}

int CompletionQueue::take(WorkCompletion* out, int count) {
  Lock lock(consumer_lock_, std::defer_lock);
  if (!options_.single_threaded) lock.lock();
  const uint64_t head = head_.load(std::memory_order_relaxed);
  const uint64_t stored = tail_.load(std::memory_order_acquire) - head;
  const auto some =
      static_cast<uint32_t>(std::min<uint64_t>(stored, static_cast<uint32_t>(std::max(count, 0))));
  for (uint32_t i = 0; i < some; ++i) out[i] = ring_[(head + i) & mask_];
  if (options_.trace != nullptr) [[unlikely]]
    trace_polled(out, some);
  return taken(some, count > 0);
}

int CompletionQueue::poll_timed(WorkCompletion& out, CompletionTime& time) {
  if (idle()) return 0;
  Lock lock(consumer_lock_, std::defer_lock);
  if (!options_.single_threaded) lock.lock();
  const uint64_t head = head_.load(std::memory_order_relaxed);
  const bool any = tail_.load(std::memory_order_acquire) != head;
  if (any) {
    out = ring_[head & mask_];
    if (times_ != nullptr) time = times_[head & mask_];
    if (options_.trace != nullptr) [[unlikely]]
      trace_polled(&out, 1);
  }
  return taken(any ? 1 : 0, true);
}

bool CompletionQueue::arm(bool solicited_only) {
  const Lock lock(producer_lock_);
  if (!solicited_only) {
    armed_ = Armed::kAny;
  } else if (armed_ == Armed::kNo) {
    armed_ = Armed::kSolicited;
  }
  stored_end_ = armed_ == Armed::kAny ? tail_.load(std::memory_order_relaxed) : solicited_end_;
  const bool stored = head_.load(std::memory_order_acquire) < stored_end_;
  armer_.store(stored ? this_thread() : 0, std::memory_order_relaxed);
  return stored;
}

// By a thread that polls. An adapter raises the event when such a queue is armed: a thread that
// sleeps until it is told does not see what another one takes.
void CompletionQueue::note_stored_taken() {
  const Lock lock(producer_lock_);
  const uintptr_t armer = armer_.load(std::memory_order_relaxed);
  if (armer == 0) return;
  if (armer != this_thread())
    raise_locked();
  else if (head_.load(std::memory_order_relaxed) >= stored_end_)
    armer_.store(0, std::memory_order_relaxed);
}

void CompletionQueue::raise_stored() {
  const Lock lock(producer_lock_);
  if (armer_.load(std::memory_order_relaxed) != 0) raise_locked();
}

}  // namespace uwarp
