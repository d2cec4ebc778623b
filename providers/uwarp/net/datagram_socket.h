// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A UDP socket for questions about the way to an address. Raw system calls only: under a preloaded
// socket() wrapper this must stay a kernel socket.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "net/ip_address.h"

namespace uwarp {

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

  /// To the discard port. Sends nothing.
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

  /// Sends an empty datagram that no router passes on.
  bool send_to_neighbour(bool v4) const {
    const int hops = 1;
    return syscall(SYS_setsockopt, fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                   v4 ? IP_TTL : IPV6_UNICAST_HOPS, &hops, sizeof hops) == 0 &&
           syscall(SYS_sendto, fd_, nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) == 0;
  }

 private:
  static constexpr uint16_t kDiscardPort = 9;

  int fd_;
};

}  // namespace uwarp
