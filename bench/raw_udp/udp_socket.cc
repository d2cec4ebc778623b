// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "raw_udp/udp_socket.h"

#include <sys/socket.h>

#include "ends/process.h"

namespace uwarp::bench {
namespace {

constexpr int kReceiveBytes = 4 << 20;

}  // namespace

int make_udp_socket(const sockaddr_in& own) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) die("bind");
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBytes, sizeof kReceiveBytes) != 0) {
    die("SO_RCVBUF");
  }
  return fd;
}

sockaddr_in any_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr_in own_address(int fd) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) die("getsockname");
  return own;
}

void connect_udp(int fd, const sockaddr_in& peer) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0) die("connect");
}

}  // namespace uwarp::bench
