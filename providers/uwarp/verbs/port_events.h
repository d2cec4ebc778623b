// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What becomes of an opened device's netdev, as asynchronous events: port active or in error, other
// addresses, and the device itself gone.
#pragma once

#include <memory>
#include <mutex>

#include "net/net_device.h"
#include "net/net_watch.h"

namespace uwarp {

class DeviceContext;

class PortEvents final : public NetListener {
 public:
  explicit PortEvents(DeviceContext& device);
  /// What the port is like now that its changes are told: not one of them.
  void begin(const NetDeviceTable& devices);
  /// The device is being closed: on return it is not used any more.
  void stop();
  void net_changed(const NetDeviceTable& devices) override;

 private:
  void remove_locked();
  void compare_locked(const std::shared_ptr<const NetDevice>& now);

  std::mutex mutex_;
  DeviceContext* device_;                  // null once stopped
  std::shared_ptr<const NetDevice> last_;  // as it was when it was seen last
  bool running_;                           // the port was said to be active
};

}  // namespace uwarp
