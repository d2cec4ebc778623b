// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/output_file.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/named_file.h"
#include "os/clock.h"
#include "os/engine_fds.h"

namespace uwarp {

std::optional<uint64_t> CollapsedLog::note(uint64_t now_ns) {
  // A thread that finds it taken has come at the same moment as another: one line is enough.
  if (!lock_.try_lock()) return std::nullopt;
  const Lock guard(lock_, std::adopt_lock);
  if (!limit_.allows(now_ns)) {
    ++left_out_;
    return std::nullopt;
  }
  limit_.use(now_ns);
  return std::exchange(left_out_, 0);
}

void CollapsedLog::event(const char* format, ...) {
  if (!log_enabled()) return;
  const auto left_out = note(now_ns());
  if (!left_out) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (*left_out == 0) return log_event("%s", line);
  log_event("%s (%llu more lines like this were left out)", line,
            static_cast<unsigned long long>(*left_out));
}

namespace {

std::string own_pid() { return std::to_string(syscall(SYS_getpid)); }

std::string with_pid(std::string name) {
  for (size_t at = 0; (at = name.find("%p", at)) != std::string::npos;) {
    const std::string pid = own_pid();
    name.replace(at, 2, pid);
    at += pid.size();
  }
  return name;
}

/// Opens it and locks it. Negative errno: EWOULDBLOCK when another process fills it.
int take_file(const std::string& path) {
  // Private: it contains what was sent.
  const int fd = open_named_file(path.c_str(), 0, 0600);
  if (fd < 0) return fd;
  int error = 0;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    error = EWOULDBLOCK;
  else if (syscall(SYS_ftruncate, fd, 0) != 0)
    error = errno;
  if (error == 0) return fd;
  syscall(SYS_close, fd);
  return -error;
}

}  // namespace

std::unique_ptr<OutputFile> OutputFile::create(const std::string& name, std::string& complaint) {
  std::string path = with_pid(name);
  int fd = take_file(path);
  if (fd == -EWOULDBLOCK) {
    path += '.' + own_pid();
    fd = take_file(path);
  }
  if (fd < 0) {
    complaint = path + ": " + named_file_error(fd);
    return nullptr;
  }
  return std::unique_ptr<OutputFile>(new OutputFile(adopt_engine_fd(fd), std::move(path)));
}

OutputFile::OutputFile(int fd, std::string path)
    : fd_(fd), process_(syscall(SYS_getpid)), path_(std::move(path)) {}

OutputFile::~OutputFile() { close_engine_fd(fd_); }

// In a child the number may mean another file by now.
bool OutputFile::append(std::span<iovec> pieces) {
  if (syscall(SYS_getpid) != process_) {
    errno = EBADF;
    return false;
  }
  while (!pieces.empty()) {
    const auto count = std::min<size_t>(pieces.size(), IOV_MAX);
    ssize_t written = syscall(SYS_writev, fd_, pieces.data(), count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    for (; !pieces.empty() && static_cast<size_t>(written) >= pieces.front().iov_len;
         pieces = pieces.subspan(1))
      written -= static_cast<ssize_t>(pieces.front().iov_len);
    if (pieces.empty()) break;
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + written;
    pieces.front().iov_len -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace uwarp
