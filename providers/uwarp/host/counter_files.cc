// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "host/counter_files.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cm/engine.h"
#include "host/raw_fds.h"
#include "host/sysfs_tree.h"
#include "net/net_device.h"

namespace uwarp {
namespace {

constexpr unsigned kCloseOnExec = 1;  // MFD_CLOEXEC

struct OpenCounters {
  std::mutex mutex;
  std::unordered_map<int, CounterFile> by_fd;
};

/// Left behind in a forked child: its lock may be held for ever.
std::atomic<OpenCounters*> current{nullptr};

OpenCounters& open_counters() {
  OpenCounters* found = current.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto* made = new OpenCounters;
  if (current.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

std::string text_of(const CounterFile& counter) {
  // Before the first queue pair there is nothing to count.
  Engine* engine = Engine::current();
  const uint64_t value =
      engine != nullptr ? counter.value(engine->stat_page().totals(counter.device)) : 0;
  return std::to_string(value) + '\n';
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
  if (fd.get() < 0) return -1;
  put_text(fd.get(), text_of(counter));
  OpenCounters& open = open_counters();
  {
    const std::lock_guard guard(open.mutex);
    open.by_fd[fd.get()] = std::move(counter);
  }
  mark_for_application(fd.get(), UWARP_FD_COUNTER);
  return fd.take();
}

void refresh_counter_file(int fd) {
  if (syscall(SYS_lseek, fd, 0, SEEK_CUR) != 0) return;
  CounterFile counter;
  OpenCounters& open = open_counters();
  {
    const std::lock_guard guard(open.mutex);
    const auto found = open.by_fd.find(fd);
    if (found == open.by_fd.end()) return;
    counter = found->second;
  }
  put_text(fd, text_of(counter));
}

void counter_file_closed(int fd) {
  OpenCounters& open = open_counters();
  const std::lock_guard guard(open.mutex);
  open.by_fd.erase(fd);
}

void counter_file_duplicated(int fd, int copy) {
  OpenCounters& open = open_counters();
  const std::lock_guard guard(open.mutex);
  const auto found = open.by_fd.find(fd);
  if (found != open.by_fd.end()) open.by_fd[copy] = CounterFile(found->second);
}

void forget_counter_files() { current.store(nullptr); }

}  // namespace uwarp
