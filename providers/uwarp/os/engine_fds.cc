// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bitmap of engine fds. It lies in .bss: pages that no fd number reaches are never touched.
#include "os/engine_fds.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>

#include "base/fork.h"

namespace uwarp {

namespace {

// The kernel's default ceiling of open files per process (fs.nr_open). Fds above it work, but are
// not protected and not closed in a child.
constexpr int kTrackedFds = 1 << 20;
constexpr int kWords = kTrackedFds / 64;

std::atomic<uint64_t> bitmap[kWords];
std::atomic<int> highest_word{-1};
std::atomic<const EngineFdObserver*> current_observer{nullptr};

constexpr uint64_t bit_of(int fd) { return uint64_t{1} << (fd % 64); }

void remember(int fd) {
  if (fd >= kTrackedFds) return;
  const int word = fd / 64;
  bitmap[word].fetch_or(bit_of(fd));
  int highest = highest_word.load();
  while (highest < word && !highest_word.compare_exchange_weak(highest, word)) {
  }
  const EngineFdObserver* observer = current_observer.load();
  if (observer != nullptr && observer->opened != nullptr) observer->opened(fd);
}

template <typename Visit>
void for_each_fd(Visit visit) {
  const int last = highest_word.load();
  for (int word = 0; word <= last; ++word) {
    for (uint64_t bits = bitmap[word].load(); bits != 0; bits &= bits - 1)
      visit(word * 64 + std::countr_zero(bits));
  }
}

}  // namespace

void observe_engine_fds(const EngineFdObserver* observer) {
  current_observer.store(observer);
  if (observer == nullptr || observer->opened == nullptr) return;
  for_each_fd([&](int fd) { observer->opened(fd); });
}

int engine_fd_floor() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  // FD_SETSIZE is 1024; half of the room must be left above the floor, or the engine runs dry
  // first.
  if (limit.rlim_cur >= 4096) return 1024;
  return limit.rlim_cur >= 256 ? static_cast<int>(limit.rlim_cur / 2) : 0;
}

int adopt_engine_fd(int fd) {
  if (fd < 0) return fd;
  const int floor = engine_fd_floor();
  if (fd < floor) {
    const int saved_errno = errno;
    const long moved = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, floor);
    if (moved >= 0) {
      syscall(SYS_close, fd);
      fd = static_cast<int>(moved);
    }
    errno = saved_errno;
  }
  remember(fd);
  return fd;
}

void forget_engine_fd(int fd) {
  if (fd < 0 || fd >= kTrackedFds) return;
  const EngineFdObserver* observer = current_observer.load();
  if (observer != nullptr && observer->closing != nullptr) observer->closing(fd);
  bitmap[fd / 64].fetch_and(~bit_of(fd));
}

void close_engine_fd(int fd) {
  if (fd < 0) return;
  const int saved_errno = errno;
  forget_engine_fd(fd);
  syscall(SYS_close, fd);
  errno = saved_errno;
}

bool is_engine_fd(int fd) {
  return fd >= 0 && fd < kTrackedFds && (bitmap[fd / 64].load() & bit_of(fd)) != 0;
}

void visit_engine_fds(void (*visit)(int fd)) { for_each_fd(visit); }

namespace {
void close_all() { for_each_fd(close_engine_fd); }
const InForkedChild close_in_child(close_all);
}  // namespace

}  // namespace uwarp
