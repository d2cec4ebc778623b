// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The file descriptors that belong to the engine and not to the application: where they lie, who
// is told about them, and their end: a forked child closes them all before fork() returns there.
// Lock-free, because the child finds every lock in the state in which some other thread left it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace uwarp {

/// Told about every engine fd, so that an application which closes all fds it can misses them
/// (the preload's close() asks). Called from any thread; must not block.
struct EngineFdObserver {
  void (*opened)(int fd) = nullptr;
  void (*closing)(int fd) = nullptr;
};
/// Sets the observer and tells it about the fds that exist already. Only one; it lives forever.
void observe_engine_fds(const EngineFdObserver* observer);

/// Takes `fd` over as an engine fd and moves it out of the application's way: to a number from
/// engine_fd_floor() on if one is free. Returns the fd to use from now on. Negative: returned as
/// is.
int adopt_engine_fd(int fd);
/// The fd is about to be closed or given away.
void forget_engine_fd(int fd);
/// Closes an engine fd by a raw system call. Ignores negative ones, keeps errno.
void close_engine_fd(int fd);
bool is_engine_fd(int fd);

/// One that is closed with its owner. Move-only; empty at first.
class EngineFd {
 public:
  EngineFd() = default;
  /// Adopts `fd`; negative: empty.
  explicit EngineFd(int fd) : fd_(adopt_engine_fd(fd)) {}
  EngineFd(EngineFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  EngineFd& operator=(EngineFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~EngineFd() { close_engine_fd(fd_); }
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Programs number their own fds from 0, put them into fd_sets of 1024, or loop over the first few
/// when they daemonise. Engine fds start at 1024 where the limit leaves room above it, else in the
/// upper half of what is allowed; 0 means no preference.
int engine_fd_floor();

/// Calls `visit` for each engine fd. Lock-free.
void visit_engine_fds(void (*visit)(int fd));

// A descriptor that another process has handed over. Until its kind is known, every call on it may
// wait for that process, close() included: only an Errand has such.

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
