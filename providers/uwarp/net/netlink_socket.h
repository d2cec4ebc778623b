// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A non-blocking rtnetlink socket. Raw system calls: a preloaded socket() wrapper must not see the
// engine's own sockets.
#pragma once

#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace uwarp {

/// `groups`: RTMGRP_* bits of the notifications it receives. The fd, or -1 and errno.
inline int open_netlink_socket(uint32_t groups) {
  const int fd = static_cast<int>(
      syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (fd < 0) return -1;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (syscall(SYS_bind, fd, &address, sizeof address) == 0) return fd;
  const int error = errno;
  syscall(SYS_close, fd);
  errno = error;
  return -1;
}

}  // namespace uwarp
