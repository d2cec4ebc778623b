// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// find_route: the kernel itself chooses the source address, by connecting a datagram socket
// (nothing is sent).
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "net/net_device.h"

namespace uwarp {
namespace {

/// Any port will do: no packet leaves.
constexpr uint16_t kDiscardPort = 9;

/// Raw system calls only: under a preloaded socket() wrapper this must stay a kernel socket.
class DatagramSocket {
 public:
  explicit DatagramSocket(int family)
      : fd_(static_cast<int>(syscall(SYS_socket, family, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {}
  ~DatagramSocket() {
    const int saved = errno;
    if (fd_ >= 0) syscall(SYS_close, fd_);
    errno = saved;
  }
  DatagramSocket(const DatagramSocket&) = delete;
  DatagramSocket& operator=(const DatagramSocket&) = delete;

  bool is_open() const { return fd_ >= 0; }

  bool bind(const IpAddress& address) const {
    sockaddr_storage storage;
    const socklen_t length = address.to_sockaddr(storage, 0);
    return syscall(SYS_bind, fd_, &storage, length) == 0;
  }

  bool connect(const IpAddress& address) const {
    sockaddr_storage storage;
    const socklen_t length = address.to_sockaddr(storage, kDiscardPort);
    return syscall(SYS_connect, fd_, &storage, length) == 0;
  }

  std::optional<IpAddress> local_address() const {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (syscall(SYS_getsockname, fd_, &storage, &length) != 0) return std::nullopt;
    return IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage), length);
  }

 private:
  int fd_;
};

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
