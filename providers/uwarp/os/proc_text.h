// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>

#include "os/engine_fds.h"
#include "os/raw_call.h"

namespace uwarp {

/// The beginning of a file of /proc, as text; "" if there is none.
struct ProcText {
  explicit ProcText(const char* path) {
    const EngineFd file(
        static_cast<int>(raw_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0)));
    const ssize_t got = file ? raw_call(SYS_read, file.get(), text, sizeof text - 1) : 0;
    text[got > 0 ? got : 0] = '\0';
  }
  char text[128];
};

}  // namespace uwarp
