// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The kernel's answers to RDMA netlink (rdma/rdma_netlink.h). One question has an answer: whether
// fork() copies registered memory, which libibverbs asks before it marks each region by madvise().
// Regions of ours are ordinary memory, so it does. All other commands are refused: libibverbs then
// turns to sysfs, which shows our devices and real ones.
#pragma once

#include <linux/netlink.h>
#include <sys/socket.h>

namespace uwarp_preload {

/// What is opened in place of NETLINK_RDMA. The kernel delivers its messages between processes, and
/// refuses those to itself.
inline constexpr int kStandsForRdmaNetlink = NETLINK_USERSOCK;

/// True for a command to the kernel on such a socket.
bool is_rdma_command(int fd, const msghdr& message);
inline bool goes_to_rdma_netlink(int fd, const msghdr& message) {
  return message.msg_namelen == sizeof(sockaddr_nl) && message.msg_name != nullptr &&
         static_cast<const sockaddr*>(message.msg_name)->sa_family == AF_NETLINK &&
         is_rdma_command(fd, message);
}

/// sendmsg() of a command: the answer can be read from `fd` on return.
ssize_t answer_rdma_netlink(int fd, const msghdr& message);

}  // namespace uwarp_preload
