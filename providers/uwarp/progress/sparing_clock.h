// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether a time has come, by a clock that may be a system call and is asked for only when the
// processor's counter says that it may have. Times in, decision out.
#pragma once

#include <cstdint>
#include <optional>

namespace uwarp {

/// Belongs to one thread at a time.
class SparingClock {
 public:
  /// The counter may be slower than it is taken for (rough_ns), by less than this factor.
  static constexpr uint64_t kSlowness = 4;

  /// The time if it is `when_ns` or later. `rough_ns` is the counter, `clock()` the time in ns. A
  /// counter that has gone back, on another core, asks for the clock as well.
  template <typename Clock>
  std::optional<uint64_t> reached(uint64_t when_ns, uint64_t rough_ns, Clock clock) {
    const bool looked = clock_ns_ != 0;
    if (looked && when_ns > clock_ns_ && rough_ns - rough_ns_ < (when_ns - clock_ns_) / kSlowness)
      return std::nullopt;
    rough_ns_ = rough_ns;
    clock_ns_ = clock();
    if (clock_ns_ < when_ns) return std::nullopt;
    return clock_ns_;
  }

 private:
  uint64_t rough_ns_ = 0;  // both at the last look at the clock
  uint64_t clock_ns_ = 0;
};

}  // namespace uwarp
