// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/thread_activity.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "os/clock.h"
#include "os/raw_call.h"

namespace uwarp {

namespace {

/// The letter behind the name in brackets of /proc/PID/task/TID/stat (proc(5)), or 0.
char state_letter(pid_t thread) {
  char path[48];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", static_cast<int>(thread));
  const auto fd = static_cast<int>(raw_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0));
  if (fd < 0) return 0;
  std::array<char, 128> text;  // the name has 15 bytes at most
  const ssize_t length = raw_call(SYS_read, fd, text.data(), text.size());
  raw_call(SYS_close, fd);
  if (length <= 0) return 0;
  const std::string_view stat(text.data(), static_cast<size_t>(length));
  const size_t name_end = stat.rfind(')');
  return name_end + 2 < stat.size() ? stat[name_end + 2] : '\0';
}

/// clock_getcpuclockid(3) for a thread, which the kernel takes by its number.
clockid_t run_clock(pid_t thread) {
  constexpr unsigned kOfOneThread = 4;
  constexpr unsigned kBySchedulerTime = 2;
  return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | kOfOneThread |
                                kBySchedulerTime);
}

}  // namespace

pid_t thread_id() { return static_cast<pid_t>(raw_call(SYS_gettid)); }

ThreadActivity thread_activity(pid_t thread) {
  timespec ran{};
  if (clock_gettime(run_clock(thread), &ran) != 0) return {};
  const char state = state_letter(thread);
  // D: in the kernel's hands for a moment, for a page, say.
  return {.runnable = state == 'R' || state == 'D', .ran_ns = ns_of(ran)};
}

}  // namespace uwarp
