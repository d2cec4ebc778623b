// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Datagrams of a UDP socket of the engine, and the addresses that they come from and go to. Raw
// system calls only, as in TcpSocket.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "carrier/tcp_socket.h"

namespace uwarp {

/// The two ends of a datagram, in the socket's family.
struct UdpPath {
  sockaddr_storage peer{};
  /// The address of this host at which it came in, without a port; AF_UNSPEC: unknown. A reply
  /// leaves from there, which on a socket that is bound to a wildcard is not a matter of course.
  sockaddr_storage local{};
  uint32_t interface = 0;  ///< of a link-local `local`
};

/// Move-only. Any thread: each call is one system call.
class UdpSocket {
 public:
  UdpSocket() = default;
  /// Takes a socket of TcpSocket::open_datagram(), which is bound.
  explicit UdpSocket(TcpSocket bound) : socket_(std::move(bound)) {}

  int fd() const { return socket_.fd(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  sockaddr_storage local_address() const { return socket_.local_address(); }
  sockaddr_storage remote_address() const { return socket_.remote_address(); }
  void close() { socket_.close(); }

  /// Only datagrams of `peer` come in from now on; send() goes there. 0 or an errno.
  int connect(const sockaddr_storage& peer) { return socket_.connect(peer); }
  /// receive() tells the local address of what comes from now on.
  void tell_local_address();

  /// The next datagram; its whole length, of which no more than `room` was stored. -EAGAIN: none;
  /// -ECONNREFUSED: the peer of a connected socket has no such port. One that came to a broadcast
  /// or multicast address has a `path` without a local address.
  ssize_t receive(std::span<std::byte> room, UdpPath& path);
  /// Bytes sent or a negative errno.
  ssize_t send(std::span<const std::byte> bytes, const UdpPath& path);
  ssize_t send(std::span<const std::byte> bytes) {
    return socket_.send(bytes.data(), bytes.size());
  }

 private:
  TcpSocket socket_;
};

}  // namespace uwarp
