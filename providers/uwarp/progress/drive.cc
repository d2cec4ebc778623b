// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Progress::drive(): a blocked thread of the application serves the sockets itself.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/settings.h"
#include "base/thread_own.h"
#include "base/tuning.h"
#include "os/clock.h"
#include "progress/progress.h"

namespace uwarp {
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

bool Progress::look_for(Awaited& awaited) {
  auto& own = thread_own<std::optional<SpinBudget>>();
  SpinBudget& budget = own ? *own : own.emplace(uint64_t{settings().spin_us} * 1000);
  if (!budget.start()) return false;
  for (uint32_t looks = 1;; ++looks) {
    bool found = look_at_last();
    const bool turn = looks % tuning::kLooksPerTurn == 0;
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
    if (awaited.arrived() || look_for(awaited)) return 0;
    Look last{.polls = presence_.polls(), .time_ns = now_ns()};
    const int error = drive.sleep(awaited);
    if (error != EAGAIN) return error;
    // Another thread polls now. A thread that wakes up for each message would disturb it.
    if (somebody_polls(last)) break;
    (void)pass();
  }
  return awaited.arrived() ? 0 : EBUSY;
}

}  // namespace uwarp
