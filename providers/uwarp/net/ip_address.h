// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// An IP address as the engine keeps it: the 16 bytes of an IPv6 address (IPv4 in its mapped form,
// RFC 4291 2.5.5.2) and the zone of a link-local one. The same 16 bytes are the device's GID.
// A value type; knows nothing of sockets or devices.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

namespace uwarp {

class IpAddress {
 public:
  static constexpr size_t kBytes = 16;
  using Bytes = std::array<uint8_t, kBytes>;

  /// The unspecified IPv6 address `::`.
  constexpr IpAddress() = default;

  static IpAddress from_v4(in_addr address);
  /// `scope_id` is kept for link-local addresses only, so that equal addresses compare equal.
  static IpAddress from_v6(const in6_addr& address, uint32_t scope_id = 0);
  /// The 16 bytes of a GID; `scope_id` is the interface for link-local ones.
  static IpAddress from_gid(const uint8_t* gid, uint32_t scope_id = 0);
  /// AF_INET or AF_INET6; nullopt for any other family or a length that is too short.
  static std::optional<IpAddress> from_sockaddr(const sockaddr* address, socklen_t length);
  /// Numeric text, `fe80::1%eth0` included; nullopt when it is none.
  static std::optional<IpAddress> from_string(const std::string& text);

  bool is_v4() const;
  bool is_v6() const { return !is_v4(); }
  /// `0.0.0.0` or `::`.
  bool is_any() const;
  bool is_loopback() const;
  /// fe80::/10. 169.254/16 is treated as an ordinary address: it needs no zone.
  bool is_link_local() const;

  const Bytes& bytes() const { return bytes_; }
  uint32_t scope_id() const { return scope_id_; }
  /// The last four bytes; only meaningful when is_v4().
  in_addr v4() const;
  in6_addr v6() const;

  /// Writes an AF_INET address for a mapped one, else AF_INET6; returns its length in bytes.
  /// `port` is in host order.
  socklen_t to_sockaddr(sockaddr_storage& out, uint16_t port) const;
  /// Always AF_INET6 (an AF_INET6 socket wants mapped addresses in this form).
  sockaddr_in6 to_sockaddr_in6(uint16_t port) const;
  std::string to_string() const;

  friend bool operator==(const IpAddress&, const IpAddress&) = default;
  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;

 private:
  Bytes bytes_{};
  uint32_t scope_id_ = 0;
};

/// The port of an AF_INET or AF_INET6 address in host order, 0 for any other family.
uint16_t port_of(const sockaddr* address);
uint16_t port_of(const sockaddr_storage& address);
/// Of an AF_INET or AF_INET6 address; in host order.
void set_port(sockaddr_storage& address, uint16_t port);
/// The address of a storage as sockets give it; the one that is_any() for any other family.
IpAddress ip_of(const sockaddr_storage& address);

}  // namespace uwarp

template <>
struct std::hash<uwarp::IpAddress> {
  size_t operator()(const uwarp::IpAddress& address) const noexcept {
    uint64_t halves[2];
    std::memcpy(halves, address.bytes().data(), sizeof halves);
    return static_cast<size_t>((halves[0] * 0x9e3779b97f4a7c15u) ^
                               (halves[1] + address.scope_id()));
  }
};
