// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Listens to the kernel's changes of links and addresses, publishes the new device table, and tells
// its listeners. One per engine.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "net/net_device.h"
#include "progress/progress.h"

namespace uwarp {

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
  void tell_locked();
  void ask_again();
  std::vector<std::shared_ptr<NetListener>> listeners();

  Progress& progress_;
  std::mutex telling_;  // before all other locks
  std::mutex mutex_;    // leaf
  std::vector<std::weak_ptr<NetListener>> listeners_;
};

}  // namespace uwarp
