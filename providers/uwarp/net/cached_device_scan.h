// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A scan of netdevs whose result is kept for a short time, so that it may be asked for often.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "net/net_device.h"
#include "os/clock.h"

namespace uwarp {

/// Thread-safe.
class CachedDeviceScan {
 public:
  static constexpr uint64_t kFreshNs = 20 * kNsPerMs;

  /// The table, which is at most kFreshNs old.
  std::shared_ptr<const NetDeviceTable> devices() {
    const uint64_t now = now_ns();
    if (fresh(now)) return net_devices();
    auto devices = refresh_net_devices();
    looked(now);
    return devices;
  }

  /// Whether the last scan, noted by looked(), is recent enough.
  bool fresh(uint64_t now) const { return now - looked_ns_.load() < kFreshNs; }
  void looked(uint64_t now) { looked_ns_.store(now); }

 private:
  std::atomic<uint64_t> looked_ns_{0};
};

}  // namespace uwarp
