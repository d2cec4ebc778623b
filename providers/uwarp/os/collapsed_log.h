// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Log lines of one kind that any host can cause, as often as it connects: the first ones are
// written, later ones once per interval and with the number of those that were left out.
#pragma once

#include <cstdint>
#include <optional>

#include "base/process_lock.h"
#include "base/rate_limit.h"

namespace uwarp {

/// One for each kind of line: a static variable at the place where it is written. Any thread.
class CollapsedLog {
 public:
  /// A user who looks for the fault of one application finds its few lines whole. A peer that
  /// connects thousands of times a second for a day adds a megabyte.
  static constexpr uint32_t kBurst = 8;
  static constexpr uint64_t kIntervalNs = 10'000'000'000;

  /// As log_event().
  void event(const char* format, ...) __attribute__((format(printf, 2, 3)));

  /// Whether a line is written now: how many were left out before it; nullopt: it is left out.
  std::optional<uint64_t> note(uint64_t now_ns);

 private:
  ProcessLock lock_;
  RateLimit limit_{kBurst, kIntervalNs};
  uint64_t left_out_ = 0;
};

}  // namespace uwarp
