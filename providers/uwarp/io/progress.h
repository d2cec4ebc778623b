// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Readiness, deadlines and the helper thread of one engine. Like NAPI in a kernel: threads that
// poll drive the sockets themselves and the helper is disarmed meanwhile; when they stop it takes
// over within kTakeOverNs. Knows nothing of what its sources are.
//
// docs/ownership.md has the discipline for sources and the order of locks.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/spinlock.h"
#include "io/deadline_heap.h"
#include "io/source.h"

namespace uwarp {

class Progress {
 public:
  /// Names one registered fd; 0 is none. Not reused soon.
  using Ticket = uint64_t;
  static constexpr uint32_t kEdges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

  /// Bound of the time in which the helper thread notices that nobody polls any more.
  static constexpr uint64_t kTakeOverNs = 1'000'000;
  /// "Somebody polls": at least this many polls on an empty completion queue since the helper
  /// looked last, and since anybody announced to sleep, ...
  static constexpr uint32_t kPollsThatDisarm = 4;
  /// ... with this time between them at most, on average. A polling loop takes about half a
  /// microsecond per round, a wake-up of the helper tens of them: whoever polls more seldom than
  /// this is served better by the helper.
  static constexpr uint64_t kSlowestPollNs = 50'000;
  /// A yield that takes longer than this has run somebody else who needs the core ...
  static constexpr uint64_t kYieldNs = 50'000;
  /// ... and the helper does not spin for a while: twice as long each time, between these bounds.
  static constexpr uint64_t kSpinPauseNs = 20'000'000;
  static constexpr uint64_t kLongestSpinPauseNs = 2'000'000'000;

  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Watches `fd` for `source`, edge-triggered. If it is ready already, an edge comes at once.
  /// Errors: ENOMEM, ENOSPC (fs.epoll.max_user_watches).
  Result<Ticket> add(Source& source, int fd, uint32_t events = kEdges);
  /// Stops watching; call before the fd is closed. A call of ready() may still be under way in
  /// another thread, and in this one: remove() is allowed inside it. Ignores 0.
  void remove(Ticket ticket);

  /// Sets the one deadline of `source` (CLOCK_MONOTONIC ns); 0 clears it. A deadline_passed() that
  /// has started meanwhile is not held back: the source checks its own state.
  void set_deadline(Source& source, uint64_t deadline_ns);
  /// Has source.ready(0) called soon, by whichever thread progresses.
  void revisit(Source& source);

  /// Notes a poll on an empty completion queue; returns a running count. Costs no locked
  /// instruction: concurrent counts may be lost, which does no harm.
  uint32_t note_poll() {
    const uint32_t count = polls_.load(std::memory_order_relaxed) + 1;
    polls_.store(count, std::memory_order_relaxed);
    return count;
  }
  /// The caller is about to sleep until an event comes (a completion queue was armed): polls so far
  /// no longer count, and a disarmed helper thread takes over at once.
  void note_sleep();
  /// One turn in the caller, without blocking: what is ready now, what asked to be revisited, what
  /// is due. False at once if another thread is at it, or this one further up its stack.
  bool pass();
  /// The helper thread sits in epoll: pollers need not look after sockets that are not theirs.
  bool helper_armed() const { return armed_.load(std::memory_order_relaxed); }

  /// Starts the helper thread if it does not run. All signals are blocked in it; it is never
  /// pinned, so that the kernel may wake it on the core of whoever sent. Errors: EAGAIN.
  int start_helper();
  bool helper_running() const { return helper_running_.load(std::memory_order_relaxed); }
  /// Ends the helper thread and waits for it (a bounded time: exit() may run while a lock that it
  /// needs is held by the interrupted code). It does not start again.
  void stop_helper();
  /// Makes the helper thread look around.
  void wake_helper();
  /// A sleeping application thread has been woken: the helper thread goes to sleep instead of
  /// spinning, so that both take their turns on one core.
  void note_wake_up() { woken_.store(true, std::memory_order_relaxed); }

 private:
  struct Slot {
    std::weak_ptr<Source> source;
    uint32_t generation = 1;
    int fd = -1;  // -1: free
  };
  static constexpr int kEventsPerTurn = 32;
  /// Rounds in a row in which one pass() serves sources that say "more"; then the caller goes on.
  static constexpr size_t kRevisitsPerTurn = 32;

  static void* helper_main(void* self);
  void helper_loop();
  int wait_armed(epoll_event* events);
  void wait_disarmed();
  int spin(epoll_event* events);
  int epoll_until(epoll_event* events, uint64_t until_ns);
  /// What the helper saw when it looked last.
  struct Look {
    uint32_t polls = 0;
    uint64_t time_ns = 0;
  };
  bool somebody_polls(Look& last);
  void serve(const epoll_event* events, int count);
  bool serve_revisits();
  bool revisits_waiting() const { return revisit_count_.load(std::memory_order_acquire) != 0; }
  void serve_deadlines();
  void drain_wake_up();

  int epoll_fd_ = -1;
  int wake_fd_ = -1;

  SpinLock slots_lock_;  // leaf; guards the next two
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;

  SpinLock revisit_lock_;  // leaf
  std::vector<std::weak_ptr<Source>> revisits_;
  std::atomic<uint32_t> revisit_count_{0};

  DeadlineHeap deadlines_;

  alignas(64) std::atomic<uint32_t> polls_{0};
  alignas(64) SpinLock turn_;  // the caller that is inside pass(); only ever tried
  std::atomic<bool> armed_{false};
  std::atomic<uint64_t> sleeping_until_ns_{0};  // when the helper wakes by itself; 0: it is awake
  std::atomic<uint32_t> polls_at_sleep_{0};     // polls_ at the last note_sleep()
  std::atomic<bool> woken_{false};
  uint64_t no_spin_before_ns_ = 0;  // helper thread only, as the next
  uint64_t spin_pause_ns_ = 0;      // after the last time that somebody wanted the core

  SpinLock helper_lock_;  // start and stop
  std::atomic<bool> helper_running_{false};
  std::atomic<bool> stopping_{false};
  pthread_t helper_{};
};

}  // namespace uwarp
