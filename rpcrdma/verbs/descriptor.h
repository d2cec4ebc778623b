// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// File descriptors: what is ready, and a way for one thread to wake up another that waits.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace rpcrdma::verbs {

/// A counter that makes its descriptor readable until it is cleared.
class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~WakeUp() {
    if (fd_ >= 0) close(fd_);
  }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  int fd() const { return fd_; }
  void ring() {
    const uint64_t one = 1;
    // It fails only when the counter is full, and then the other side is awake anyway.
    [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
  }
  void clear() {
    uint64_t count = 0;
    [[maybe_unused]] const auto taken = read(fd_, &count, sizeof count);
  }

 private:
  int fd_;
};

inline bool set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

inline pollfd readable(int fd) { return {fd, POLLIN, 0}; }

}  // namespace rpcrdma::verbs
