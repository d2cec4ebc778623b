// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Calls in which applications wait for events of our channels beside other things: the thread that
// waits serves the sockets. Calls that have nothing of ours to wait for pay for a look at a table.
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(pollfd*, nfds_t, int)> real_poll("poll");
constinit Real<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> real_ppoll("ppoll");
constinit Real<int(int, epoll_event*, int, int)> real_epoll_wait("epoll_wait");
constinit Real<int(int, epoll_event*, int, int, const sigset_t*)> real_epoll_pwait("epoll_pwait");
constinit Real<int(int, int, int, epoll_event*)> real_epoll_ctl("epoll_ctl");

// Events of connections are left to the engine's own thread: a thread that waits for them as a
// service must not wake up for each message of the others.
bool is_channel(int fd) { return kind_of(fd) == UWARP_FD_EVENT_CHANNEL; }

bool has_channel(const pollfd* fds, nfds_t count) {
  if (highest_marked() < 0 || fds == nullptr) return false;
  for (nfds_t i = 0; i < count; ++i) {
    if (is_channel(fds[i].fd)) return true;
  }
  return false;
}

/// The application's thread sleeps in a real call; ended by its cancellation too.
class Sleep {
 public:
  explicit Sleep(const uwarp_host_table* engine) : engine_(engine) { engine_->sleeping(1); }
  ~Sleep() { engine_->sleeping(-1); }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

 private:
  const uwarp_host_table* const engine_;
};

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;

int64_t ns_of(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }
/// Other times are the kernel's to judge: some are wrong, and some are longer than we can count.
bool is_countable(const timespec* time) {
  return time == nullptr || (time->tv_sec >= 0 && time->tv_sec < INT64_MAX / kNsPerSecond &&
                             time->tv_nsec >= 0 && time->tv_nsec < kNsPerSecond);
}
timespec timespec_of(int64_t ns) {
  return {.tv_sec = static_cast<time_t>(ns / kNsPerSecond),
          .tv_nsec = static_cast<long>(ns % kNsPerSecond)};
}
int64_t ns_of_ms(int timeout_ms) { return timeout_ms < 0 ? -1 : timeout_ms * kNsPerMs; }
/// Rounded up: a wait must not be over too soon.
int ms_of(int64_t ns) { return ns < 0 ? -1 : static_cast<int>((ns + kNsPerMs - 1) / kNsPerMs); }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return ns_of(now);
}

/// How long a wait may still take that began so long ago; as poll()'s, negative is for ever.
class TimeLeft {
 public:
  explicit TimeLeft(int64_t timeout_ns)
      : timeout_ns_(timeout_ns), began_ns_(timeout_ns < 0 ? 0 : now_ns()) {}
  int64_t ns() const {
    return timeout_ns_ < 0 ? -1 : std::max(timeout_ns_ - (now_ns() - began_ns_), int64_t{0});
  }

 private:
  const int64_t timeout_ns_;
  const int64_t began_ns_;
};

/// `call(ns)` is the application's call with another timeout.
template <typename Call>
int wait_serving(const pollfd* fds, nfds_t count, int64_t timeout_ns, Call call) {
  const uwarp_host_table* engine = host_if_loaded();
  if (engine == nullptr || inside_engine() || !memory_is_ours()) return call(timeout_ns);
  const TimeLeft left(timeout_ns);
  struct Attempt {
    Call& call;
    int result;
  } attempt{call, 0};
  const auto ready = [](void* argument) {
    auto& attempt = *static_cast<Attempt*>(argument);
    attempt.result = attempt.call(0);
    return attempt.result;
  };
  int error = 0;
  {
    const InsideEngine guard;
    error = engine->serve_until(ready, &attempt, fds, count, timeout_ns);
  }
  if (error == ETIMEDOUT) return 0;
  if (error == EINTR) {
    errno = error;
    return -1;
  }
  if (error == 0 && (attempt.result != 0 || ready(&attempt) != 0)) return attempt.result;
  // Others serve.
  const Sleep sleep(engine);
  return call(left.ns());
}

}  // namespace

extern "C" {

int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (timeout_ms == 0 || !has_channel(fds, count)) [[likely]]
    return real_poll(fds, count, timeout_ms);
  return wait_serving(fds, count, ns_of_ms(timeout_ms),
                      [&](int64_t ns) { return real_poll(fds, count, ms_of(ns)); });
}

int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t room) {
  if (room / sizeof *fds < count) abort();
  return poll(fds, count, timeout_ms);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals) {
  // With a mask of signals only the kernel can wait.
  if (signals != nullptr || !has_channel(fds, count) || !is_countable(timeout)) [[likely]]
    return real_ppoll(fds, count, timeout, signals);
  return wait_serving(fds, count, timeout != nullptr ? ns_of(*timeout) : -1, [&](int64_t ns) {
    const timespec time = timespec_of(ns);
    return real_ppoll(fds, count, ns < 0 ? nullptr : &time, signals);
  });
}

int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals,
                size_t room) {
  if (room / sizeof *fds < count) abort();
  return ppoll(fds, count, timeout, signals);
}

int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  const int result = real_epoll_ctl(set, operation, fd, event);
  if (result == 0 && operation == EPOLL_CTL_ADD && is_channel(fd)) [[unlikely]]
    set_kind(set, UWARP_FD_EPOLL);
  return result;
}

int epoll_wait(int set, epoll_event* events, int room, int timeout_ms) {
  if (timeout_ms == 0 || kind_of(set) != UWARP_FD_EPOLL) [[likely]]
    return real_epoll_wait(set, events, room, timeout_ms);
  const pollfd self{.fd = set, .events = POLLIN, .revents = 0};
  return wait_serving(&self, 1, ns_of_ms(timeout_ms),
                      [&](int64_t ns) { return real_epoll_wait(set, events, room, ms_of(ns)); });
}

int epoll_pwait(int set, epoll_event* events, int room, int timeout_ms, const sigset_t* signals) {
  if (signals != nullptr) return real_epoll_pwait(set, events, room, timeout_ms, signals);
  return epoll_wait(set, events, room, timeout_ms);
}

}  // extern "C"
