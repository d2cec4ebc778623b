// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Listens to the kernel's changes of links and addresses, publishes the new device table, and tells
// its listeners. One per engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "net/net_device.h"
#include "os/clock.h"
#include "progress/progress.h"

namespace uwarp {

// A scan of netdevs whose result is kept for a short time, so that it may be asked for often.

/// Thread-safe.
class CachedDeviceScan {
 public:
  static constexpr uint64_t kFreshNs = 20 * kNsPerMs;

  /// The table, which is at most kFreshNs old.
  std::shared_ptr<const NetDeviceTable> devices() {
    const uint64_t now = now_ns();
    if (fresh(now)) return net_devices();
    auto devices = refresh_net_devices();
    checked(now);
    return devices;
  }

  /// Whether the last scan, noted by checked(), is recent enough.
  bool fresh(uint64_t now) const { return now - checked_ns_.load() < kFreshNs; }
  void checked(uint64_t now) { checked_ns_.store(now); }

 private:
  std::atomic<uint64_t> checked_ns_{0};
};

/// Called by the thread that progresses, one call at a time, without locks of the engine.
class NetListener {
 public:
  virtual ~NetListener() = default;
  /// Something may have changed; `devices` is how it is now.
  virtual void net_changed(const NetDeviceTable& devices) = 0;
};

class NetWatch final : public Source {
 public:
  /// Starts listening. Without netlink nothing is ever told.
  static std::shared_ptr<NetWatch> start(Progress& progress);

  void add(std::weak_ptr<NetListener> listener);
  bool ready(uint32_t events) override;
  void deadline_passed() override;
  void out_of_memory() override { ask_again(); }

 private:
  explicit NetWatch(Progress& progress) : progress_(progress) {}
  void notify_locked() REQUIRES(notifying_);
  void ask_again();

  Progress& progress_;
  Mutex notifying_;  // before all other locks
  Mutex mutex_;      // leaf
  std::vector<std::weak_ptr<NetListener>> listeners_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
