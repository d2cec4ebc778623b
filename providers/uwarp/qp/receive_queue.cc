// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace uwarp {

ReceiveQueue::ReceiveQueue(uint32_t depth, uint32_t max_sge) : depth_(depth), max_sge_(max_sge) {
  const uint32_t slots = std::bit_ceil(std::max(depth, 1u));
  mask_ = slots - 1;
  slots_ = std::make_unique<Slot[]>(slots);
  if (max_sge > 0) sges_ = std::make_unique<Sge[]>(static_cast<size_t>(slots) * max_sge);
}

int ReceiveQueue::post(uint64_t wr_id, std::span<const Sge> sges) {
  if (sges.size() > max_sge_) return EINVAL;
  std::lock_guard lock(lock_);
  if (tail_ - head_ >= depth_) return ENOMEM;
  const size_t index = tail_ & mask_;
  slots_[index] = {wr_id, static_cast<uint32_t>(sges.size())};
  std::copy(sges.begin(), sges.end(), sges_.get() + index * max_sge_);
  ++tail_;
  if (awaited_) {
    awaited_ = false;
    wakeup_.store(true, std::memory_order_release);
  }
  return 0;
}

bool ReceiveQueue::take(RecvWqe& out) {
  std::lock_guard lock(lock_);
  if (head_ == tail_) {
    awaited_ = true;
    return false;
  }
  const size_t index = head_ & mask_;
  out.wr_id = slots_[index].wr_id;
  out.sge_count = slots_[index].sge_count;
  std::copy_n(sges_.get() + index * max_sge_, out.sge_count, out.sges);
  ++head_;
  return true;
}

bool ReceiveQueue::drain(uint64_t& wr_id) {
  std::lock_guard lock(lock_);
  if (head_ == tail_) return false;
  wr_id = slots_[head_ & mask_].wr_id;
  ++head_;
  return true;
}

bool ReceiveQueue::claim_wakeup() {
  return wakeup_.load(std::memory_order_relaxed) && wakeup_.exchange(false);
}

void ReceiveQueue::reset() {
  std::lock_guard lock(lock_);
  head_ = tail_;
  awaited_ = false;
  wakeup_.store(false, std::memory_order_relaxed);
}

bool ReceiveQueue::empty() {
  std::lock_guard lock(lock_);
  return head_ == tail_;
}

}  // namespace uwarp
