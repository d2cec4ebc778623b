// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "net/neighbour.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "net/datagram_socket.h"
#include "net/netlink_socket.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

/// The kernel answers within the call that asks. Empty when it does not.
std::vector<std::byte> answer_to(const std::vector<std::byte>& question) {
  constexpr size_t kMostBytes = 4096;  // a route or an entry has a few hundred
  const int fd = open_netlink_socket(0);
  if (fd < 0) return {};
  std::vector<std::byte> answer(kMostBytes);
  long got = syscall(SYS_sendto, fd, question.data(), question.size(), 0, nullptr, 0);
  if (got >= 0)
    got = syscall(SYS_recvfrom, fd, answer.data(), answer.size(), MSG_DONTWAIT, nullptr, nullptr);
  syscall(SYS_close, fd);
  answer.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return answer;
}

}  // namespace

std::optional<NextHop> neighbour_towards(const IpAddress& destination, const Route& route) {
  const auto devices = net_devices();
  if (route.device->loopback || devices->by_address(destination) != nullptr) return std::nullopt;
  const auto hop = next_hop_of(answer_to(route_question(destination, route.source)), destination);
  if (!hop) return std::nullopt;
  const auto device = devices->by_ifindex(hop->ifindex);
  return device != nullptr && !device->has_neighbours ? std::nullopt : hop;
}

NeighbourState neighbour_state(const NextHop& hop) {
  return neighbour_state_of(answer_to(neighbour_question(hop)));
}

bool ask_for_neighbour(const IpAddress& destination, const Route& route) {
  const DatagramSocket socket(destination.is_v4() ? AF_INET : AF_INET6);
  return socket.is_open() && socket.bind(route.source) && socket.connect(destination) &&
         socket.send_to_neighbour(destination.is_v4());
}

int open_neighbour_changes() {
  const int fd = open_netlink_socket(1u << (RTNLGRP_NEIGH - 1));
  return fd < 0 ? fd : adopt_engine_fd(fd);
}

}  // namespace uwarp
