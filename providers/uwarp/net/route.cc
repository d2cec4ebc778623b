// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// find_route: the kernel itself chooses the source address, by connecting a datagram socket
// (nothing is sent).
#include <cerrno>

#include "net/datagram_socket.h"
#include "net/net_device.h"

namespace uwarp {
namespace {

std::optional<IpAddress> source_towards(const IpAddress& destination,
                                        const std::optional<IpAddress>& source) {
  const DatagramSocket socket(destination.is_v4() ? AF_INET : AF_INET6);
  if (!socket.is_open()) return std::nullopt;
  if (source && !source->is_any() && !socket.bind(*source)) return std::nullopt;
  if (!socket.connect(destination)) return std::nullopt;
  return socket.local_address();
}

std::shared_ptr<const NetDevice> owner_of(const IpAddress& address) {
  if (auto device = net_devices()->by_address(address)) return device;
  return refresh_net_devices()->by_address(address);
}

}  // namespace

std::optional<Route> find_route(const IpAddress& destination,
                                const std::optional<IpAddress>& source) {
  if (source && !source->is_any() && source->is_v4() != destination.is_v4()) {
    errno = EAFNOSUPPORT;
    return std::nullopt;
  }
  const auto local = source_towards(destination, source);
  if (!local) return std::nullopt;
  auto device = owner_of(*local);
  if (!device) {
    errno = ENODEV;
    return std::nullopt;
  }
  return Route{*local, std::move(device)};
}

}  // namespace uwarp
