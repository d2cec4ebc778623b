// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the socket options mean here. SO_REUSEADDR is what a port needs on both sides so that old
// connections do not keep it from a new listener. Two sockets that have it may also be bound twice
// while neither listens, so a socket that only holds its port gives the option up again.
// SO_REUSEPORT is what both sockets of a shared port have; one that listens must not have it, or a
// second listener would get a part of its connections.
#include "connect/bound_port.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "net/ip_address.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

Result<TcpSocket> try_to_bind(const sockaddr_storage& address, const BindOptions& options,
                              bool beside_connections) {
  auto socket = options.datagram ? TcpSocket::open_datagram(address.ss_family)
                                 : TcpSocket::open(address.ss_family);
  if (!socket) return socket;
  if (address.ss_family == AF_INET6 && options.v6_only) socket->set_v6_only(*options.v6_only);
  socket->set_tos(options.tos);
  socket->set_reuse_port(options.shared);
  socket->set_reuse_address(beside_connections);
  if (const int error = socket->bind(address)) return Error{error};
  socket->set_reuse_address(false);
  return socket;
}

}  // namespace

Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options) {
  // First without SO_REUSEADDR: the kernel looks at every socket of a port only if the first one
  // that was bound to it did not have it.
  auto socket = try_to_bind(address, options, false);
  if (socket || socket.error() != EADDRINUSE) return socket;
  return try_to_bind(address, options, true);
}

bool application_has_udp_port(uint16_t port) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  // Some milliseconds at most, and only for a port that is taken.
  constexpr rlim_t kMostLooked = 65'536;
  const int end = static_cast<int>(std::min(files.rlim_cur, kMostLooked));
  for (int fd = 0; fd < end; ++fd) {
    int type = 0;
    socklen_t length = sizeof type;
    if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
        type != SOCK_DGRAM || is_engine_fd(fd))
      continue;
    sockaddr_storage bound{};
    length = sizeof bound;
    if (syscall(SYS_getsockname, fd, &bound, &length) == 0 && port_of(bound) == port) return true;
  }
  return false;
}

void share_port(TcpSocket& bound) { bound.set_reuse_port(true); }

void use_port(TcpSocket& bound) {
  bound.set_reuse_port(false);
  bound.set_reuse_address(true);
}

}  // namespace uwarp
