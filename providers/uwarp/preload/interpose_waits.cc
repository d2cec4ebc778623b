// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// poll() and epoll_wait() in all their forms. Calls that have no channel of ours to wait for pay
// for a look at a table.
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "preload/real.h"
#include "preload/waiting.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(pollfd*, nfds_t, int)> real_poll("poll");
constinit Real<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> real_ppoll("ppoll");
constinit Real<int(int, epoll_event*, int, int)> real_epoll_wait("epoll_wait");
constinit Real<int(int, epoll_event*, int, int, const sigset_t*)> real_epoll_pwait("epoll_pwait");
constinit Real<int(int, epoll_event*, int, const timespec*, const sigset_t*)> real_epoll_pwait2(
    "epoll_pwait2");
constinit Real<int(int, int, int, epoll_event*)> real_epoll_ctl("epoll_ctl");

bool has_channel(const pollfd* fds, nfds_t count) {
  if (highest_marked() < 0 || fds == nullptr) return false;
  for (nfds_t i = 0; i < count; ++i) {
    if (is_channel(fds[i].fd)) return true;
  }
  return false;
}

constexpr int64_t kNsPerMs = 1'000'000;
int64_t ns_of_ms(int timeout_ms) { return timeout_ms < 0 ? -1 : timeout_ms * kNsPerMs; }
/// Rounded up: a wait must not be over too soon.
int ms_of(int64_t ns) { return ns < 0 ? -1 : static_cast<int>((ns + kNsPerMs - 1) / kNsPerMs); }

template <typename Call>
int wait_for_set(int set, int64_t timeout_ns, const sigset_t* signals, Call call) {
  const pollfd self{.fd = set, .events = POLLIN, .revents = 0};
  return wait_serving(&self, 1, timeout_ns, signals, call);
}

}  // namespace

extern "C" {

int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (timeout_ms == 0 || !has_channel(fds, count)) [[likely]]
    return real_poll(fds, count, timeout_ms);
  return wait_serving(fds, count, ns_of_ms(timeout_ms), nullptr,
                      [&](int64_t ns) { return real_poll(fds, count, ms_of(ns)); });
}

decltype(poll) __poll __attribute__((alias("poll")));

int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t buffer_size) {
  if (buffer_size / sizeof *fds < count) abort();
  return poll(fds, count, timeout_ms);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals) {
  if (!has_channel(fds, count) || !is_countable(timeout)) [[likely]]
    return real_ppoll(fds, count, timeout, signals);
  return wait_serving(fds, count, timeout_ns(timeout), signals, [&](int64_t ns) {
    return real_ppoll(fds, count, Timeout(ns).get(), signals);
  });
}

int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals,
                size_t buffer_size) {
  if (buffer_size / sizeof *fds < count) abort();
  return ppoll(fds, count, timeout, signals);
}

int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  const int result = real_epoll_ctl(set, operation, fd, event);
  if (result == 0 && operation == EPOLL_CTL_ADD && is_channel(fd)) [[unlikely]]
    set_kind(set, UWARP_FD_EPOLL);
  return result;
}

int epoll_wait(int set, epoll_event* events, int most, int timeout_ms) {
  if (timeout_ms == 0 || kind_of(set) != UWARP_FD_EPOLL) [[likely]]
    return real_epoll_wait(set, events, most, timeout_ms);
  return wait_for_set(set, ns_of_ms(timeout_ms), nullptr,
                      [&](int64_t ns) { return real_epoll_wait(set, events, most, ms_of(ns)); });
}

int epoll_pwait(int set, epoll_event* events, int most, int timeout_ms, const sigset_t* signals) {
  if (timeout_ms == 0 || kind_of(set) != UWARP_FD_EPOLL) [[likely]]
    return real_epoll_pwait(set, events, most, timeout_ms, signals);
  return wait_for_set(set, ns_of_ms(timeout_ms), signals, [&](int64_t ns) {
    return real_epoll_pwait(set, events, most, ms_of(ns), signals);
  });
}

int epoll_pwait2(int set, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* signals) {
  if (kind_of(set) != UWARP_FD_EPOLL || !is_countable(timeout)) [[likely]]
    return real_epoll_pwait2(set, events, most, timeout, signals);
  return wait_for_set(set, timeout_ns(timeout), signals, [&](int64_t ns) {
    return real_epoll_pwait2(set, events, most, Timeout(ns).get(), signals);
  });
}

}  // extern "C"
