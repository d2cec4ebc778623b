// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/same_user.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "os/proc_text.h"

namespace uwarp {
namespace {

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
