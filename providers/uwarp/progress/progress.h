// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Readiness, deadlines and the helper thread of one engine. Like NAPI in a kernel: threads that
// poll drive the sockets themselves and the helper is disarmed meanwhile, unless they have kept
// messages waiting (AbsentPollers). When they stop it takes over within Polling::take_over_ns. Does
// not know what its sources are.
//
// docs/ownership.md has the discipline for sources and the order of locks.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/result.h"
#include "base/spinlock.h"
#include "base/tuning.h"
#include "progress/deadline_heap.h"
#include "progress/epoll_muted_sources.h"
#include "progress/presence.h"
#include "progress/revisit_queue.h"
#include "progress/source.h"
#include "progress/source_slots.h"

namespace uwarp {

// How long a thread may look for work that is likely to come soon instead of sleeping: up to
// UWARP_SPIN_US after traffic, and only as long as no other thread wants its core.

/// Belongs to one thread at a time.
class SpinBudget {
 public:
  explicit SpinBudget(uint64_t spin_ns) : spin_ns_(spin_ns) {}

  /// Starts a round. False: sleep at once.
  bool start();
  /// Nothing has come: lets others run. False: the round is over.
  bool go_on();
  /// Something has come: it was worth it, and the round begins anew.
  void found();

 private:
  /// The scheduler has taken the core away since this was asked last.
  bool others_ran();

  uint64_t spin_ns_;
  uint64_t end_ns_ = 0;
  uint64_t not_before_ns_ = 0;
  uint64_t pause_ns_ = 0;
  uint64_t switches_ = 0;  // thread_switches() when others_ran() was asked last
};

// Whether a time has come, by a clock that may be a system call and is asked for only when the
// processor's counter says that it may have. Times in, decision out.

/// Belongs to one thread at a time.
class SparingClock {
 public:
  /// The counter may be slower than it is taken for (rough_ns), by less than this factor.
  static constexpr uint64_t kSlowness = 4;

  /// The time if it is `when_ns` or later. `rough_ns` is the counter, `clock()` the time in ns. A
  /// counter that has gone back, on another core, asks for the clock as well.
  template <typename Clock>
  std::optional<uint64_t> reached(uint64_t when_ns, uint64_t rough_ns, Clock clock) {
    const bool read = clock_ns_ != 0;
    if (read && when_ns > clock_ns_ && rough_ns - rough_ns_ < (when_ns - clock_ns_) / kSlowness)
      return std::nullopt;
    rough_ns_ = rough_ns;
    clock_ns_ = clock();
    if (clock_ns_ < when_ns) return std::nullopt;
    return clock_ns_;
  }

 private:
  uint64_t rough_ns_ = 0;  // both at the last look at the clock
  uint64_t clock_ns_ = 0;
};

// A thread that loses its core inside pass() keeps all others out of it until it has a core again:
// with more pollers than cores that takes a time slice of each of them, unless they give their
// cores away.

/// Who is inside pass(), as others see it. Changed by the thread inside.
class ServingTurn {
 public:
  void begins() { number_.store((number() | kAsleep) + 1, std::memory_order_relaxed); }
  /// It may sleep on epoll: it has not lost its core.
  void sleeps() { number_.store(number() | kAsleep, std::memory_order_relaxed); }
  uint32_t number() const { return number_.load(std::memory_order_relaxed); }
  static bool asleep(uint32_t number) { return (number & kAsleep) != 0; }

 private:
  static constexpr uint32_t kAsleep = 1;
  std::atomic<uint32_t> number_{0};
};

/// What one poller has seen of the turns of others. Turns in, decision out.
class HeldTurn {
 public:
  /// The turn of this number was another thread's. `rough_ns`: the processor's counter. True: it
  /// has been for too long.
  bool too_long(uint32_t number, uint64_t rough_ns) {
    if (number != number_ || since_ns_ == 0) {
      number_ = number;
      since_ns_ = rough_ns;
    }
    return !ServingTurn::asleep(number) && rough_ns - since_ns_ >= tuning::kHeldTurnNs;
  }

 private:
  uint32_t number_ = 0;
  uint64_t since_ns_ = 0;
};

/// Whether other threads serve, as one poller sees it: then it leaves all sockets but its own to
/// them, and writes nothing that they write. Turns in, decision out.
class TurnsOfOthers {
 public:
  /// `number`: that of the turn now. True: another thread has had a turn since the last call.
  bool any(uint32_t number) { return std::exchange(number_, number) != number; }
  /// The turn of this number was the poller's own.
  void own(uint32_t number) { number_ = number; }

 private:
  uint32_t number_ = 0;
};

/// What one thread that polls has of its own.
struct PollingThread {
  uint32_t number = 0;  // among those that poll, from 1; 0: not given yet
  HeldTurn held;
  TurnsOfOthers others;
};

// Where the helper thread runs, and how soon. The wake-up of a thread on another core costs an
// inter-processor interrupt, in a virtual machine more than all the rest of a small message; on the
// core of the waker it costs a switch. A scheduler that finds both cores taken (two applications
// that spin on memory) leaves the thread where it is, which is as often wrong as right. But a
// thread that has much to do at each wake-up needs a core of its own, not the sender's.

/// Belongs to the helper thread, which makes it.
class HelperAffinity {
 public:
  /// Asks the scheduler for short turns that come soon (Linux 6.12; else nothing changes).
  HelperAffinity();

  /// The thread is about to sleep.
  void sleeps(uint64_t now_ns) { asleep_ns_ = now_ns; }
  /// The thread runs on `own` and was woken at `now_ns` from `waker`. True: it is to move there.
  /// Negative: not known.
  bool woken(uint64_t now_ns, int own, int waker);
  /// The thread was woken. False: it is not worth asking which core woke it.
  bool asks_waker();
  /// It was woken from this core: moves it if that is due. It may run wherever it might before.
  void woken_from(int waker);

 private:
  uint32_t wake_ups_ = 0;
  uint32_t misses_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t asleep_ns_ = 0;
  uint64_t not_before_ns_ = 0;
};

// Threads that poll serve the sockets, so the helper thread looks only now and then whether they
// still do. Some poll for the completion of a Write and then spin on memory for the peer's: for
// them each message would wait for such a look.

/// Belongs to the helper thread. Times in, decision out.
class AbsentPollers {
 public:
  /// The threads that polled have stopped. `late`: something had come since.
  void stopped(bool late, uint64_t now_ns) {
    late_ = static_cast<uint8_t>(late_ << 1 | late);
    if (late && std::popcount(late_) >= tuning::kLateFinds)
      until_ns_ = now_ns + tuning::kBelievedNs;
  }
  /// The helper thread serves, whether others poll or not.
  bool expected(uint64_t now_ns) const { return now_ns < until_ns_; }

 private:
  uint8_t late_ = 0;  // a bit for each of the last stops
  uint64_t until_ns_ = 0;
};

/// What a thread waits for in a blocking call of the application, such as ibv_get_cq_event().
class Awaited {
 public:
  virtual ~Awaited() = default;
  /// It is there. Called often.
  virtual bool arrived() = 0;
  /// These become readable when it comes from another thread.
  virtual std::span<const pollfd> fds() const = 0;

  uint64_t deadline_ns = ~uint64_t{0};
  /// It may wait for a turn of the helper thread: other threads drive first.
  bool patient = false;
  /// After a signal the call goes on if read() does.
  bool restarts = true;
  /// Where not null, the mask of signals while the thread sleeps.
  const sigset_t* signals = nullptr;
};

/// What the helper thread finishes before it ends, while exit() waits.
class LastWork {
 public:
  /// Once, then done() often, and end() when it is done or has taken too long. By the helper
  /// thread, without locks.
  virtual void begin() = 0;
  virtual bool done() = 0;
  virtual void end() = 0;

 protected:
  ~LastWork() = default;
};

/// A member of the Engine. The helper thread runs from the first start_helper() until
/// stop_helper(), at exit or in the destructor, and does not start again. It is armed, in epoll, or
/// sleeps beside that while a thread of the application polls or drives. Owns nothing, but
/// holds a strong reference to a source during a call. Outlives its sources, which leave its lists
/// in their destructors; no thread is inside when it ends.
class Progress {
 public:
  /// Names one registered fd; 0 is none.
  using Registration = SourceSlots::Registration;
  static constexpr uint32_t kEdges = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

  /// When the helper thread assumes that a thread polls in a loop: if there were least_polls since
  /// it looked last and since a thread announced to sleep, at most slowest_poll_ns apart on
  /// average.
  struct Polling {
    uint32_t least_polls;
    uint64_t slowest_poll_ns;
    uint64_t take_over_ns;  // in which the helper notices that no thread polls any more
    uint64_t longest_ns;    // the same after long polling: each look of the helper disturbs it
    /// Most that a deadline may be late once the threads that polled have stopped.
    uint64_t late_ns;
  };
  /// A polling loop takes about half a microsecond per round, a wake-up of the helper as long as
  /// tens of rounds: the helper serves a thread better that polls more seldom than this.
  static constexpr Polling kBesideOthers{.least_polls = 4,
                                         .slowest_poll_ns = 50'000,
                                         .take_over_ns = 1'000'000,
                                         .longest_ns = 4'000'000,
                                         .late_ns = 1'000'000};
  /// On the only processor the helper takes its turns from the pollers, which then wait for whole
  /// time slices.
  static constexpr Polling kOnOneProcessor{.least_polls = 1,
                                           .slowest_poll_ns = 20'000'000,
                                           .take_over_ns = 20'000'000,
                                           .longest_ns = 20'000'000,
                                           .late_ns = 2'000'000};

 private:
  const Polling polling_;
  // A wire of UWARP_FAULT has deadlines of microseconds: the armed helper thread wakes so much
  // before one, and does not sleep again.
  static constexpr uint64_t kWakeLeadNs = 50'000;
  const uint64_t wake_lead_ns_;
  int epoll_fd_ = -1;                   // or a negative errno
  std::atomic<bool> has_pwait2_{true};  // Linux 5.11, unless refused
  int wake_fd_ = -1;
  int wakeups_fd_ = -1;  // an epoll set of them, and of wake_fd_

  SourceSlots slots_;
  RevisitQueue revisits_;
  DeadlineHeap deadlines_;
  Presence presence_;
  EpollMutedSources quiet_{presence_};

  alignas(64) SpinLock turn_;             // the caller that is inside pass(); only ever tried
  SparingClock clock_ GUARDED_BY(turn_);  // of pass()
  ServingTurn serving_;                   // the same, as others see it
  std::atomic<uint32_t> pollers_{0};      // threads that have polled, so far
  std::atomic<bool> woken_{false};
  SpinBudget helper_spin_;
  // The helper's own, while it is disarmed: how long it sleeps, and whether bells wake it.
  uint64_t tick_ns_;
  bool deaf_ = false;
  AbsentPollers absent_;

  SpinLock helper_lock_;  // start and stop
  std::atomic<bool> helper_running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<LastWork*> last_work_{nullptr};  // set before stopping_
  pthread_t helper_ GUARDED_BY(helper_lock_){};

 public:
  explicit Progress(const Polling& polling = kBesideOthers);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Watches `fd` for `source`, edge-triggered. If it is ready already, an edge comes at once.
  /// Errors: ENOMEM, ENOSPC (fs.epoll.max_user_watches).
  Result<Registration> add(Source& source, int fd, uint32_t events = kEdges);
  /// Stops watching; call before the fd is closed. A call of ready() may still be under way in
  /// another thread, and in this one: remove() is allowed inside it. Ignores 0.
  void remove(Registration registration);

  /// What is rung on `fd`, which add() watches too, wakes the helper thread also while it sleeps
  /// beside the epoll set, because pollers serve that: a peer rings where none polls any more.
  void watch_wakeup(int fd, uint32_t events);
  void forget_wakeup(int fd);

  /// Sets the one deadline of `source` (CLOCK_MONOTONIC ns); 0 clears it. A deadline_passed() that
  /// has started meanwhile is not held back: the source checks its own state.
  void set_deadline(Source& source, uint64_t deadline_ns);
  /// Has source.ready(0) called soon, by the thread that progresses.
  void revisit(Source& source);
  /// A poller looks at `source` all the time, so its data shall make no event in epoll for now. See
  /// EpollMutedSources::add(). Sleepers are the helper thread, the driver and a thread in nap().
  bool mute(Source& source) { return quiet_.add(source); }

  /// Notes a poll on an empty completion queue, or work that takes as long as `polls` of them.
  /// Returns a running count of this thread's. Costs no locked instruction, and writes no cache
  /// line that other threads write, while there are not more of them than Presence::kPollCounts.
  uint32_t note_polls(uint32_t polls) {
    return presence_.note_polls(polls, polling_thread().number);
  }
  /// The caller is about to sleep until an event comes (a completion queue was armed): polls so far
  /// no longer count, and a disarmed helper thread takes over at once.
  void note_sleep() {
    if (presence_.note_sleep()) wake_helper();
  }
  /// Serves in the caller until `awaited` arrives, so that a message costs one wake-up and not the
  /// helper's and then the caller's: looks for a while, then sleeps. The helper is disarmed
  /// meanwhile. A cancellation point. 0 when it has arrived; ETIMEDOUT; EINTR after a signal; EBUSY
  /// when other threads drive or wait: be a Waiter then, unless patient.
  int drive(Awaited& awaited);
  /// Between the two a thread sleeps until another thread has served what it waits for.
  void begin_wait() {
    if (presence_.begin_wait()) wake_helper();
  }
  void end_wait() { presence_.end_wait(); }
  class Waiter {
   public:
    explicit Waiter(Progress& progress) : progress_(progress) { progress_.begin_wait(); }
    ~Waiter() { progress_.end_wait(); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    Progress& progress_;
  };

  /// One turn in the caller, without blocking: what is ready now, what asked to be revisited, what
  /// is due. False at once if another thread has the turn, or this one further up its stack.
  bool pass() {
    bool served = false;
    return pass(served);
  }
  /// The same for a thread that polls in a loop: gives its core away if another thread has had the
  /// turn for so long that it is probably waiting for one.
  void pass_or_give_way();
  /// The same for a poller that has no need of it: leaves it to another thread that has done it
  /// since this one asked last.
  void pass_unless_served();
  /// Sleeps until something may be there to serve, for kNapNs at most.
  void nap();
  /// The helper thread waits in epoll: pollers need not serve sockets of other queues.
  bool helper_armed() const { return presence_.armed(); }

  /// Starts the helper thread if it does not run. All signals are blocked in it; it is never
  /// left pinned, so that the kernel may wake it on the sender's core. Errors: EAGAIN.
  int start_helper();
  bool helper_running() const { return helper_running_.load(std::memory_order_relaxed); }
  /// Ends the helper thread and waits for it (a bounded time: exit() may run while a lock that it
  /// needs is held by the interrupted code). It does not start again. `last`: what is left to do,
  /// for kLastWorkNs at most; nothing of it is done in the caller.
  void stop_helper(LastWork* last = nullptr);
  static constexpr uint64_t kLastWorkNs = 1'000'000'000;
  /// Makes the helper thread look around.
  void wake_helper();
  /// A sleeping application thread has been woken: the helper thread goes to sleep instead of
  /// spinning, so that both take their turns on one core.
  void note_wake_up() { woken_.store(true, std::memory_order_relaxed); }

 private:
  static constexpr int kEventsPerPass = 32;
  /// Rounds in a row in which one pass() serves sources that say "more"; then the caller goes on.
  static constexpr size_t kRevisitsPerPass = 32;

  /// The calling thread is the helper thread.
  bool is_helper() const;
  /// The calling thread, as one that polls.
  PollingThread& polling_thread();

  /// What a thread that watches the others saw when it looked last.
  struct LastWait {
    uint32_t polls = 0;
    uint32_t drives = 0;
    uint64_t time_ns = 0;
    bool polled = false;  // what the look found: a thread polls in a loop
    bool others = false;  // ... or progresses, in this or another way
  };

  static void* helper_main(void* self);
  void helper_loop();
  void do_last_work();
  void arm(bool on);
  int wait_armed(epoll_event* events);
  void wait_disarmed(const LastWait& last);
  int spin(epoll_event* events, LastWait& last);
  bool poll_last();
  int epoll_until(epoll_event* events, uint64_t until_ns);
  bool somebody_polls(LastWait& last);
  bool somebody_progresses(LastWait& last);
  int waker_core(Registration registration);
  void serve_armed(HelperAffinity& place, LastWait& last);
  // Threads of the application that wait.
  class Drive;
  bool poll_for(Awaited& awaited);
  /// pass(); `served` becomes true if epoll reported more than the wake-up. Sleeps until it reports
  /// something, for `wait_ns` at most.
  bool pass(bool& served, uint64_t wait_ns = 0);
  std::optional<int> precise_wait(epoll_event* events, const timespec* wait);
  int ask_epoll(epoll_event* events, uint64_t wait_ns);
  void sleep_on_epoll(uint64_t wait_ns);
  bool serve(const epoll_event* events, int count);
  bool serve_revisits();
  void serve_deadlines();
  void serve_due(uint64_t now);
  void drain_wake_up();
  void drain_wakeups();
};

}  // namespace uwarp
