// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completion queue: a ring with a producer side (several queue pairs) and a consumer side, and the
// one-shot arming for events. Sans-IO: an event due is handed to the Notifier given at creation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/atomics.h"
#include "base/spinlock.h"
#include "counters/page_layout.h"
#include "counters/trace_sink.h"
#include "qp/work_request.h"

namespace uwarp {

/// Gets the events of a completion queue. Called with the queue's producer lock held and possibly
/// with queue pair locks held: must not block nor call back.
class CompletionNotifier {
 public:
  virtual ~CompletionNotifier() = default;
  virtual void completion_event() = 0;
  /// A completion was lost because the ring was full (IBV_EVENT_CQ_ERR), once per queue.
  virtual void completion_overrun() = 0;
  /// Moderation holds back an event for the completions that came: flush_moderation() is to be
  /// called when the moderation period is over.
  virtual void completion_moderated() {}
};

/// When a completion was stored, by CompletionQueueOptions::clock.
struct CompletionTime {
  uint64_t raw_ns = 0;
  uint64_t wall_ns = 0;
};

struct CompletionQueueOptions {
  CompletionTime (*clock)() = nullptr;  // null: completions carry no time
  /// The application promises that only one thread polls at a time.
  bool single_threaded = false;
  /// What does not fit is lost without an error: the application ensures that all fits.
  bool ignore_overrun = false;
  CompletionSlot* slot = nullptr;  // where it counts; null: in memory of its own
  /// Null unless steps are written down. Completions then name their request by its position in
  /// src_qp, which means nothing otherwise, until they are polled.
  TraceSink* trace = nullptr;
};

/// What the layer that drives the queue pairs of a completion queue attaches to it.
class CompletionQueueDriver {
 public:
  virtual ~CompletionQueueDriver() = default;
};

/// Ring of completions. Made by ibv_create_cq, or as a member by the engine, and ended by its owner
/// when no queue pair is left that completes to it and no thread polls it; then its driver ends
/// too. In overrun from the first completion that finds it full: what was stored is still polled,
/// then poll() fails. Thread-safe. Lock order: queue pair locks, then the producer lock; the
/// consumer lock comes before the producer lock where both are held (resize, drop).
class CompletionQueue {
 public:
  /// Set once by the layer that drives the queue pairs behind this queue (stream/). Not used here,
  /// but freed with the queue, when no poller can be inside any more.
  std::atomic<CompletionQueueDriver*> driver{nullptr};

 private:
  enum class Armed : uint8_t { kNo, kSolicited, kAny };

  // Changed under both locks.
  Atomic<uint32_t> capacity_;
  uint32_t mask_;
  std::unique_ptr<WorkCompletion[]> ring_;
  std::unique_ptr<CompletionTime[]> times_;  // beside it; null without a clock
  CompletionNotifier* const notifier_;
  const CompletionQueueOptions options_;
  const std::unique_ptr<CompletionSlot> own_slot_;  // null if there is one in options_
  CompletionSlot& slot_;

  alignas(64) SpinLock producer_lock_;
  Armed armed_ GUARDED_BY(producer_lock_) = Armed::kNo;
  bool overrun_reported_ GUARDED_BY(producer_lock_) = false;
  uint32_t moderation_ GUARDED_BY(producer_lock_) = 0;
  uint32_t held_back_ GUARDED_BY(producer_lock_) = 0;  // completions since armed, event not raised
  // Behind the last solicited or failed one.
  uint64_t solicited_end_ GUARDED_BY(producer_lock_) = 0;
  uint64_t stored_end_ GUARDED_BY(producer_lock_) = 0;  // behind the last one that arm() found
  Atomic<uintptr_t> armer_{0};  // thread that armed it so and has not polled these; 0: none
  Atomic<uint64_t> tail_{0};
  Atomic<bool> overrun_{false};

  alignas(64) SpinLock consumer_lock_;
  Atomic<uint64_t> head_{0};

 public:
  /// `capacity` entries at least; `notifier` (may be null) outlives the queue.
  CompletionQueue(uint32_t capacity, CompletionNotifier* notifier,
                  CompletionQueueOptions options = {});
  ~CompletionQueue() { delete driver.load(std::memory_order_acquire); }

  /// Appends a completion; `solicited` counts for queues armed for solicited events only (errors
  /// always count). False when the ring was full: the completion is dropped, the queue is in
  /// overrun, and the caller moves its queue pair to ERROR. `index` (may be null) is given the
  /// completion's index, for polled(), before any thread can poll it; 0 if it was dropped.
  bool push(const WorkCompletion& completion, bool solicited,
            std::atomic<uint64_t>* index = nullptr);

  /// Takes up to `count` completions, oldest first. Returns how many, or -1 in overrun once all
  /// that was stored has been taken.
  int poll(WorkCompletion* out, int count) { return idle() ? 0 : take(out, count); }
  /// The same for one, with its time.
  int poll_timed(WorkCompletion& out, CompletionTime& time);

  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }

  /// How many completions have been polled or dropped since the queue was made: the completion with
  /// index `i` has been polled if i < polled(). Never wraps.
  uint64_t polled() const { return head_.load(std::memory_order_acquire); }

  /// Asks for one event at the next completion (or the next solicited or failed one). A request
  /// for any completion is not weakened by a later solicited-only one. True if there is such a
  /// completion already. It raises nothing yet, as the calling thread polls next, as a rule; the
  /// event comes when another thread polls it first, and with raise_stored().
  bool arm(bool solicited_only);

  /// Raises the event that was asked for if a completion of that kind came before the queue was
  /// armed, and the thread that armed it has not polled it since.
  void raise_stored();

  /// Raises the event that was asked for, although nothing has come. A thread that waits must
  /// expect events without completions.
  void raise_armed();

  uint32_t capacity() const { return capacity_.load(std::memory_order_relaxed); }

  /// Changes the capacity while others push and poll; nothing is lost. EINVAL if more completions
  /// are stored than it would hold.
  int resize(uint32_t capacity);

  enum class Drop { kAll, kFailed };

  /// Drops what is stored of one queue pair, all or what has failed, while others push and poll.
  /// Nothing may be pushed for that queue pair meanwhile.
  void drop(uint32_t qp_num, Drop which);

  /// An armed queue raises its event only at the `count`-th completion, or when the period is over
  /// (see CompletionNotifier), or at once for a solicited or failed one. 0 and 1: every one.
  void moderate(uint32_t count);
  /// The moderation period is over: raises the event that was held back, if any.
  void flush_moderation();

 private:
  /// There is nothing to poll. That is the usual case, so a consumer sees it without a lock.
  bool idle() const { return empty() && !overrun_.load(std::memory_order_acquire); }
  [[gnu::noinline, gnu::cold]] bool overrun_locked() REQUIRES(producer_lock_);
  [[gnu::noinline]] void notify_locked(bool at_once) REQUIRES(producer_lock_);
  void raise_locked() REQUIRES(producer_lock_);
  int take(WorkCompletion* out, int count);
  int taken(uint32_t taken, bool wanted);
  [[gnu::noinline, gnu::cold]] void note_stored_taken();
  [[gnu::noinline, gnu::cold]] void trace_polled(WorkCompletion* completions, uint32_t count);
};

}  // namespace uwarp
