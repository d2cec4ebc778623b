// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue of receive buffers: posted by the application, taken in order by the stream (or, shared,
// by several streams). RFC 5040 5.3, 5041 4.3 (queue 0).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/limits.h"
#include "base/spinlock.h"
#include "qp/work_request.h"

namespace uwarp {

/// A receive buffer that a stream has taken.
struct RecvWqe {
  uint64_t wr_id = 0;
  uint32_t sge_count = 0;
  Sge sges[kMaxSge];
};

class ReceiveQueue {
 public:
  ReceiveQueue(uint32_t depth, uint32_t max_sge);

  /// EINVAL (too many SGEs, or a queue made for no receives), ENOMEM (full).
  int post(uint64_t wr_id, std::span<const Sge> sges);
  /// Takes the oldest buffer. When there is none, remembers that somebody waits and returns false.
  bool take(RecvWqe& out);
  /// Takes the oldest buffer without waiting for one: for flushing.
  bool drain(uint64_t& wr_id);
  /// True once after a post that came while somebody waited.
  bool claim_wakeup();
  void reset();
  bool empty();

 private:
  const uint32_t depth_;
  const uint32_t max_sge_;
  uint32_t mask_;
  SpinLock lock_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  bool awaited_ = false;             // take() found nothing
  std::atomic<bool> wakeup_{false};  // ... and a buffer has come since
  struct Slot {
    uint64_t wr_id;
    uint32_t sge_count;
  };
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<Sge[]> sges_;
};

/// A receive queue that several queue pairs take from.
class SharedReceiveQueue : public ReceiveQueue {
 public:
  using ReceiveQueue::ReceiveQueue;
};

}  // namespace uwarp
