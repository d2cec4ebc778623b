// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Giving numbers out and back.
#include "connect/rendezvous_ports.h"

#include <algorithm>
#include <utility>

#include "connect/rendezvous_port.h"

namespace uwarp {

Result<RendezvousPorts::Place> RendezvousPorts::reserve(ConnectContext& context,
                                                        const NetDevice& device) {
  const std::lock_guard guard(mutex_);
  for (const auto& port : ports_) {
    if (port->ifindex() != device.ifindex) continue;
    if (const auto number = port->take_number()) return Place{port, *number};
  }
  auto made = RendezvousPort::reserve(context, device);
  if (!made) return Error{made.error()};
  ports_.push_back(*made);
  return Place{*made, *(*made)->take_number()};
}

std::shared_ptr<RendezvousPort> RendezvousPorts::find(int ifindex, uint16_t port) {
  const std::lock_guard guard(mutex_);
  for (const auto& one : ports_)
    if (one->ifindex() == ifindex && one->port() == port) return one;
  return nullptr;
}

void RendezvousPorts::give_back(const Place& place) {
  std::shared_ptr<RendezvousPort> unused;  // closed after the lock
  const std::lock_guard guard(mutex_);
  if (!place.port->give_back(place.number)) return;
  // One that never listened stays for the next queue pair: those of rdma_cm come and go.
  const auto spare = [&](const auto& port) {
    return port->ifindex() == place.port->ifindex() && port->spare();
  };
  if (place.port->spare() && std::count_if(ports_.begin(), ports_.end(), spare) == 1) return;
  const auto found = std::find(ports_.begin(), ports_.end(), place.port);
  if (found == ports_.end()) return;
  unused = std::move(*found);
  ports_.erase(found);
}

}  // namespace uwarp
