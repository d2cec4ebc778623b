// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Socket addresses of commands.
#include "kernel/cm_address.h"

#include <netinet/in.h>

#include <cstring>

#include "base/settings.h"

namespace uwarp {
size_t size_of_address(const sockaddr_storage& address) {
  switch (address.ss_family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case kAfIb:
      return sizeof(SockaddrIb);
    default:
      return 0;
  }
}

bool read_address(const void* bytes, size_t length, sockaddr_storage& out) {
  out = {};
  if (length > sizeof out) return false;
  std::memcpy(&out, bytes, length);
  const size_t size = size_of_address(out);
  return size != 0 && length >= size;
}

void copy_gid(uint8_t (&gid)[16], const sockaddr_storage& address) {
  if (address.ss_family == AF_INET || address.ss_family == AF_INET6)
    std::memcpy(gid, ip_of(address).bytes().data(), sizeof gid);
}

void set_port(sockaddr_storage& address, uint16_t port) {
  // At the same place in both families.
  const uint16_t network_order = htons(port);
  std::memcpy(reinterpret_cast<char*>(&address) + offsetof(sockaddr_in, sin_port), &network_order,
              sizeof network_order);
}

sockaddr_storage unmapped(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6 || !ip_of(address).is_v4()) return address;
  sockaddr_storage out;
  ip_of(address).to_sockaddr(out, port_of(address));
  return out;
}

std::optional<sockaddr_storage> with_port_moved(sockaddr_storage address, int offset) {
  if (offset == 0 || port_of(address) == 0) return address;
  const int port = port_of(address) + offset;
  if (port < 1 || port > 65535) return std::nullopt;
  set_port(address, static_cast<uint16_t>(port));
  return address;
}

std::optional<sockaddr_storage> to_tcp(const sockaddr_storage& address) {
  return with_port_moved(address, settings().port_offset);
}

std::optional<sockaddr_storage> from_tcp(const sockaddr_storage& address) {
  return with_port_moved(address, -settings().port_offset);
}

}  // namespace uwarp
