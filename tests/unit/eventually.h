// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Waiting in tests for what another thread does.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "os/clock.h"

namespace uwarp {

/// Waits for `condition` with a hang guard.
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
