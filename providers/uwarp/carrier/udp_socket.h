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

  /// A fresh one of AF_INET or AF_INET6.
  static Result<UdpSocket> open(int family);

  int fd() const { return socket_.fd(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  sockaddr_storage local_address() const { return socket_.local_address(); }
  sockaddr_storage remote_address() const { return socket_.remote_address(); }
  void close() { socket_.close(); }

  int bind(const sockaddr_storage& address) { return socket_.bind(address); }
  /// Other sockets that say so too may be bound to the same port; each gets what comes for a group
  /// that it has joined. Before bind().
  void share_port() { socket_.set_reuse_address(true); }
  /// Takes what is sent to `group` through this interface. 0 or an errno.
  int join(const sockaddr_storage& group, int ifindex);
  /// What goes to a multicast group goes through this interface, and comes back to sockets of this
  /// host that have joined it. `hop_limit`, `traffic_class`: of those. 0 or an errno.
  int send_through(int ifindex, uint8_t hop_limit, uint8_t traffic_class);
  void set_receive_buffer(int bytes);
  /// Only datagrams of `peer` come in from now on; send() goes there. 0 or an errno.
  int connect(const sockaddr_storage& peer) { return socket_.connect(peer); }
  /// receive() tells the local address of what comes from now on.
  void report_local_address();

  /// The next datagram; its whole length, of which no more than `buffer` was stored. -EAGAIN: none;
  /// -ECONNREFUSED: the peer of a connected socket has no such port. One that came to a broadcast
  /// or multicast address has a `path` without a local address.
  ssize_t receive(std::span<std::byte> buffer, UdpPath& path);
  /// Bytes sent or a negative errno.
  ssize_t send(std::span<const std::byte> bytes, const UdpPath& path);
  /// Several datagrams of a connected socket, `magic` in front of each: how many were sent, or a
  /// negative errno for none.
  ssize_t send_each(std::span<const std::byte> magic, std::span<const iovec> datagrams);
  /// Waits until there is room to send. False: there was none within `timeout_ms`.
  bool wait_for_space(int timeout_ms);
  ssize_t send(std::span<const std::byte> bytes) {
    return socket_.send(bytes.data(), bytes.size());
  }

 private:
  TcpSocket socket_;
};

}  // namespace uwarp
