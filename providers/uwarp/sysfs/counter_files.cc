// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "sysfs/counter_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/process_own.h"
#include "engine/engine.h"
#include "events/raw_fds.h"
#include "net/net_device.h"
#include "sysfs/sysfs_tree.h"

namespace uwarp {

namespace {

constexpr unsigned kCloseOnExec = 1;  // MFD_CLOEXEC

/// What an fd stood for when it was opened. It may have been closed without our hearing of it, and
/// be a file of the application now.
struct OpenCounter {
  CounterFile counter;
  dev_t device = 0;
  ino_t inode = 0;
};

struct OpenCounters {
  std::mutex mutex;
  std::unordered_map<int, OpenCounter> by_fd;
};

ProcessOwn<OpenCounters> open_counters;

std::string text_of(const CounterFile& counter) {
  // Before the first queue pair there is nothing to count.
  Engine* engine = Engine::current();
  const uint64_t value =
      engine != nullptr ? counter.value(engine->stat_page().totals(counter.device)) : 0;
  return std::to_string(value) + '\n';
}

bool stat_fd(int fd, struct stat& status) {
  return syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0;
}

bool is_same_file(int fd, const OpenCounter& open) {
  struct stat status;
  return stat_fd(fd, status) && status.st_dev == open.device && status.st_ino == open.inode;
}

void put_text(int fd, const std::string& text) {
  syscall(SYS_pwrite64, fd, text.data(), text.size(), 0L);
  syscall(SYS_ftruncate, fd, text.size());
}

}  // namespace

int open_counter_file(std::string_view path, int flags) {
  CounterFile counter = counter_file(path);
  if (counter.value == nullptr || net_devices()->by_verbs_name(counter.device) == nullptr) {
    errno = ENOENT;
    return -1;
  }
  HeldFd fd(static_cast<int>(syscall(SYS_memfd_create, "uwarp-counter",
                                     (flags & O_CLOEXEC) != 0 ? kCloseOnExec : 0u)),
            close_quietly);
  struct stat status;
  if (fd.get() < 0 || !stat_fd(fd.get(), status)) return -1;
  put_text(fd.get(), text_of(counter));
  OpenCounters& open = open_counters.get();
  {
    const std::lock_guard guard(open.mutex);
    open.by_fd[fd.get()] = {std::move(counter), status.st_dev, status.st_ino};
  }
  mark_for_application(fd.get(), UWARP_FD_COUNTER);
  return fd.take();
}

void refresh_counter_file(int fd) {
  if (syscall(SYS_lseek, fd, 0, SEEK_CUR) != 0) return;
  OpenCounter counter;
  OpenCounters& open = open_counters.get();
  {
    const std::lock_guard guard(open.mutex);
    const auto found = open.by_fd.find(fd);
    if (found == open.by_fd.end()) return;
    if (!is_same_file(fd, found->second)) {
      open.by_fd.erase(found);
      return mark_for_application(fd, UWARP_FD_FOREIGN);
    }
    counter = found->second;
  }
  put_text(fd, text_of(counter.counter));
}

void counter_file_closed(int fd) {
  OpenCounters& open = open_counters.get();
  const std::lock_guard guard(open.mutex);
  open.by_fd.erase(fd);
}

void counter_file_duplicated(int fd, int copy) {
  OpenCounters& open = open_counters.get();
  const std::lock_guard guard(open.mutex);
  const auto found = open.by_fd.find(fd);
  if (found != open.by_fd.end()) open.by_fd[copy] = OpenCounter(found->second);
}

}  // namespace uwarp
