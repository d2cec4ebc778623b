// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The interposed calls on fds. For an fd that is not ours they cost one load from a table and are
// as async-signal-safe as libc's.
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"
#include "preload/given_up.h"
#include "preload/own_root.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<ssize_t(int, const void*, size_t)> real_write("write");
constinit Real<int(int)> real_close("close");
constinit Real<int(FILE*)> real_fclose("fclose");
constinit Real<int(unsigned, unsigned, int)> real_close_range("close_range");
constinit Real<int(int)> real_dup("dup");
constinit Real<int(int, int)> real_dup2("dup2");
constinit Real<int(int, int, int)> real_dup3("dup3");
constinit Real<int(int, int, ...)> real_fcntl("fcntl");
constinit Real<int(int, int, int)> real_socket("socket");

/// The application gives up a marked fd; the real close follows.
void forget(int fd) {
  // Unmarked first: right after the real close another thread may get the same number.
  set_kind(fd, UWARP_FD_FOREIGN);
  const uwarp_host_table* engine = host_if_loaded();
  if (engine == nullptr) return;
  const UncancelledEngineCall guard;
  engine->closing(fd);
}

void note_copy(int fd, int copy) {
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind == UWARP_FD_FOREIGN || kind == UWARP_FD_PRIVATE || copy < 0 || copy == fd) return;
  const uwarp_host_table* engine = host_if_loaded();
  if (engine == nullptr || !table_is_ours()) return;
  const UncancelledEngineCall guard;
  engine->duplicated(fd, copy);
  set_kind(copy, kind);
}

[[gnu::noinline]] int close_marked(int fd, uwarp_fd_kind kind) {
  if (!table_is_ours()) return real_close(fd);
  if (kind == UWARP_FD_PRIVATE) {
    errno = EBADF;  // The application never opened it.
    return -1;
  }
  forget(fd);
  return real_close(fd);
}

/// The fd of a FILE that is about to be closed, by a call of libc's own.
[[gnu::noinline]] void give_up_marked(int fd, uwarp_fd_kind kind) {
  if (kind == UWARP_FD_PRIVATE || !table_is_ours()) return;
  forget(fd);
}

/// Before dup2() closes `target` on its way. False: it must not.
bool make_way(int source, int target) {
  const uwarp_fd_kind kind = kind_of(target);
  if (kind == UWARP_FD_FOREIGN || source == target || !table_is_ours()) return true;
  if (fcntl(source, F_GETFD) < 0) return true;  // dup2 will fail and leave `target` alone.
  if (kind == UWARP_FD_PRIVATE) {
    errno = EBUSY;
    return false;
  }
  forget(target);
  return true;
}

int kernel_close_range(unsigned first, unsigned last, int flags) {
  if (auto* function = real_close_range.get()) return function(first, last, flags);
  return static_cast<int>(syscall(SYS_close_range, first, last, flags));
}

/// Closes around the engine's own fds, and tells the engine of the others that are ours.
int close_range_with_marked(unsigned first, unsigned last, int flags) {
  unsigned from = first;
  const unsigned highest = static_cast<unsigned>(highest_marked());
  for (unsigned fd = first; fd <= last && fd <= highest; ++fd) {
    const uwarp_fd_kind kind = kind_of(static_cast<int>(fd));
    if (kind == UWARP_FD_FOREIGN) continue;
    if (kind != UWARP_FD_PRIVATE) {
      forget(static_cast<int>(fd));
      continue;
    }
    if (from < fd && kernel_close_range(from, fd - 1, flags) != 0) return -1;
    from = fd + 1;
  }
  return from <= last ? kernel_close_range(from, last, flags) : 0;
}

// Value of CLOSE_RANGE_CLOEXEC in the kernel's close_range.h: marks instead of closing.
constexpr int kCloseRangeCloexec = 1 << 2;

}  // namespace

void uwarp_preload::give_up(FILE* file) {
  const int saved = errno;
  const int fd = fileno(file);  // -1 for one in memory
  errno = saved;
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind != UWARP_FD_FOREIGN) [[unlikely]]
    give_up_marked(fd, kind);
}

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

ssize_t write(int fd, const void* bytes, size_t length) {
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind != UWARP_FD_UVERBS && kind != UWARP_FD_RDMA_CM) [[likely]] {
    return real_write(fd, bytes, length);
  }
  const uwarp_host_table* engine = host_if_loaded();
  if (!memory_is_ours()) {
    errno = EIO;  // It has no engine.
    return -1;
  }
  // May be cancelled inside: no frame between here and the wait may catch or be noexcept.
  return engine->write(fd, kind, bytes, length);
}

int close(int fd) {
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind == UWARP_FD_FOREIGN) [[likely]]
    return real_close(fd);
  return close_marked(fd, kind);
}

int fclose(FILE* file) {
  give_up(file);
  return real_fclose(file);
}

int close_range(unsigned first, unsigned last, int flags) noexcept {
  const int highest = highest_marked();
  if ((flags & kCloseRangeCloexec) == 0 && highest >= 0 &&
      first <= std::min(last, static_cast<unsigned>(highest)) && table_is_ours())
    return close_range_with_marked(first, last, flags);
  return kernel_close_range(first, last, flags);
}

void closefrom(int first) noexcept {
  const unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  if (close_range(from, UINT_MAX, 0) == 0) return;
  // Kernels before 5.9.
  const long limit = sysconf(_SC_OPEN_MAX);
  for (long fd = from; fd < limit; ++fd) close(static_cast<int>(fd));
}

int dup(int fd) noexcept {
  const int copy = real_dup(fd);
  if (kind_of(fd) != UWARP_FD_FOREIGN) note_copy(fd, copy);
  return copy;
}

int dup2(int fd, int copy) noexcept {
  if (!make_way(fd, copy)) return -1;
  const int result = real_dup2(fd, copy);
  if (kind_of(fd) != UWARP_FD_FOREIGN) note_copy(fd, result);
  return result;
}

int dup3(int fd, int copy, int flags) noexcept {
  if (!make_way(fd, copy)) return -1;
  const int result = real_dup3(fd, copy, flags);
  if (kind_of(fd) != UWARP_FD_FOREIGN) note_copy(fd, result);
  return result;
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const int result = real_fcntl(fd, command, argument);
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && result >= 0) note_copy(fd, result);
  return result;
}

// The kernel's netlink knows nothing of our devices; where it knows real ones its answer would be
// taken for complete. Refused, libibverbs turns to sysfs, which shows both. The refusal starts
// each listing of devices, so the tree is brought up to date here.
int socket(int family, int type, int protocol) noexcept {
  if (family == AF_NETLINK && protocol == NETLINK_RDMA && refresh_tree()) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  return real_socket(family, type, protocol);
}

// Further names of the same calls.
decltype(write) __write __attribute__((alias("write")));
decltype(close) __close __attribute__((alias("close")));
decltype(dup2) __dup2 __attribute__((alias("dup2")));
decltype(fcntl) __fcntl __attribute__((alias("fcntl")));
decltype(fcntl64) fcntl64 __attribute__((alias("fcntl")));

}  // extern "C"
