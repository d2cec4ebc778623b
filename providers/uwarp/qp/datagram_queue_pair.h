// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair of datagrams: it has no peer, each request names one, and what cannot be delivered
// is dropped. Sans-IO: a DatagramPath takes what is sent, deliver() is given what has come.
//
// Two locks, each held for the copy of a payload at most: the posting lock for all that is sent,
// and one for all that is received. What is sent is copied before its request completes, so the
// application's memory is used only under these locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/atomics.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/spinlock.h"
#include "protocol/ddp/segment.h"
#include "protocol/wire/datagram_header.h"
#include "qp/qp_config.h"
#include "qp/receive_queue.h"
#include "qp/send_queue.h"

namespace uwarp {

// Holders of datagrams that wait until a queue pair has a receive for them.

/// Holds a datagram for which there is no receive.
class PendingDatagram {
 public:
  virtual ~PendingDatagram() = default;
  /// A receive has been posted, by the calling thread, or none will be taken. No lock held.
  virtual void receive_came() = 0;
  /// Of the queue pair for which it holds: another holder.
  std::shared_ptr<PendingDatagram> next_waiting;
};

/// Any thread. Its lock is a leaf but for what `pointless` takes.
class PendingDatagrams {
 public:
  /// receive_came() of `waiter` is called once, by posted() or notify_all(). False, and it is not:
  /// a receive is there, or none will be taken, as `pointless()` says.
  template <typename Pointless>
  bool add(std::shared_ptr<PendingDatagram> waiter, Pointless pointless) {
    const Lock lock(lock_);
    // With that of posted(): either this sees the receive, or posted() sees the holder.
    any_.exchange(1, std::memory_order_acq_rel);
    if (pointless()) return false;
    waiter->next_waiting = std::move(first_);
    first_ = std::move(waiter);
    return true;
  }
  /// False: it has been called, or will be in a moment.
  bool stop(const PendingDatagram& waiter) {
    const Lock lock(lock_);
    for (auto* at = &first_; *at != nullptr; at = &(*at)->next_waiting) {
      if (at->get() != &waiter) continue;
      auto rest = std::move((*at)->next_waiting);
      *at = std::move(rest);
      return true;
    }
    return false;
  }
  /// A receive has been posted.
  void posted() {
    if (any_.fetch_add(0, std::memory_order_acq_rel) != 0) [[unlikely]]
      notify_all();
  }
  void notify_all() {
    std::shared_ptr<PendingDatagram> waiters;
    {
      const Lock lock(lock_);
      any_.store(0, std::memory_order_relaxed);
      waiters = std::move(first_);
    }
    while (waiters != nullptr) {
      const auto waiter = std::exchange(waiters, std::move(waiters->next_waiting));
      waiter->receive_came();
    }
  }

 private:
  SpinLock lock_;
  std::shared_ptr<PendingDatagram> first_ GUARDED_BY(lock_);
  Atomic<uint32_t> any_{0};
};

/// Waits for room on a path; see DatagramPath::wait_for_space().
class DatagramWaiter {
 public:
  virtual ~DatagramWaiter() = default;
  /// There is room, or there will be none. No lock held.
  virtual void space_came() = 0;
  /// Of the path on which it waits: the one that waits behind it.
  std::shared_ptr<DatagramWaiter> next_waiting;
};

/// Takes datagrams towards one process, or a group. Any thread.
class DatagramPath {
 public:
  enum class Taken : uint8_t {
    kYes,      // copied: it goes with the next flush()
    kFull,     // not now
    kDropped,  // there is no path at present
    kFault,    // some memory of the payload is not there
  };
  virtual ~DatagramPath() = default;
  /// Under the posting lock of a queue pair; its own lock is a leaf.
  virtual Taken append(const DatagramHeader& header, BufferList& payload) = 0;
  /// space_came() of `waiter` is called once, soon. The caller is not in line already. False, and
  /// nothing is done: there is room by now.
  virtual bool wait_for_space(std::shared_ptr<DatagramWaiter> waiter) = 0;
  /// Sends what was appended. No lock held.
  virtual void flush() = 0;
  /// Has that done soon, by the thread that progresses. Any locks may be held.
  virtual void flush_soon() = 0;
};

/// Where a datagram goes.
struct DatagramTarget {
  std::shared_ptr<DatagramPath> path;
  Qpn number;
  uint32_t qkey = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
};

class DatagramQueuePair {
 public:
  /// In front of the payload, in the receive buffer.
  static constexpr uint32_t kRouteHeaderBytes = 40;
  /// A Q_Key with this bit in a request stands for the queue pair's own (InfiniBand
  /// specification, 10.2.5).
  static constexpr uint32_t kControlledQkey = 1u << 31;

  explicit DatagramQueuePair(const QpConfig& config);

  const QpConfig& config() const { return config_; }
  QpState state() const { return state_.load(std::memory_order_acquire); }

  // ---- Posting. Any thread. 0 or an errno: EINVAL (state, opcode, SGE count, inline misuse),
  // ENOMEM (queue full). In ERR a request is taken and flushed. What no datagram can do (Reads,
  // Writes, atomics, more than kMaxDatagramBytes) is taken, and completes with an error.
  static constexpr bool has_target(SendOpcode opcode) {
    return opcode == SendOpcode::kSend || opcode == SendOpcode::kSendWithImm;
  }
  SpinLock& post_lock() RETURN_CAPABILITY(sends_.post_lock()) { return sends_.post_lock(); }
  /// What fits goes to its path at once and completes; the caller flushes the path once the lock is
  /// free. Without has_target() its path is null.
  int post_send_locked(const SendRequest& request, const DatagramTarget& target)
      REQUIRES(post_lock());
  /// 0, or why not all of them can be posted one after the other.
  int admits_locked(std::span<const SendRequest> requests) REQUIRES(post_lock());
  /// A request waits for room on this path, and all behind it with it; null: none waits.
  const std::shared_ptr<DatagramPath>& blocked_on() REQUIRES(post_lock()) { return blocked_on_; }
  /// Sends requests that wait. `sent(path)` is called for each path that took something.
  template <typename Sent>
  void send_waiting_locked(Sent sent) REQUIRES(post_lock()) {
    blocked_on_ = nullptr;
    while (sends_.waiting() && may_send()) {
      const uint64_t position = sends_.started();
      DatagramTarget& target = targets_[position & target_mask_];
      if (!send_one(position, target)) return;
      if (target.path != nullptr) sent(target.path);
      target.path = nullptr;
    }
    if (state() == QpState::kErr) [[unlikely]]
      flush_sends_locked();
  }
  int post_recv(uint64_t wr_id, std::span<const Sge> sges);

  // ---- Receiving. Any thread.
  enum class Delivery : uint8_t { kTaken, kDropped, kNoReceive };
  /// `route` holds kRouteHeaderBytes. kNoReceive: nothing is posted; nothing was done.
  Delivery deliver(const DatagramHeader& header, std::span<const std::byte> route,
                   const std::byte* payload);
  /// A datagram is dropped: it was kNoReceive for too long, or for other reasons.
  void count_drop() {
    const Lock lock(receive_lock_);
    slot_.receive.dropped.add(1);
  }
  /// True once until a receive has been posted again: one may be waited for. Never with a shared
  /// queue, whose posts are not seen here.
  bool claim_grace() { return grace_.exchange(false, std::memory_order_relaxed); }
  /// receive_came() of `waiter`, which holds for no other queue pair, is called once: with the next
  /// receive, or when none will be taken any more. False: that is so already.
  bool wait_for_receive(std::shared_ptr<PendingDatagram> waiter);
  /// False: it has been called, or will be in a moment.
  bool stop_waiting(const PendingDatagram& waiter) { return waiters_.stop(waiter); }

  // ---- Verbs state. Any thread, no lock held.
  void set_qkey(uint32_t qkey) { qkey_.store(qkey, std::memory_order_relaxed); }
  /// Any state but RESET and ERR. To RTS: the caller goes on with what waits.
  void move_to(QpState state);
  /// All work is flushed.
  void to_error();
  /// Drops all work, with completions that were not polled. On return nothing refers to the memory
  /// of the queue pair's domain.
  void to_reset();

  /// While it lives no memory of the application is touched.
  class [[nodiscard]] SCOPED_CAPABILITY Exclusive {
   public:
    explicit Exclusive(DatagramQueuePair& of) ACQUIRE(of.post_lock(), of.receive_lock_) : of_(&of) {
      of.post_lock().lock();
      of.receive_lock_.lock();
    }
    Exclusive(Exclusive&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Exclusive& operator=(Exclusive&&) = delete;
    ~Exclusive() RELEASE() {
      if (of_ == nullptr) return;
      of_->receive_lock_.unlock();
      of_->post_lock().unlock();
    }

   private:
    DatagramQueuePair* of_;
  };
  Exclusive lock_exclusive() NO_THREAD_SAFETY_ANALYSIS { return Exclusive(*this); }

 private:
  /// A request that goes out behind the next one, because a fault rule asks for it.
  struct Postponed {
    std::shared_ptr<DatagramPath> path;
    DatagramHeader header;
    std::byte payload[kMaxDatagramBytes];
  };

  void show_state() {
    slot_.state.store(static_cast<uint32_t>(state()), std::memory_order_relaxed);
  }
  bool may_send() const { return state() == QpState::kRts; }
  bool may_receive() const {
    const QpState now = state();
    return now != QpState::kReset && now != QpState::kInit && now != QpState::kErr;
  }
  int check_send(const SendRequest& request) const;
  bool send_one(uint64_t position, const DatagramTarget& target) REQUIRES(post_lock());
  [[gnu::noinline, gnu::cold]] DatagramPath::Taken send_with_faults(uint64_t position,
                                                                    const DatagramHeader& header,
                                                                    const DatagramTarget& target)
      REQUIRES(post_lock());
  [[gnu::noinline, gnu::cold]] bool fail_send(uint64_t position, WcStatus status)
      REQUIRES(post_lock());
  DatagramHeader header_of(const SendWqe& wqe, const DatagramTarget& target) const;
  void complete_send(uint64_t position, WcStatus status);
  void flush_sends_locked() REQUIRES(post_lock());
  Delivery take(const DatagramHeader& header, std::span<const std::byte> route,
                const std::byte* payload, WcStatus status) REQUIRES(receive_lock_);
  [[gnu::noinline, gnu::cold]] Delivery take_with_faults(const DatagramHeader& header,
                                                         std::span<const std::byte> route,
                                                         const std::byte* payload)
      REQUIRES(receive_lock_);
  void complete_receive(const RecvWqe& receive, WorkCompletion completion, bool solicited);
  void flush_receives_locked() REQUIRES(receive_lock_);
  WcStatus place(const RecvWqe& receive, const DatagramHeader& header,
                 std::span<const std::byte> route, const std::byte* payload)
      REQUIRES(receive_lock_);
  void overrun();

  const QpConfig config_;
  QueuePairSlot& slot_;
  std::atomic<QpState> state_{QpState::kReset};
  std::atomic<uint32_t> qkey_{0};

  SendQueue sends_;
  BufferList payload_ GUARDED_BY(post_lock());
  const uint64_t target_mask_;
  // Of requests that wait.
  const std::unique_ptr<DatagramTarget[]> targets_ GUARDED_BY(post_lock());
  std::shared_ptr<DatagramPath> blocked_on_ GUARDED_BY(post_lock());
  std::unique_ptr<Postponed> postponed_ GUARDED_BY(post_lock());

  alignas(64) SpinLock receive_lock_;
  ReceiveQueue own_receives_;
  ReceiveQueue* const receives_;
  ReceiveToken token_ GUARDED_BY(receive_lock_);
  // Was too short for a datagram, and stays for the next ones.
  std::optional<RecvWqe> kept_ GUARDED_BY(receive_lock_);
  BufferList sink_ GUARDED_BY(receive_lock_);
  uint32_t arrivals_ GUARDED_BY(receive_lock_) = 0;  // where faults are asked for
  std::atomic<bool> grace_;
  PendingDatagrams waiters_;
};

}  // namespace uwarp
