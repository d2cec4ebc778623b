// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive_queue.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>

#include "base/mutex.h"

namespace uwarp {

ReceiveQueue::ReceiveQueue(uint32_t depth, uint32_t max_sge) : max_sge_(max_sge), depth_(depth) {
  const uint32_t slots = std::bit_ceil(std::max(depth, 1u));
  mask_ = slots - 1;
  slots_ = std::make_unique<Slot[]>(slots);
  if (max_sge > 0) sges_ = std::make_unique<Sge[]>(static_cast<size_t>(slots) * max_sge);
}

int ReceiveQueue::post(uint64_t wr_id, std::span<const Sge> sges) {
  if (sges.size() > max_sge_) return EINVAL;
  const Lock lock(lock_);
  if (count_locked() >= depth_) return ENOMEM;
  const size_t index = tail_ & mask_;
  slots_[index] = {wr_id, static_cast<uint32_t>(sges.size())};
  std::copy(sges.begin(), sges.end(), sges_.get() + index * max_sge_);
  if (trace_ != nullptr) [[unlikely]]
    trace_posted_locked(wr_id, sges);
  ++tail_;
  assert(count_locked() <= depth_ && count_locked() <= mask_ + 1);
  if (first_ != nullptr) [[unlikely]]
    reserve_locked();
  return 0;
}

void ReceiveQueue::trace_posted_locked(uint64_t wr_id, std::span<const Sge> sges) {
  TraceStep step;
  step.kind = TraceStep::Kind::kReceivePosted;
  step.queue_pair = trace_name_;
  step.position = tail_;
  for (const Sge& sge : sges) step.bytes += sge.length_bytes;
  step.wr_id = wr_id;
  trace_->note(step);
}

// Promises one buffer to the first in line.
void ReceiveQueue::reserve_locked() {
  ReceiveToken& token = *first_;
  first_ = token.next;
  if (first_ == nullptr) last_ = nullptr;
  token.next = nullptr;
  token.state = ReceiveToken::State::kReserved;
  ++reserved_;
  assert(reserved_ <= count_locked());
  wakeup_.store(true, std::memory_order_release);
  if (token.waiter != nullptr) token.waiter->receive_posted();
}

// In the order in which they were posted. RFC 4296-2.1.2-b/c, 5042-k.
bool ReceiveQueue::take(RecvWqe& out, ReceiveToken& token) {
  const Lock lock(lock_);
  if (token.state == ReceiveToken::State::kReserved) [[unlikely]] {
    token.state = ReceiveToken::State::kNone;
    --reserved_;
  } else if (count_locked() == reserved_) {
    if (token.state == ReceiveToken::State::kWaiting) return false;
    token.state = ReceiveToken::State::kWaiting;
    (last_ != nullptr ? last_->next : first_) = &token;
    last_ = &token;
    return false;
  }
  assert(head_ != tail_ && reserved_ < count_locked());
  const size_t index = head_ & mask_;
  out.position = head_;
  out.wr_id = slots_[index].wr_id;
  out.sge_count = slots_[index].sge_count;
  std::copy_n(sges_.get() + index * max_sge_, out.sge_count, out.sges);
  ++head_;
  check_limit_locked();
  return true;
}

// Over-use can be seen. RFC 5040-8.1.2-8, 5041-8.3.2-b, 4296-2.1.3-b.
void ReceiveQueue::check_limit_locked() {
  if (limit_ == 0 || count_locked() >= limit_) [[likely]]
    return;
  limit_ = 0;
  if (listener_ != nullptr) listener_->limit_reached();
}

bool ReceiveQueue::drain(uint64_t& wr_id, uint32_t& position) {
  const Lock lock(lock_);
  if (head_ == tail_) return false;
  position = head_;
  wr_id = slots_[head_ & mask_].wr_id;
  ++head_;
  return true;
}

void ReceiveQueue::cancel(ReceiveToken& token) {
  const Lock lock(lock_);
  const ReceiveToken::State state = token.state;
  token.state = ReceiveToken::State::kNone;
  if (state == ReceiveToken::State::kReserved) {
    assert(reserved_ != 0);
    --reserved_;
    if (first_ != nullptr) reserve_locked();
  } else if (state == ReceiveToken::State::kWaiting) {
    ReceiveToken* before = nullptr;
    for (ReceiveToken* at = first_; at != &token; at = at->next) before = at;
    (before != nullptr ? before->next : first_) = token.next;
    if (last_ == &token) last_ = before;
    token.next = nullptr;
  }
}

bool ReceiveQueue::claim_wakeup() {
  return wakeup_.load(std::memory_order_relaxed) && wakeup_.exchange(false);
}

void ReceiveQueue::reset() {
  const Lock lock(lock_);
  head_ = tail_;
  wakeup_.store(false, std::memory_order_relaxed);
}

bool ReceiveQueue::empty() {
  const Lock lock(lock_);
  return head_ == tail_;
}

// ---- Shared

SharedReceiveQueue::SharedReceiveQueue(uint32_t depth, uint32_t max_sge,
                                       ReceiveLimitListener* listener)
    : ReceiveQueue(depth, max_sge) {
  listener_ = listener;
}

int SharedReceiveQueue::arm_limit(uint32_t limit) {
  const Lock lock(lock_);
  if (limit > depth_) return EINVAL;
  limit_ = limit;
  check_limit_locked();
  return 0;
}

uint32_t SharedReceiveQueue::limit() {
  const Lock lock(lock_);
  return limit_;
}

uint32_t SharedReceiveQueue::depth() {
  const Lock lock(lock_);
  return depth_;
}

int SharedReceiveQueue::resize(uint32_t depth) {
  const uint32_t count = std::bit_ceil(std::max(depth, 1u));
  auto slots = std::make_unique<Slot[]>(count);
  auto sges = std::make_unique<Sge[]>(static_cast<size_t>(count) * max_sge_);
  const Lock lock(lock_);
  if (depth < count_locked() || depth < limit_) return EINVAL;
  const uint32_t mask = count - 1;
  for (uint32_t i = head_; i != tail_; ++i) {
    slots[i & mask] = slots_[i & mask_];
    std::copy_n(sges_.get() + static_cast<size_t>(i & mask_) * max_sge_, max_sge_,
                sges.get() + static_cast<size_t>(i & mask) * max_sge_);
  }
  slots_.swap(slots);
  sges_.swap(sges);
  mask_ = mask;
  depth_ = depth;
  return 0;
}

}  // namespace uwarp
