// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// System calls without libc's functions for them: preloaded ones must not see what the engine does,
// and a poller that is cancelled must not end in one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace uwarp {

/// Repeats an interrupted call; the result or the negative errno.
template <typename... Args>
ssize_t raw_call(long number, Args... args) {
  for (;;) {
    const long result = syscall(number, args...);
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

/// The same for calls whose result is only success: 0 or the errno.
template <typename... Args>
int raw_status(long number, Args... args) {
  return static_cast<int>(std::max<ssize_t>(0, -raw_call(number, args...)));
}

}  // namespace uwarp
