// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/same_user.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "os/engine_fds.h"
#include "os/raw_call.h"

namespace uwarp {
namespace {

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

uid_t overflow_uid() {
  constexpr uid_t kUsual = 65534;
  const ProcText file("/proc/sys/kernel/overflowuid");
  return file.text[0] != '\0' ? static_cast<uid_t>(std::strtoul(file.text, nullptr, 10)) : kUsual;
}

bool every_user_has_a_number() {
  const ProcText map("/proc/self/uid_map");
  unsigned first = 1, outside = 1, count = 0;
  return std::sscanf(map.text, "%u %u %u", &first, &outside, &count) == 3 && first == 0 &&
         count == ~0u;
}

}  // namespace

bool is_own_user(uid_t uid) {
  return uid == geteuid() && (uid != overflow_uid() || every_user_has_a_number());
}

}  // namespace uwarp
