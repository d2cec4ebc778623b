// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A limit on how often something may happen: some times at once, later at a fixed rate. A value;
// time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace uwarp {

class RateLimit {
 public:
  /// `burst` times at once, then once per `interval_ns`. Every interval without use gives back one
  /// of the burst.
  constexpr RateLimit(uint32_t burst, uint64_t interval_ns)
      : interval_ns_(interval_ns), lead_ns_((burst - 1) * interval_ns) {}

  /// From when on it may happen again. A moment in the past: now.
  uint64_t next_ns() const { return spent_until_ns_ <= lead_ns_ ? 0 : spent_until_ns_ - lead_ns_; }
  bool allows(uint64_t now_ns) const { return next_ns() <= now_ns; }
  /// It has happened.
  void use(uint64_t now_ns) { spent_until_ns_ = std::max(spent_until_ns_, now_ns) + interval_ns_; }

 private:
  uint64_t interval_ns_;
  uint64_t lead_ns_;             // how far the account may run ahead of the time
  uint64_t spent_until_ns_ = 0;  // what has happened would have taken until then at the fixed rate
};

}  // namespace uwarp
