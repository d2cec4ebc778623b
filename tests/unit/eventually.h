// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// For tests: waits for what another thread does.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "os/clock.h"

namespace uwarp {

/// Waits until `condition` holds, with a limit that only ends a test that hangs.
template <typename Condition>
bool eventually(Condition condition, int seconds = 20) {
  const uint64_t end = now_ns() + static_cast<uint64_t>(seconds) * kNsPerSecond;
  while (!condition()) {
    if (now_ns() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace uwarp
