// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Marks and raw system calls.
#include "events/raw_fds.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/fork.h"
#include "os/engine_fds.h"

namespace uwarp {

namespace {

std::atomic<const uwarp_preload_table*> preload_table{nullptr};

void mark(int fd, uwarp_fd_kind kind) {
  if (const auto* preload = preload_table.load(std::memory_order_acquire)) {
    preload->set_kind(fd, kind);
  }
}

constexpr EngineFdObserver kObserver = {
    [](int fd) { mark(fd, UWARP_FD_PRIVATE); },
    [](int fd) { mark(fd, UWARP_FD_FOREIGN); },
};

const InForkedChild notify_preload([] {
  if (const auto* preload = preload_table.load(std::memory_order_acquire)) preload->forked();
});

}  // namespace

void use_preload(const uwarp_preload_table* preload) {
  preload_table.store(preload, std::memory_order_release);
  observe_engine_fds(&kObserver);
}

void mark_for_application(int fd, uwarp_fd_kind kind) { mark(fd, kind); }

uwarp_fd_kind application_mark(int fd) {
  const auto* preload = preload_table.load(std::memory_order_acquire);
  return preload != nullptr ? preload->kind_of(fd) : UWARP_FD_FOREIGN;
}

int duplicate_for_engine(int fd) {
  return adopt_engine_fd(static_cast<int>(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0)));
}

void close_quietly(int fd) {
  const int saved = errno;
  raw_close(fd);
  errno = saved;
}

int raw_open(const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, 0));
}
int raw_close(int fd) { return static_cast<int>(syscall(SYS_close, fd)); }
int raw_socketpair(int family, int type, int (&ends)[2]) {
  return static_cast<int>(syscall(SYS_socketpair, family, type, 0, ends));
}
int raw_eventfd(unsigned value, int flags) {
  return static_cast<int>(syscall(SYS_eventfd2, value, flags));
}
int raw_fcntl(int fd, int command) { return static_cast<int>(syscall(SYS_fcntl, fd, command, 0)); }
bool may_block(int fd) {
  const int status = raw_fcntl(fd, F_GETFL);
  return status >= 0 && (status & O_NONBLOCK) == 0;
}
int raw_unread(int fd) {
  int bytes = 0;
  return syscall(SYS_ioctl, fd, FIONREAD, &bytes) == 0 ? bytes : -1;
}
int raw_dup3(int fd, int copy, int flags) {
  return static_cast<int>(syscall(SYS_dup3, fd, copy, flags));
}
ssize_t raw_send(int fd, const void* bytes, size_t length, int flags) {
  return syscall(SYS_sendto, fd, bytes, length, flags, nullptr, 0);
}
ssize_t raw_receive(int fd, void* bytes, size_t length, int flags) {
  return syscall(SYS_recvfrom, fd, bytes, length, flags, nullptr, nullptr);
}
ssize_t raw_read(int fd, void* bytes, size_t length) {
  return syscall(SYS_read, fd, bytes, length);
}
ssize_t raw_write(int fd, const void* bytes, size_t length) {
  return syscall(SYS_write, fd, bytes, length);
}

}  // namespace uwarp
