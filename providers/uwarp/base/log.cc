// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The event log. A program that daemonises may close our descriptor and reuse its number, so a
// log file is recognised by device and inode before each write, and opened again if it is gone.
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/fact.h"
#include "base/mutex.h"
#include "base/named_file.h"
#include "base/process_lock.h"
#include "base/settings.h"

namespace uwarp {

namespace log_detail {
constinit std::atomic<State> state{State::kUnknown};
}  // namespace log_detail

namespace {

constexpr size_t kLineMax = 1000;

struct Sink {
  int fd = -1;
  const std::string* path = nullptr;  // nullptr: standard error. Never freed
  dev_t device = 0;
  ino_t inode = 0;
};

/// Guards `sink`; held while it is opened or checked, not while writing. A child may find it half
/// changed: it is checked before each use.
constinit ProcessLock sink_lock;
Sink sink;

bool stat_fd(int fd, struct stat& st) {
  return syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0;
}

bool is_stderr_name(const std::string& name) { return name == "1" || name == "stderr"; }

// `name` as seen from where the process is now, as a daemon changes its directory later.
std::string absolute_path(const std::string& name) {
  if (name.front() == '/') return name;
  char cwd[4096];
  // The system call returns the length with its final zero, or a negative value.
  if (syscall(SYS_getcwd, cwd, sizeof cwd) <= 0) return name;
  return std::string(cwd) + "/" + name;
}

// 0, or what open_named_file() says.
int open_file_locked() {
  const int fd = open_named_file(sink.path->c_str(), O_APPEND, 0644);
  if (fd < 0) return fd;
  struct stat st;
  if (!stat_fd(fd, st)) {
    const int error = errno;
    syscall(SYS_close, fd);
    return -error;
  }
  sink.fd = fd;
  sink.device = st.st_dev;
  sink.inode = st.st_ino;
  return 0;
}

// The descriptor to write to, or -1.
int usable_fd_locked() {
  if (sink.path == nullptr) return sink.fd;
  struct stat st;
  if (sink.fd >= 0 && stat_fd(sink.fd, st) && st.st_dev == sink.device && st.st_ino == sink.inode)
    return sink.fd;
  return open_file_locked() == 0 ? sink.fd : -1;
}

size_t print_prefix(char* line, size_t space) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int size = snprintf(line, space, "uwarp[%d] %lld.%06ld: ", static_cast<int>(getpid()),
                            static_cast<long long>(now.tv_sec), now.tv_nsec / 1000);
  return std::min(static_cast<size_t>(std::max(size, 0)), space - 1);
}

}  // namespace

bool log_detail::open_log() { return open_log_as(settings().log); }

bool log_detail::open_log_as(const std::string& name) {
  const int saved_errno = errno;
  const Lock guard(sink_lock);
  if (state.load(std::memory_order_relaxed) == State::kUnknown) {
    bool on = !name.empty();
    if (is_stderr_name(name)) {
      sink.fd = 2;
    } else if (on) {
      sink.path = new std::string(absolute_path(name));
      const int error = open_file_locked();
      on = error == 0;
      if (!on)
        dprintf(2, "uwarp: UWARP_LOG=%s cannot be opened (%s); using the default (off)\n",
                name.c_str(), named_file_error(error));
    }
    state.store(on ? State::kOn : State::kOff, std::memory_order_release);
  }
  errno = saved_errno;
  return state.load(std::memory_order_relaxed) == State::kOn;
}

void log_event(const char* format, ...) {
  if (!log_enabled()) return;
  const int saved_errno = errno;
  char line[kLineMax];
  size_t size = print_prefix(line, sizeof line);
  va_list arguments;
  va_start(arguments, format);
  errno = saved_errno;  // for %m
  const int more = vsnprintf(line + size, sizeof line - size, format, arguments);
  va_end(arguments);
  if (more > 0) size = std::min(size + static_cast<size_t>(more), sizeof line - 1);
  // One event is one line, even if a peer or a path put line breaks into it.
  std::replace(line, line + size, '\n', ' ');
  line[size++] = '\n';

  int fd;
  {
    const Lock guard(sink_lock);
    fd = usable_fd_locked();
  }
  // A lost log line is no error.
  if (fd >= 0) (void)!syscall(SYS_write, fd, line, size);
  errno = saved_errno;
}

namespace {

/// A program that has closed it may have a socket there now, and a pipe without a reader would end
/// the program.
bool stderr_takes_advice() {
  struct stat file;
  pollfd look{.fd = STDERR_FILENO, .events = 0, .revents = 0};
  return fstat(STDERR_FILENO, &file) == 0 && !S_ISSOCK(file.st_mode) && poll(&look, 1, 0) == 0;
}

}  // namespace

void advise(const std::string& line) {
  static constinit Fact<bool> given;
  log_event("%s", line.c_str());
  if (!settings().advice || is_stderr_name(settings().log) || !stderr_takes_advice()) return;
  (void)given.get([&] {
    complain_on_stderr("uwarp: " + line + " (UWARP_LOG=0 hides this line)");
    return true;
  });
}

}  // namespace uwarp
