// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// File descriptors as the kernel's side makes them: by raw system calls, because preloaded wrappers
// of socket() and the like must not see them, and marked in the preload's table.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "events/preload_table.h"

namespace uwarp {

/// The preload's functions, once it has attached. Without it no marks are kept.
void use_preload(const uwarp_preload_table* preload);

/// Tells the preload what an fd that the application sees stands for.
void mark_for_application(int fd, uwarp_fd_kind kind);
/// What it stands for.
uwarp_fd_kind application_mark(int fd);

/// A close-on-exec copy that is the engine's own; -1 and errno.
int duplicate_for_engine(int fd);

/// An fd that is closed unless it is taken: for the time in which making its owner may fail.
class OwnedFd {
 public:
  using Close = void (*)(int fd);
  OwnedFd(int fd, Close close) : fd_(fd), close_(close) {}
  ~OwnedFd() {
    if (fd_ >= 0) close_(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;

  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
  const Close close_;
};
/// Closes an fd of the application's, keeping errno.
void close_quietly(int fd);

// Raw system calls: as libc's, -1 and errno on failure.
int raw_open(const char* path, int flags);
int raw_close(int fd);
int raw_socketpair(int family, int type, int (&ends)[2]);
int raw_eventfd(unsigned value, int flags);
/// fcntl() commands without an argument.
int raw_fcntl(int fd, int command);
/// The application lets calls on `fd` wait: it is open, and not O_NONBLOCK.
bool may_block(int fd);
/// Bytes that wait to be read from a socket.
int raw_unread(int fd);
int raw_dup3(int fd, int copy, int flags);
ssize_t raw_send(int fd, const void* bytes, size_t length, int flags);
ssize_t raw_receive(int fd, void* bytes, size_t length, int flags);
ssize_t raw_read(int fd, void* bytes, size_t length);
ssize_t raw_write(int fd, const void* bytes, size_t length);

}  // namespace uwarp
