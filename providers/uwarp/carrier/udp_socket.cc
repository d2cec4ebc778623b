// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/udp_socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "os/raw_call.h"

namespace uwarp {
namespace {

/// Room for the one control message that is asked for; that of IPv6 is the larger one.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(in6_pktinfo))];
};

template <typename Value>
int set_udp_option(int fd, int level, int name, const Value& value) {
  return raw_status(SYS_setsockopt, fd, level, name, &value, sizeof value);
}

/// Datagrams per system call.
constexpr size_t kMostAtOnce = 32;

template <typename Info>
Info info_in(const cmsghdr& header) {
  Info info;
  std::memcpy(&info, CMSG_DATA(&header), sizeof info);
  return info;
}

void read_v4(const in_pktinfo& info, UdpPath& path) {
  // To a broadcast or multicast address: the other field is this host's own address.
  if (info.ipi_addr.s_addr != info.ipi_spec_dst.s_addr) return;
  auto& local = reinterpret_cast<sockaddr_in&>(path.local);
  local.sin_family = AF_INET;
  local.sin_addr = info.ipi_addr;
}

void read_v6(const in6_pktinfo& info, UdpPath& path) {
  if (IN6_IS_ADDR_MULTICAST(&info.ipi6_addr)) return;
  auto& local = reinterpret_cast<sockaddr_in6&>(path.local);
  local.sin6_family = AF_INET6;
  local.sin6_addr = info.ipi6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr))
    local.sin6_scope_id = path.interface = info.ipi6_ifindex;
}

template <typename Info>
void put_info(msghdr& message, int level, int type, const Info& info) {
  cmsghdr& header = *CMSG_FIRSTHDR(&message);
  header.cmsg_level = level;
  header.cmsg_type = type;
  header.cmsg_len = CMSG_LEN(sizeof info);
  // Not CMSG_DATA(): clang takes it for the end of `header`.
  std::memcpy(static_cast<std::byte*>(message.msg_control) + CMSG_LEN(0), &info, sizeof info);
  message.msg_controllen = CMSG_SPACE(sizeof info);
}

void put_source(msghdr& message, ControlBuffer& buffer, const UdpPath& path) {
  message.msg_control = &buffer;
  message.msg_controllen = sizeof buffer;
  if (path.local.ss_family == AF_INET) {
    in_pktinfo info{};
    info.ipi_spec_dst = reinterpret_cast<const sockaddr_in&>(path.local).sin_addr;
    put_info(message, IPPROTO_IP, IP_PKTINFO, info);
  } else {
    in6_pktinfo info{};
    info.ipi6_addr = reinterpret_cast<const sockaddr_in6&>(path.local).sin6_addr;
    info.ipi6_ifindex = path.interface;
    put_info(message, IPPROTO_IPV6, IPV6_PKTINFO, info);
  }
}

}  // namespace

Result<UdpSocket> UdpSocket::open(int family) {
  auto socket = TcpSocket::open_datagram(family);
  if (!socket) return Error{socket.error()};
  return UdpSocket(std::move(*socket));
}

int UdpSocket::join(const sockaddr_storage& group, int ifindex) {
  const bool v6 = group.ss_family == AF_INET6;
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  // Not what other sockets of this host have joined through other interfaces.
  (void)set_udp_option(fd(), level, v6 ? IPV6_MULTICAST_ALL : IP_MULTICAST_ALL, 0);
  group_req request{};
  request.gr_interface = static_cast<uint32_t>(ifindex);
  request.gr_group = group;
  return set_udp_option(fd(), level, MCAST_JOIN_GROUP, request);
}

int UdpSocket::send_through(int ifindex, uint8_t hop_limit, uint8_t traffic_class) {
  if (local_address().ss_family == AF_INET6) {
    (void)set_udp_option(fd(), IPPROTO_IPV6, IPV6_MULTICAST_HOPS, int{hop_limit});
    (void)set_udp_option(fd(), IPPROTO_IPV6, IPV6_TCLASS, int{traffic_class});
    return set_udp_option(fd(), IPPROTO_IPV6, IPV6_MULTICAST_IF, ifindex);
  }
  (void)set_udp_option(fd(), IPPROTO_IP, IP_MULTICAST_TTL, int{hop_limit});
  (void)set_udp_option(fd(), IPPROTO_IP, IP_TOS, int{traffic_class});
  ip_mreqn through{};
  through.imr_ifindex = ifindex;
  return set_udp_option(fd(), IPPROTO_IP, IP_MULTICAST_IF, through);
}

void UdpSocket::set_receive_buffer(int bytes) {
  (void)set_udp_option(fd(), SOL_SOCKET, SO_RCVBUF, bytes);
}

ssize_t UdpSocket::send_each(std::span<const std::byte> magic, std::span<const iovec> datagrams) {
  mmsghdr messages[kMostAtOnce]{};
  iovec parts[kMostAtOnce][2];
  const size_t count = std::min(datagrams.size(), kMostAtOnce);
  for (size_t i = 0; i < count; ++i) {
    parts[i][0] = {const_cast<std::byte*>(magic.data()), magic.size()};
    parts[i][1] = datagrams[i];
    messages[i].msg_hdr.msg_iov = parts[i];
    messages[i].msg_hdr.msg_iovlen = 2;
  }
  return raw_call(SYS_sendmmsg, fd(), messages, count, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool UdpSocket::wait_for_space(int timeout_ms) {
  pollfd wait{fd(), POLLOUT, 0};
  const timespec limit{timeout_ms / 1'000, timeout_ms % 1'000 * 1'000'000L};
  return syscall(SYS_ppoll, &wait, 1, &limit, nullptr, 0) > 0;
}

void UdpSocket::report_local_address() {
  const bool v6 = local_address().ss_family == AF_INET6;
  (void)set_udp_option(fd(), v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVPKTINFO : IP_PKTINFO, 1);
}

ssize_t UdpSocket::receive(std::span<std::byte> buffer, UdpPath& path) {
  path = {};
  iovec part{buffer.data(), buffer.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_name = &path.peer;
  message.msg_namelen = sizeof path.peer;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  const ssize_t length = raw_call(SYS_recvmsg, fd(), &message, MSG_DONTWAIT | MSG_TRUNC);
  if (length < 0) return length;
  // There is one at most; on an IPv6 socket also IPv4 datagrams have that of IPv6.
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO)
    read_v6(info_in<in6_pktinfo>(*header), path);
  else if (header != nullptr && header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO)
    read_v4(info_in<in_pktinfo>(*header), path);
  return length;
}

ssize_t UdpSocket::send(std::span<const std::byte> bytes, const UdpPath& path) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_storage*>(&path.peer);
  message.msg_namelen = address_length(path.peer);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (path.local.ss_family != AF_UNSPEC) put_source(message, control, path);
  return raw_call(SYS_sendmsg, fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace uwarp
