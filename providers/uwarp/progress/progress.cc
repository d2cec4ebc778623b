// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The epoll set, the turns of pollers, and the loop of the helper thread.
#include "progress/progress.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "base/thread_own.h"
#include "base/tuning.h"
#include "os/clock.h"
#include "os/engine_fds.h"
#include "os/engine_thread.h"
#include "os/thread_activity.h"

namespace uwarp {

bool SpinBudget::start() {
  if (spin_ns_ == 0) return false;
  const uint64_t now = now_ns();
  end_ns_ = now + spin_ns_;
  return now >= not_before_ns_;
}

bool SpinBudget::go_on() {
  const uint64_t before = now_ns();
  sched_yield();
  const uint64_t now = now_ns();
  if (now - before < tuning::kYieldNs || !others_ran()) return now < end_ns_;
  pause_ns_ = std::clamp(2 * pause_ns_, tuning::kBelievedNs, tuning::kLongestSpinPauseNs);
  not_before_ns_ = now + pause_ns_;
  return false;
}

void SpinBudget::found() {
  pause_ns_ /= 2;
  end_ns_ = now_ns() + spin_ns_;
}

bool SpinBudget::others_ran() {
  const auto switches = thread_switches();
  return !switches || std::exchange(switches_, *switches) != *switches;
}

namespace {

/// sched_setattr(2). Not in glibc before 2.41, and Linux's own header clashes with it.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns;
  uint64_t deadline_ns;
  uint64_t period_ns;
};

// For a moment the thread may run on `core` only, which moves it there. Afterwards it stays.
void move_to(int core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0)
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace

HelperAffinity::HelperAffinity() {
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = tuning::kHelperTurnNs;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

bool HelperAffinity::woken(uint64_t now_ns, int own, int waker) {
  const uint64_t turn_ns = now_ns - last_ns_;
  const bool soon = turn_ns <= tuning::kSoonNs && now_ns - asleep_ns_ >= turn_ns / 4 * 3;
  last_ns_ = now_ns;
  if (waker < 0 || own < 0 || waker == own) {
    misses_ = 0;
    return false;
  }
  misses_ = soon ? misses_ + 1 : 1;
  if (misses_ < tuning::kMisses || now_ns < not_before_ns_) return false;
  misses_ = 0;
  not_before_ns_ = now_ns + tuning::kBelievedNs;
  return true;
}

bool HelperAffinity::asks_waker() {
  return misses_ != 0 || ++wake_ups_ % tuning::kWakeUpsPerCheck == 0;
}

void HelperAffinity::woken_from(int waker) {
  if (woken(now_ns(), sched_getcpu(), waker)) move_to(waker);
}

namespace {

/// What exit() waits at most for the helper thread: it needs microseconds unless a lock is stuck.
constexpr uint64_t kStopNs = 200 * kNsPerMs;

/// The ticket of the wake-up; slots make tickets with a generation of 1 and more.
constexpr Progress::Registration kWakeRegistration = 0;

/// What this thread is the helper thread of.
struct Helped {
  const Progress* progress = nullptr;
};
/// What this thread served last.
struct LastServed {
  std::weak_ptr<Source> source;
};

// A policy refuses the calls, or no files are left. Nothing can be connected then: start_helper()
// fails, where a helper thread would find no set to sleep on and run all the time.
void give_up(int& epoll_fd, int error) {
  log_event("progress: cannot make an epoll set: %s. uwarp-doctor says what is refused",
            std::strerror(error));
  close_engine_fd(epoll_fd);
  epoll_fd = -error;
}

/// A call that this kernel does not have, or that a sandbox does not know.
[[maybe_unused]] bool is_unknown(int error) { return error == ENOSYS || error == EPERM; }

/// Sleeps until there is something to read, for `longest` at most (null: no limit). True if there
/// is. Where the process may open no file any more (RLIMIT_NOFILE of 0, as sandboxes set it) the
/// kernel lets it poll none either: then this is a short sleep.
bool wait_readable(int fd, const timespec* longest) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  const long count = syscall(SYS_ppoll, &one, 1, longest, nullptr, 0);
  if (count < 0 && errno == EINVAL) {
    const timespec moment = timespec_of(tuning::kNapNs);
    (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, nullptr);
  }
  return count > 0;
}

}  // namespace

Progress::Progress(const Polling& polling)
    : polling_(polling),
      wake_lead_ns_(settings().fault.empty() ? 0 : kWakeLeadNs),
      helper_spin_(uint64_t{settings().spin_us} * 1000),
      tick_ns_(polling.take_over_ns) {
  epoll_fd_ = adopt_engine_fd(static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
  wake_fd_ =
      adopt_engine_fd(static_cast<int>(syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)));
  wakeups_fd_ = adopt_engine_fd(static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeRegistration}};
  if (epoll_fd_ < 0 || wake_fd_ < 0 || wakeups_fd_ < 0 ||
      syscall(SYS_epoll_ctl, epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0 ||
      syscall(SYS_epoll_ctl, wakeups_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0 ||
      syscall(SYS_epoll_pwait, epoll_fd_, &event, 1, 0, nullptr, 0) != 0)
    give_up(epoll_fd_, errno);
}

Progress::~Progress() {
  stop_helper();
  close_engine_fd(wakeups_fd_);
  close_engine_fd(wake_fd_);
  close_engine_fd(epoll_fd_);
}

// --- Registration
// ---------------------------------------------------------------------------------

Result<Progress::Registration> Progress::add(Source& source, int fd, uint32_t events) {
  const Registration registration = slots_.add(source, fd);
  epoll_event event{.events = events, .data = {.u64 = registration}};
  if (syscall(SYS_epoll_ctl, epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return registration;
  const int error = errno;
  remove(registration);
  return Error{error};
}

void Progress::remove(Registration registration) {
  slots_.remove(registration,
                [&](int fd) { syscall(SYS_epoll_ctl, epoll_fd_, EPOLL_CTL_DEL, fd, nullptr); });
}

void Progress::watch_wakeup(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {}};
  (void)syscall(SYS_epoll_ctl, wakeups_fd_, EPOLL_CTL_ADD, fd, &event);
}

void Progress::forget_wakeup(int fd) {
  (void)syscall(SYS_epoll_ctl, wakeups_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void Progress::set_deadline(Source& source, uint64_t deadline_ns) {
  if (deadlines_.set(source, deadline_ns)) wake_helper();
}

void Progress::revisit(Source& source) {
  if (!revisits_.add(source)) return;
  // A disarmed helper leaves it to the pollers, and looks itself when it takes over; a driver that
  // sleeps cannot.
  if (presence_.driver_sleeps() || (presence_.armed() && deadlines_.sleeping())) wake_helper();
}

// --- Serving
// --------------------------------------------------------------------------------------

namespace {

/// std::bad_alloc would end the process in the helper thread, and leave a verbs call in a poller.
template <typename Call>
bool notify(Source& source, Call call) {
  try {
    return call(source);
  } catch (const std::bad_alloc&) {
    log_event("progress: out of memory");
  }
  try {
    source.out_of_memory();
  } catch (const std::bad_alloc&) {
  }
  return false;
}

bool notify_ready(Source& source, uint32_t events) {
  return notify(source, [events](Source& notified) { return notified.ready(events); });
}

}  // namespace

// False if it was the wake-up alone.
bool Progress::serve(const epoll_event* events, int count) {
  std::shared_ptr<Source> sources[kEventsPerPass];
  slots_.find(
      static_cast<size_t>(count), [&](size_t i) { return events[i].data.u64; }, sources);
  const std::shared_ptr<Source>* last = nullptr;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeRegistration) {
      // A poller that took the wake-up away would leave the helper asleep.
      if (is_helper()) drain_wake_up();
    } else if (sources[i] != nullptr) {
      if (notify_ready(*sources[i], events[i].events)) revisit(*sources[i]);
      last = &sources[i];
    }
  }
  if (last == nullptr) return false;
  thread_own<LastServed>().source = *last;
  return true;
}

bool Progress::poll_last() {
  const std::shared_ptr<Source> source = thread_own<LastServed>().source.lock();
  return source != nullptr && notify(*source, [](Source& notified) { return notified.poll(); });
}

bool Progress::serve_revisits() {
  if (!revisits_.waiting()) return false;
  std::shared_ptr<Source> sources[kRevisitsPerPass];
  const size_t count = revisits_.take(sources);
  for (const std::shared_ptr<Source>& source : std::span(sources, count))
    if (source != nullptr && notify_ready(*source, 0)) revisit(*source);
  return count != 0;
}

void Progress::serve_deadlines() {
  if (deadlines_.earliest_ns() != DeadlineHeap::kNever) serve_due(now_ns());
}

void Progress::serve_due(uint64_t now) {
  while (const std::shared_ptr<Source> source = deadlines_.take_due(now)) {
    notify(*source, [](Source& notified) {
      notified.deadline_passed();
      return false;
    });
  }
}

/// Nullopt: the kernel does not have the call, or a policy refuses it. That is remembered.
std::optional<int> Progress::precise_wait(epoll_event* events, const timespec* wait) {
#ifdef SYS_epoll_pwait2
  if (!has_pwait2_.load(std::memory_order_relaxed)) return std::nullopt;
  const long count = syscall(SYS_epoll_pwait2, epoll_fd_, events, kEventsPerPass, wait, nullptr, 0);
  if (count >= 0 || !is_unknown(errno)) return static_cast<int>(count);
  has_pwait2_.store(false, std::memory_order_relaxed);
#endif
  return std::nullopt;
}

int Progress::ask_epoll(epoll_event* events, uint64_t wait_ns) {
  if (wait_ns != 0) {
    const timespec wait = timespec_of(wait_ns);
    if (const auto count = precise_wait(events, &wait)) return *count;
    sleep_on_epoll(wait_ns);
  }
  return static_cast<int>(
      syscall(SYS_epoll_pwait, epoll_fd_, events, kEventsPerPass, 0, nullptr, 0));
}

void Progress::sleep_on_epoll(uint64_t wait_ns) {
  const timespec longest = timespec_of(wait_ns);
  (void)wait_readable(epoll_fd_, &longest);
}

bool Progress::pass(bool& served, uint64_t wait_ns) {
  if (!turn_.try_lock()) return false;
  const Lock turn(turn_, std::adopt_lock);
  serving_.begins();
  if (serve_revisits()) wait_ns = 0;
  quiet_.end_idle();
  epoll_event events[kEventsPerPass];
  if (wait_ns != 0) serving_.sleeps();
  const int count = ask_epoll(events, wait_ns);
  if (wait_ns != 0) serving_.begins();
  if (count > 0 && serve(events, count)) served = true;
  const uint64_t earliest = deadlines_.earliest_ns();
  if (earliest == DeadlineHeap::kNever) return true;
  if (const auto now = clock_.reached(earliest, rough_ns(), now_ns)) serve_due(*now);
  return true;
}

void Progress::pass_or_give_way() {
  if (pass()) return;
  if (polling_thread().held.too_long(serving_.number(), rough_ns())) sched_yield();
}

void Progress::pass_unless_served() {
  TurnsOfOthers& others = polling_thread().others;
  if (others.any(serving_.number())) return;
  pass_or_give_way();
  others.own(serving_.number());
}

PollingThread& Progress::polling_thread() {
  auto& own = thread_own<PollingThread>();
  if (own.number == 0) [[unlikely]]
    own.number = pollers_.fetch_add(1, std::memory_order_relaxed) + 1;
  return own;
}

// If another thread has the turn, it serves what comes.
void Progress::nap() {
  bool served = false;
  presence_.begin_nap();
  quiet_.end_all();
  if (!pass(served, tuning::kNapNs)) sleep_on_epoll(tuning::kNapNs);
  presence_.end_nap();
}

// --- Helper thread
// --------------------------------------------------------------------------------

bool Progress::is_helper() const { return thread_own<Helped>().progress == this; }

void Progress::wake_helper() {
  if (is_helper()) return;  // it looks at everything before it sleeps
  const uint64_t one = 1;
  (void)syscall(SYS_write, wake_fd_, &one, sizeof one);
}

void Progress::drain_wake_up() {
  uint64_t count;
  (void)syscall(SYS_read, wake_fd_, &count, sizeof count);
}

// Rings that pollers have served meanwhile are among them.
void Progress::drain_wakeups() {
  epoll_event events[kEventsPerPass];
  (void)syscall(SYS_epoll_pwait, wakeups_fd_, events, kEventsPerPass, 0, nullptr, 0);
}

bool Progress::somebody_polls(LastWait& last) {
  const uint32_t count = presence_.polls();
  const uint64_t now = now_ns();
  const uint32_t since_sleep = presence_.polls_that_count();
  const uint32_t polls = std::min(count - last.polls, since_sleep);
  const uint64_t elapsed_ns = now - last.time_ns;
  // Too early to tell: the helper may be woken for each message between two polls.
  if (polls < polling_.least_polls && elapsed_ns < polling_.take_over_ns)
    return last.polled && since_sleep >= polling_.least_polls;
  last.polls = count;
  last.time_ns = now;
  last.polled = polls >= polling_.least_polls && elapsed_ns <= polls * polling_.slowest_poll_ns;
  return last.polled;
}

bool Progress::somebody_progresses(LastWait& last) {
  const bool driven = presence_.driven_since(last.drives);
  last.others = (somebody_polls(last) && !absent_.expected(last.time_ns)) || driven;
  return last.others;
}

int Progress::epoll_until(epoll_event* events, uint64_t until_ns) {
  timespec left{};
  const uint64_t now = until_ns == DeadlineHeap::kNever ? 0 : now_ns();
  if (now < until_ns) left = timespec_of(until_ns - now);
  const bool forever = until_ns == DeadlineHeap::kNever;
  if (const auto count = precise_wait(events, forever ? nullptr : &left)) return *count;
  int timeout_ms = -1;
  if (until_ns != DeadlineHeap::kNever) {
    const uint64_t at = now_ns();
    const uint64_t wait_ms = until_ns > at ? (until_ns - at + kNsPerMs - 1) / kNsPerMs : 0;
    timeout_ms = static_cast<int>(std::min<uint64_t>(wait_ms, 1 << 30));
  }
  return static_cast<int>(
      syscall(SYS_epoll_pwait, epoll_fd_, events, kEventsPerPass, timeout_ms, nullptr, 0));
}

int Progress::wait_armed(epoll_event* events) {
  const uint64_t until = deadlines_.begin_sleep(0, DeadlineHeap::kNever, 0);
  // Behind begin_sleep(), as revisit() looks for sleepers behind its entry.
  const bool at_once = revisits_.waiting() || stopping_.load();
  // With a lead the rest of the time is spent in calls that find it past, and nothing due.
  const uint64_t lead_ns = until == DeadlineHeap::kNever ? 0 : std::min(until, wake_lead_ns_);
  const int count = epoll_until(events, at_once ? 0 : until - lead_ns);
  deadlines_.end_sleep();
  return count;
}

void Progress::wait_disarmed(const LastWait& last) {
  // Pollers serve the epoll set: this thread sleeps beside it and is not woken by messages.
  bool park = presence_.polls() == last.polls && presence_.park();
  // Behind park(), as revisit() looks for a driver that sleeps behind its entry.
  if (park && revisits_.waiting()) park = false;
  const uint64_t now = now_ns();
  const uint64_t tick = park ? DeadlineHeap::kNever : now + tick_ns_;
  // Pollers serve deadlines. To wake this thread for each that is set would disturb them. A
  // deadline may rather be late when they have just stopped.
  const uint64_t until = deadlines_.begin_sleep(now, tick, park ? 0 : polling_.late_ns);
  bool whole = until == tick;
  if (until > now && !stopping_.load()) {
    const timespec left = timespec_of(until - now);
    // A thread that drives is itself woken by each bell. After a bell that a poller has answered
    // first, the next ones do not count, for one sleep of this thread.
    const bool heeds = last.polled && !std::exchange(deaf_, false);
    if (wait_readable(heeds ? wakeups_fd_ : wake_fd_,
                      until == DeadlineHeap::kNever ? nullptr : &left)) {
      drain_wake_up();
      drain_wakeups();
      bool served = false;
      (void)pass(served);  // a peer may have noticed first that no thread polls any more
      deaf_ = heeds && !served;
      whole = false;
    }
  }
  tick_ns_ = whole ? std::min(2 * tick_ns_, polling_.longest_ns) : polling_.take_over_ns;
  presence_.unpark();
  deadlines_.end_sleep();
  if (presence_.driver_sleeps()) serve_revisits();
}

// After traffic more is likely to come, and to wake this thread would cost the sender more than
// this core is worth, if no other thread wants it. Where another thread progresses again, this one
// is in its way: it takes turns of a core, and waits for the sockets that a sender keeps locked.
int Progress::spin(epoll_event* events, LastWait& last) {
  if (woken_.exchange(false, std::memory_order_relaxed) || !helper_spin_.start()) return 0;
  uint32_t finds = 0;
  for (uint32_t polls = 1;
       finds < tuning::kFindsPerSpin && !stopping_.load() && !revisits_.waiting(); ++polls) {
    const bool found = poll_last();
    if (found) {
      ++finds;
      helper_spin_.found();
    }
    if (polls % tuning::kPollsPerEpoll != 0) continue;
    const long count = syscall(SYS_epoll_pwait, epoll_fd_, events, kEventsPerPass, 0, nullptr, 0);
    if (count != 0) return static_cast<int>(count);
    if (somebody_progresses(last)) break;
    if (!found && !helper_spin_.go_on()) break;
  }
  return 0;
}

void Progress::arm(bool on) {
  if (presence_.arm(on)) quiet_.end_all();
}

int Progress::waker_core(Registration registration) {
  std::shared_ptr<Source> source;
  slots_.find(
      1, [=](size_t) { return registration; }, &source);
  return source != nullptr ? source->waker_core() : -1;
}

void Progress::serve_armed(HelperAffinity& place, LastWait& last) {
  epoll_event events[kEventsPerPass];
  place.sleeps(now_ns());
  int count = wait_armed(events);
  if (count > 0 && place.asks_waker()) place.woken_from(waker_core(events[0].data.u64));
  while (count > 0) {
    serve(events, count);
    serve_deadlines();
    count = somebody_progresses(last) ? 0 : spin(events, last);
  }
  serve_revisits();
}

void Progress::helper_loop() {
  LastWait last{.polls = presence_.polls(), .time_ns = now_ns()};
  (void)presence_.driven_since(last.drives);
  HelperAffinity place;
  arm(true);
  while (!stopping_.load()) {
    const bool armed = !last.others;
    armed ? serve_armed(place, last) : wait_disarmed(last);
    serve_deadlines();
    const bool polled = last.polled;
    // Not again if it is known already: the end of a drive is seen by one look only.
    const bool needed = !(armed && last.others) && !somebody_progresses(last);
    arm(needed);
    if (!needed) continue;
    // A thread that has said that it will sleep has kept nothing waiting.
    const bool silently = polled && presence_.polls_that_count() != 0;
    if (!armed && silently) absent_.stopped(poll_last(), now_ns());
    tick_ns_ = polling_.take_over_ns;
    deaf_ = false;
  }
  if (!last.others) arm(false);
  do_last_work();
}

void Progress::do_last_work() {
  LastWork* const work = last_work_.load();
  if (work == nullptr) return;
  const uint64_t until_ns = now_ns() + kLastWorkNs;
  work->begin();
  while (!work->done() && now_ns() < until_ns) nap();
  work->end();
}

void* Progress::helper_main(void* self) {
  auto* progress = static_cast<Progress*>(self);
  thread_own<Helped>().progress = progress;
  // Timers may be late by 50 us otherwise.
  if (!settings().fault.empty()) (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  progress->helper_loop();
  return nullptr;
}

int Progress::start_helper() {
  const Lock guard(helper_lock_);
  if (helper_running_ || stopping_.load()) return 0;
  if (epoll_fd_ < 0) return -epoll_fd_;
  // Receive staging is on the heap; what remains are call frames and callbacks of the host side.
  const auto thread = start_engine_thread("uwarp", helper_main, this, size_t{1} << 20);
  if (!thread) {
    log_event("progress: cannot start the helper thread, errno %d", thread.error());
    return thread.error();
  }
  helper_ = *thread;
  helper_running_ = true;
  return 0;
}

void Progress::stop_helper(LastWork* last) {
  const Lock guard(helper_lock_);
  last_work_.store(last);
  stopping_.store(true);
  if (!helper_running_) return;
  helper_running_ = false;
  wake_helper();
  const timespec until =
      timespec_of(wall_clock_ns() + kStopNs + (last != nullptr ? kLastWorkNs : 0));
  if (pthread_timedjoin_np(helper_, nullptr, &until) != 0) pthread_detach(helper_);
}

// Progress::drive(): a blocked thread of the application serves the sockets itself.

namespace {

/// What one thread may wait for and still drive.
constexpr size_t kAwaitedFds = 32;

/// What a thread does to itself; it does not sleep then. Crash handlers have no SA_RESTART.
bool is_fault(int number) {
  return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL ||
         number == SIGTRAP || number == SIGSYS || number == SIGABRT;
}

/// Whether a read() that a signal interrupts goes on. Which signal it was cannot be known: one
/// handler without SA_RESTART is enough to assume that the application relies on EINTR.
bool calls_restart() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (is_fault(number) || sigaction(number, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
    if ((action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

/// poll() until `deadline_ns`, which is far beyond what a timespec holds for "never".
int poll_until(pollfd* fds, size_t count, uint64_t deadline_ns, const sigset_t* signals) {
  if (deadline_ns == DeadlineHeap::kNever) return ppoll(fds, count, nullptr, signals);
  const uint64_t now = now_ns();
  const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
  const timespec timeout = timespec_of(left);
  return ppoll(fds, count, &timeout, signals);
}

}  // namespace

/// The stay of one thread in drive(), ended also by its cancellation, which may strike in sleep()
/// only: elsewhere it holds locks.
class Progress::Drive {
 public:
  Drive(Progress& progress, const Awaited& awaited) : progress_(progress) {
    if (awaited.fds().size() > kAwaitedFds) return;
    turn_ = progress.presence_.begin_drive(awaited.patient ? Presence::kPatient : Presence::kEager,
                                           progress.polling_.least_polls);
    if (turn_ == 0) return;
    progress.quiet_.end_all();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
  }
  ~Drive() {
    if (turn_ == 0) return;
    if (progress_.presence_.end_drive(turn_)) progress_.wake_helper();
    pthread_setcancelstate(cancel_state_, nullptr);
  }
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  /// False too once a thread that is less patient has taken over.
  bool drives() const { return progress_.presence_.drives(turn_); }

  /// Sleeps until there is something to serve or to see, or until the deadline. 0, an errno, or
  /// EAGAIN: nothing has arrived.
  int sleep(const Awaited& awaited) {
    // Never the sockets themselves: a socket stays open as long as a thread polls it.
    pollfd fds[1 + kAwaitedFds];
    fds[0] = {.fd = progress_.epoll_fd_, .events = POLLIN, .revents = 0};
    size_t count = 1;
    for (const pollfd& fd : awaited.fds()) fds[count++] = fd;
    // Says that it sleeps before it looks once more; see revisit() and wait_disarmed().
    if (!progress_.presence_.driver_sleeps(turn_, true)) return EAGAIN;
    if (progress_.presence_.armed()) progress_.wake_helper();  // out of the way
    int error = EAGAIN;
    if (!progress_.revisits_.waiting()) {
      pthread_setcancelstate(cancel_state_, nullptr);
      const int ready = poll_until(fds, count, awaited.deadline_ns, awaited.signals);
      if (ready < 0) error = errno;
      // More descriptors than the process may open by now (RLIMIT_NOFILE), open as they are: the
      // thread waits for its own alone, and the helper thread serves.
      if (error == EINVAL) error = EBUSY;
      if (ready == 0) error = ETIMEDOUT;
      const auto theirs = std::span(fds, count).last(awaited.fds().size());
      if (std::any_of(theirs.begin(), theirs.end(), [](pollfd fd) { return fd.revents != 0; }))
        error = 0;
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    }
    progress_.presence_.driver_sleeps(turn_, false);
    if (error == EINTR && awaited.restarts && calls_restart()) error = EAGAIN;
    return error;
  }

 private:
  Progress& progress_;
  uint32_t turn_ = 0;  // 0: it may not drive
  int cancel_state_ = 0;
};

bool Progress::poll_for(Awaited& awaited) {
  auto& own = thread_own<std::optional<SpinBudget>>();
  SpinBudget& budget = own ? *own : own.emplace(uint64_t{settings().spin_us} * 1000);
  if (!budget.start()) return false;
  for (uint32_t polls = 1;; ++polls) {
    bool found = poll_last();
    const bool turn = polls % tuning::kPollsPerEpoll == 0;
    if (turn) (void)pass(found);
    const bool arrived = (found || turn) && awaited.arrived();
    if (found || arrived) budget.found();
    if (arrived) return true;
    if (turn && !found && !budget.go_on()) return false;
  }
}

int Progress::drive(Awaited& awaited) {
  Drive drive(*this, awaited);
  while (drive.drives()) {
    if (awaited.arrived() || poll_for(awaited)) return 0;
    LastWait last{.polls = presence_.polls(), .time_ns = now_ns()};
    const int error = drive.sleep(awaited);
    if (error != EAGAIN) return error;
    // Another thread polls now. A thread that wakes up for each message would disturb it.
    if (somebody_polls(last)) break;
    (void)pass();
  }
  return awaited.arrived() ? 0 : EBUSY;
}

}  // namespace uwarp
