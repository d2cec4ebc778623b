// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// How an interposed call waits for one of our channels beside other things: the thread that waits
// serves the sockets meanwhile.
#pragma once

#include <poll.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"

namespace uwarp_preload {

/// A completion channel, or an epoll set in which one may be. Events of connections are left to the
/// engine's own thread: a thread that waits for them as a service must not wake up for each message
/// of the others.
inline bool is_channel(int fd) {
  const uwarp_fd_kind kind = kind_of(fd);
  return kind == UWARP_FD_EVENT_CHANNEL || kind == UWARP_FD_EPOLL;
}

inline constexpr int64_t kNsPerSecond = 1'000'000'000;

inline int64_t ns_of(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }
/// Other times are the kernel's to judge: some are wrong, and some are longer than we can count.
inline bool is_countable(const timespec* time) {
  return time == nullptr || (time->tv_sec >= 0 && time->tv_sec < INT64_MAX / kNsPerSecond &&
                             time->tv_nsec >= 0 && time->tv_nsec < kNsPerSecond);
}
/// Negative for null, which waits for ever.
inline int64_t timeout_ns(const timespec* time) { return time == nullptr ? -1 : ns_of(*time); }

inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return ns_of(now);
}

/// The timeout of the application's call as ppoll() and its like take it; null is for ever.
class Timeout {
 public:
  explicit Timeout(int64_t ns)
      : time_{.tv_sec = static_cast<time_t>(ns / kNsPerSecond),
              .tv_nsec = static_cast<long>(ns % kNsPerSecond)},
        given_(ns >= 0) {}
  const timespec* get() const { return given_ ? &time_ : nullptr; }

 private:
  const timespec time_;
  const bool given_;
};

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

/// `call(ns)` is the application's call with another timeout. `fds` are what it waits for, and
/// `signals`, where not null, the mask of the wait: each call(ns) has it, so that a signal that
/// waits ends the call as it would end the real one.
template <typename Call>
int wait_serving(const pollfd* fds, nfds_t count, int64_t timeout_ns, const sigset_t* signals,
                 Call call) {
  const uwarp_host_table* engine = host_if_loaded();
  if (engine == nullptr || inside_engine() || !memory_is_ours()) return call(timeout_ns);
  struct Attempt {
    Call& call;
    int result;
    int error;
  } attempt{call, 0, 0};
  const auto make = [](void* argument, int64_t ns) {
    auto& attempt = *static_cast<Attempt*>(argument);
    attempt.result = attempt.call(ns);
    attempt.error = errno;
    return attempt.result;
  };
  const int saved = errno;
  int error = 0;
  {
    const InsideEngine guard;
    error = engine->serve_until(make, &attempt, fds, count, timeout_ns, signals);
  }
  errno = saved;
  if (attempt.result == 0 && error == EINTR) {
    errno = error;
    return -1;
  }
  if (error == EBUSY) return call(timeout_ns);
  if (attempt.result == 0) make(&attempt, 0);
  if (attempt.result < 0) errno = attempt.error;
  return attempt.result;
}

}  // namespace uwarp_preload
