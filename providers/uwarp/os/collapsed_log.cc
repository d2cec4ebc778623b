// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/collapsed_log.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "os/clock.h"

namespace uwarp {

std::optional<uint64_t> CollapsedLog::note(uint64_t now_ns) {
  // A thread that finds it taken has come at the same moment as another: one line is enough.
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (!guard) return std::nullopt;
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

}  // namespace uwarp
