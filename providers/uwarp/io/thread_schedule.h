// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the scheduler has done to the calling thread so far.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <optional>

namespace uwarp {

/// How often it has taken the core away while the thread could have gone on; a yield to somebody
/// counts. Nullopt if the kernel does not tell.
inline std::optional<uint64_t> thread_switches() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return std::nullopt;
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

/// How long the thread has waited for a core while it could have gone on, in ns: the second figure
/// of schedstat in proc(5). Nullopt if the kernel does not tell. Three system calls, which make no
/// fd that others see for longer.
inline std::optional<uint64_t> thread_wait_ns() {
  const long fd =
      syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  char text[96];
  const long size = syscall(SYS_read, fd, text, sizeof text);
  syscall(SYS_close, fd);
  if (size <= 0) return std::nullopt;
  uint64_t run_ns = 0, wait_ns = 0;
  const auto run = std::from_chars(text, text + size, run_ns);
  if (run.ec != std::errc{} || run.ptr == text + size) return std::nullopt;
  const auto wait = std::from_chars(run.ptr + 1, text + size, wait_ns);
  if (wait.ec != std::errc{}) return std::nullopt;
  return wait_ns;
}

}  // namespace uwarp
