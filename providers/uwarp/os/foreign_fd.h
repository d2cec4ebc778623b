// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A descriptor that another process has handed over. Until its kind is known, every call on it may
// wait for that process, close() included: only an Errand has such.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "os/engine_fds.h"

namespace uwarp {

/// Closed with its owner. Move-only. No engine fd yet: a forked child leaves it alone.
class ForeignFd {
 public:
  explicit ForeignFd(int fd) : fd_(fd) {}
  ForeignFd(ForeignFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForeignFd& operator=(ForeignFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ForeignFd() {
    if (fd_ >= 0) syscall(SYS_close, fd_);
  }
  int get() const { return fd_; }
  /// It is of a kind that does not wait.
  EngineFd adopt() { return EngineFd(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

}  // namespace uwarp
