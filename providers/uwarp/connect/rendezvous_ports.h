// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The rendezvous ports of this process, from which queue pairs have their numbers.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "net/net_device.h"

namespace uwarp {

class RendezvousPort;
struct ConnectContext;

/// Any thread. Its lock goes before that of a port.
class RendezvousPorts {
 public:
  struct Place {
    std::shared_ptr<RendezvousPort> port;
    Qpn number;
  };
  /// A free number on `device`. Errors: EADDRINUSE (no port in UWARP_PORT_RANGE), EMFILE, ENOMEM.
  Result<Place> reserve(ConnectContext& context, const NetDevice& device);
  void give_back(const Place& place);
  /// The port with this number on the device, while a queue pair has a number on it; else null.
  std::shared_ptr<RendezvousPort> find(int ifindex, uint16_t port);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<RendezvousPort>> ports_;
};

}  // namespace uwarp
