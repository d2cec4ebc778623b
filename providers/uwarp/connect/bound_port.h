// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A port that an rdma_cm id has bound and does not use yet. The bound socket is its entry in the
// host's table of ports, as the kernel's rdma_cm keeps one for all processes of a network
// namespace.
#pragma once

#include <sys/socket.h>

#include <optional>

#include "base/result.h"
#include "carrier/tcp_socket.h"

namespace uwarp {

struct BindOptions {
  bool shared = false;          ///< others that are shared too may bind the same port
  std::optional<bool> v6_only;  ///< nullopt: net.ipv6.bindv6only
  bool datagram = false;        ///< a UDP port
  uint16_t port_space = 0;      ///< rdma_ucm_port_space, which requests for a UDP port name
  int tos = -1;                 ///< -1: system default
};

/// Binds without listening (port 0: the kernel picks one, see local_address()). Until use_port() no
/// other bind_port() of this host takes the same address and port, nor a wildcard and that port,
/// unless both are shared. Connections that an earlier user of the port has left do not count.
/// Errors: EADDRINUSE, EADDRNOTAVAIL, EACCES, EAFNOSUPPORT, EMFILE.
Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options);

/// True if a UDP socket of the application's own, in this process, has the port. The rdma_cm of a
/// kernel has ports of its own, and rsockets bind an id of datagrams to the port that their UDP
/// socket has.
bool application_has_udp_port(uint16_t port);

/// From now on other sockets that are shared too may bind the port.
void share_port(TcpSocket& bound);

/// To be called before the socket listens or connects, so that its connections do not keep a later
/// socket from binding the port.
void use_port(TcpSocket& bound);

}  // namespace uwarp
