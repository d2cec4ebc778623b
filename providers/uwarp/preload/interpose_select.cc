// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// select() and pselect(), which take their descriptors as sets of bits and write the answer over
// them. Where no fd of the process is marked they cost one load.
#include <string.h>
#include <sys/select.h>

#include "preload/real.h"
#include "preload/waiting.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(int, fd_set*, fd_set*, fd_set*, timeval*)> real_select("select");
constinit Real<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> real_pselect(
    "pselect");

constexpr short kReadable = POLLIN | POLLRDNORM | POLLRDBAND;

/// The three sets of a call as the application has given them. Larger ones than fd_set are left to
/// the kernel alone.
class Sets {
 public:
  Sets(int end, fd_set* readable, fd_set* writable, fd_set* exceptional)
      : bytes_(static_cast<size_t>(end + kBitsPerWord - 1) / kBitsPerWord * sizeof(fd_mask)),
        sets_{readable, writable, exceptional} {
    for (int i = 0; i < kSets; ++i) {
      if (sets_[i] != nullptr) memcpy(&given_[i], sets_[i], bytes_);
    }
    for (int fd = 0; fd < end; ++fd) {
      const short events = static_cast<short>(
          (has(0, fd) ? kReadable : 0) | (has(1, fd) ? POLLOUT : 0) | (has(2, fd) ? POLLPRI : 0));
      if (events != 0 && count_ < kCapacity) fds_[count_++] = {fd, events, 0};
    }
  }
  void restore() {
    for (int i = 0; i < kSets; ++i) {
      if (sets_[i] != nullptr) memcpy(sets_[i], &given_[i], bytes_);
    }
  }
  const pollfd* fds() const { return fds_; }
  /// One more than there is room for means "too many".
  nfds_t count() const { return count_; }

 private:
  static constexpr int kSets = 3;
  static constexpr int kBitsPerWord = 8 * sizeof(fd_mask);
  static constexpr nfds_t kCapacity = 33;  // the engine serves beside 32

  bool has(int set, int fd) const { return sets_[set] != nullptr && FD_ISSET(fd, &given_[set]); }

  const size_t bytes_;
  fd_set* const sets_[kSets];
  fd_set given_[kSets];
  pollfd fds_[kCapacity];
  nfds_t count_ = 0;
};

bool has_channel(int end, const fd_set* readable) {
  if (readable == nullptr || end > FD_SETSIZE) return false;
  for (int fd = 0; fd < end && fd <= highest_marked(); ++fd) {
    if (FD_ISSET(fd, readable) && is_channel(fd)) return true;
  }
  return false;
}

int select_serving(int end, fd_set* readable, fd_set* writable, fd_set* exceptional,
                   int64_t timeout_ns, const sigset_t* signals) {
  Sets sets(end, readable, writable, exceptional);
  const int result = wait_serving(sets.fds(), sets.count(), timeout_ns, signals, [&](int64_t ns) {
    sets.restore();
    return real_pselect(end, readable, writable, exceptional, Timeout(ns).get(), signals);
  });
  // As the kernel's: what fails leaves the sets alone.
  if (result < 0) sets.restore();
  return result;
}

constexpr int64_t kUsPerSecond = 1'000'000;
constexpr int64_t kNsPerUs = 1'000;

bool is_countable(const timeval* time) {
  return time == nullptr || (time->tv_sec >= 0 && time->tv_sec < INT64_MAX / kNsPerSecond / 2 &&
                             time->tv_usec >= 0 && time->tv_usec < INT64_MAX / kNsPerUs / 2);
}

}  // namespace

extern "C" {

// Linux leaves the time that was not slept in `timeout`.
int select(int end, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  if (!has_channel(end, readable) || !is_countable(timeout)) [[likely]]
    return real_select(end, readable, writable, exceptional, timeout);
  const TimeLeft left(
      timeout == nullptr ? -1 : timeout->tv_sec * kNsPerSecond + timeout->tv_usec * kNsPerUs);
  const int result = select_serving(end, readable, writable, exceptional, left.ns(), nullptr);
  if (timeout != nullptr) {
    const int64_t us = left.ns() / kNsPerUs;
    *timeout = {.tv_sec = us / kUsPerSecond, .tv_usec = us % kUsPerSecond};
  }
  return result;
}

decltype(select) __select __attribute__((alias("select")));

int pselect(int end, fd_set* readable, fd_set* writable, fd_set* exceptional,
            const timespec* timeout, const sigset_t* signals) {
  if (!has_channel(end, readable) || !uwarp_preload::is_countable(timeout)) [[likely]]
    return real_pselect(end, readable, writable, exceptional, timeout, signals);
  return select_serving(end, readable, writable, exceptional, timeout_ns(timeout), signals);
}

}  // extern "C"
