// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue of receive buffers: posted by the application, taken in order by the stream (or, shared,
// by several streams).
//
// Streams that find a shared queue empty wait in line. Each buffer that is posted then is reserved
// for the first in line: a busy stream cannot take it away from one that has waited.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/limits.h"
#include "base/spinlock.h"
#include "counters/trace_sink.h"
#include "memory/region_table.h"
#include "protocol/ddp/segment.h"
#include "qp/work_request.h"

namespace uwarp {

// From the SGEs of a request to the memory that they name.

/// Adds what `sge` names to `list`. False when it may not be used: key unknown, foreign domain, out
/// of range, or without the right `needed`.
inline bool append_local(BufferList& list, const Sge& sge, const RegionTable& regions,
                         const ProtectionDomain& domain, uint32_t needed) {
  if (sge.length_bytes == 0) return true;
  RegionFault fault;
  const LocalRange place =
      regions.local(sge.lkey, sge.address, sge.length_bytes, needed, domain, fault);
  if (!place) return false;
  list.append(place.address, sge.length_bytes, place.region, place.memory);
  return true;
}

/// A receive buffer that a stream has taken.
struct RecvWqe {
  uint64_t wr_id = 0;
  uint32_t position = 0;  // in its queue
  uint32_t sge_count = 0;
  Sge sges[kMaxSge];
};

/// Makes a held stream go on when a buffer has come for it.
class ReceiveWaiter {
 public:
  virtual ~ReceiveWaiter() = default;
  /// A buffer is reserved for this stream. Called by the thread that posted, with the queue's lock
  /// held: must not block nor call back, only note the stream. That thread, after its post, or
  /// another one then calls Receiver::resume().
  virtual void receive_posted() = 0;
};

/// A stream's place in line at a shared queue. Belongs to the stream, guarded by the queue's lock.
struct ReceiveToken {
  enum class State : uint8_t { kNone, kWaiting, kReserved };
  ReceiveWaiter* waiter = nullptr;
  State state = State::kNone;
  ReceiveToken* next = nullptr;
};

/// Is told a shared queue's limit. Called with its lock held: must not block nor call back.
class ReceiveLimitListener {
 public:
  virtual ~ReceiveLimitListener() = default;
  /// Fewer buffers are left than the limit (IBV_EVENT_SRQ_LIMIT_REACHED); it is disarmed now.
  virtual void limit_reached() = 0;
};

class ReceiveQueue {
 public:
  ReceiveQueue(uint32_t depth, uint32_t max_sge);

  /// EINVAL (too many SGEs, or a queue made for no receives), ENOMEM (full).
  int post(uint64_t wr_id, std::span<const Sge> sges);
  /// Takes the oldest buffer. When there is none for this stream, puts `token` in line (unless it
  /// is there already) and returns false.
  bool take(RecvWqe& out, ReceiveToken& token);
  /// Takes the oldest buffer without waiting for one: for flushing.
  bool drain(uint64_t& wr_id, uint32_t& position);
  /// Leaves the line; a reserved buffer goes to the next one. After this the waiter is not called.
  void cancel(ReceiveToken& token);
  /// True once after a post that came while a stream waited.
  bool claim_wakeup();
  void reset();
  bool empty();
  /// Posts are told to `sink` (may be null) as those of this queue pair. Before the first one.
  void trace(TraceSink* sink, uint32_t queue_pair) {
    trace_ = sink;
    trace_name_ = queue_pair;
  }

 protected:
  uint32_t count_locked() const REQUIRES(lock_) { return tail_ - head_; }
  void check_limit_locked() REQUIRES(lock_);

  const uint32_t max_sge_;
  SpinLock lock_;
  uint32_t depth_ GUARDED_BY(lock_);
  uint32_t mask_ GUARDED_BY(lock_);
  uint32_t head_ GUARDED_BY(lock_) = 0;
  uint32_t tail_ GUARDED_BY(lock_) = 0;
  uint32_t limit_ GUARDED_BY(lock_) = 0;  // 0: not armed
  ReceiveLimitListener* listener_ GUARDED_BY(lock_) = nullptr;
  struct Slot {
    uint64_t wr_id;
    uint32_t sge_count;
  };
  std::unique_ptr<Slot[]> slots_ GUARDED_BY(lock_);
  std::unique_ptr<Sge[]> sges_ GUARDED_BY(lock_);
  TraceSink* trace_ = nullptr;
  uint32_t trace_name_ = 0;

 private:
  void reserve_locked() REQUIRES(lock_);
  [[gnu::noinline, gnu::cold]] void trace_posted_locked(uint64_t wr_id, std::span<const Sge> sges)
      REQUIRES(lock_);

  uint32_t reserved_ GUARDED_BY(lock_) = 0;  // buffers that streams in line have been promised
  ReceiveToken* first_ GUARDED_BY(lock_) = nullptr;  // in line, none promised
  ReceiveToken* last_ GUARDED_BY(lock_) = nullptr;
  Atomic<bool> wakeup_{false};  // a buffer has come for a stream in line
};

/// A receive queue that several queue pairs take from.
class SharedReceiveQueue : public ReceiveQueue {
 public:
  SharedReceiveQueue(uint32_t depth, uint32_t max_sge, ReceiveLimitListener* listener = nullptr);

  /// Asks for one event when fewer than `limit` buffers are left, at once if that is so already.
  /// 0 disarms. EINVAL if it is more than the queue holds.
  int arm_limit(uint32_t limit);
  /// The limit as armed; 0 after its event.
  uint32_t limit();
  /// Changes how many buffers the queue holds. EINVAL if more are posted, or less than the limit.
  int resize(uint32_t depth);
  uint32_t depth();
};

/// A stream's place at its receive queue: where it is in line, and whether it is held. For the
/// thread with the receive side, but for rnr_blocked().
class ReceivePlace {
 public:
  ReceivePlace(ReceiveQueue& queue, ReceiveWaiter* waiter) : queue_(&queue) {
    token_.waiter = waiter;
  }
  // After leave() there is nothing to give back, and a shared queue may be gone by now.
  ~ReceivePlace() {
    if (token_.state != ReceiveToken::State::kNone) queue_->cancel(token_);
  }
  ReceivePlace(const ReceivePlace&) = delete;
  ReceivePlace& operator=(const ReceivePlace&) = delete;

  /// Takes the oldest buffer. False: the stream is in line for one, and held.
  bool take(RecvWqe& out) {
    if (queue_->take(out, token_)) [[likely]]
      return true;
    block_rnr();
    return false;
  }
  /// Held for another reason.
  void block_rnr() { rnr_blocked_.store(true, std::memory_order_release); }
  /// Goes on, or ends. In line it stays: take() or leave() follows.
  void go_on() { rnr_blocked_.store(false, std::memory_order_release); }
  void leave() {
    go_on();
    queue_->cancel(token_);
  }
  /// Leaves the line; the next buffers come from `queue`.
  void move_to(ReceiveQueue& queue) {
    leave();
    queue_ = &queue;
  }
  /// The thread that makes the stream go on calls this with the receive side: a stream enters the
  /// line a moment before it says that it is held.
  bool rnr_blocked() const { return rnr_blocked_.load(std::memory_order_acquire); }

 private:
  ReceiveQueue* queue_;
  ReceiveToken token_;
  Atomic<bool> rnr_blocked_{false};
};

}  // namespace uwarp
