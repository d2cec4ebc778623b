// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// IpAddress: conversions between text, sockaddr and the 16 bytes of a GID.
#include "net/ip_address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>

namespace uwarp {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

uint32_t parse_scope(const std::string& zone) {
  if (const unsigned index = if_nametoindex(zone.c_str()); index != 0) return index;
  return static_cast<uint32_t>(std::strtoul(zone.c_str(), nullptr, 10));
}

}  // namespace

IpAddress IpAddress::from_v4(in_addr address) {
  IpAddress result;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), result.bytes_.begin());
  std::memcpy(&result.bytes_[12], &address, sizeof address);
  return result;
}

IpAddress IpAddress::from_v6(const in6_addr& address, uint32_t scope_id) {
  return from_gid(address.s6_addr, scope_id);
}

IpAddress IpAddress::from_gid(const uint8_t* gid, uint32_t scope_id) {
  IpAddress result;
  std::memcpy(result.bytes_.data(), gid, kBytes);
  if (result.is_link_local()) result.scope_id_ = scope_id;
  return result;
}

std::optional<IpAddress> IpAddress::from_sockaddr(const sockaddr* address, socklen_t length) {
  if (address == nullptr || length < sizeof(sa_family_t)) return std::nullopt;
  // Copied out, because callers hand in bytes of any alignment.
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    return from_v4(in.sin_addr);
  }
  // The scope id at the end may be missing (RFC 2133 form).
  constexpr socklen_t kShortIn6 = offsetof(sockaddr_in6, sin6_scope_id);
  if (address->sa_family == AF_INET6 && length >= kShortIn6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, std::min<size_t>(length, sizeof in6));
    return from_v6(in6.sin6_addr, in6.sin6_scope_id);
  }
  return std::nullopt;
}

std::optional<IpAddress> IpAddress::from_string(const std::string& text) {
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return from_v4(v4);
  const size_t percent = text.find('%');
  in6_addr v6;
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &v6) != 1) return std::nullopt;
  const uint32_t scope = percent == std::string::npos ? 0 : parse_scope(text.substr(percent + 1));
  return from_v6(v6, scope);
}

bool IpAddress::is_v4() const {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes_.begin());
}

bool IpAddress::is_any() const {
  const auto first = is_v4() ? bytes_.begin() + 12 : bytes_.begin();
  return std::all_of(first, bytes_.end(), [](uint8_t byte) { return byte == 0; });
}

bool IpAddress::is_loopback() const {
  if (is_v4()) return bytes_[12] == 127;
  return bytes_[15] == 1 &&
         std::all_of(bytes_.begin(), bytes_.end() - 1, [](uint8_t byte) { return byte == 0; });
}

bool IpAddress::is_link_local() const { return bytes_[0] == 0xfe && (bytes_[1] & 0xc0) == 0x80; }

in_addr IpAddress::v4() const {
  in_addr result;
  std::memcpy(&result, &bytes_[12], sizeof result);
  return result;
}

in6_addr IpAddress::v6() const {
  in6_addr result;
  std::memcpy(&result, bytes_.data(), sizeof result);
  return result;
}

socklen_t IpAddress::to_sockaddr(sockaddr_storage& out, uint16_t port) const {
  out = {};
  if (!is_v4()) {
    const sockaddr_in6 in6 = to_sockaddr_in6(port);
    std::memcpy(&out, &in6, sizeof in6);
    return sizeof in6;
  }
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr = v4();
  std::memcpy(&out, &in, sizeof in);
  return sizeof in;
}

sockaddr_in6 IpAddress::to_sockaddr_in6(uint16_t port) const {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  in6.sin6_addr = v6();
  in6.sin6_scope_id = scope_id_;
  return in6;
}

std::string IpAddress::to_string() const {
  char text[INET6_ADDRSTRLEN];
  if (is_v4()) {
    const in_addr address = v4();
    return inet_ntop(AF_INET, &address, text, sizeof text);
  }
  const in6_addr address = v6();
  std::string result = inet_ntop(AF_INET6, &address, text, sizeof text);
  if (scope_id_ != 0) {
    char name[IF_NAMESIZE];
    result += '%';
    result += if_indextoname(scope_id_, name) ? std::string(name) : std::to_string(scope_id_);
  }
  return result;
}

uint16_t port_of(const sockaddr* address) {
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return 0;
  uint16_t port;  // At offset 2 in both families.
  std::memcpy(&port, reinterpret_cast<const char*>(address) + offsetof(sockaddr_in, sin_port),
              sizeof port);
  return ntohs(port);
}

uint16_t port_of(const sockaddr_storage& address) {
  return port_of(reinterpret_cast<const sockaddr*>(&address));
}

void set_port(sockaddr_storage& address, uint16_t port) {
  const uint16_t network_order = htons(port);
  std::memcpy(reinterpret_cast<char*>(&address) + offsetof(sockaddr_in, sin_port), &network_order,
              sizeof network_order);
}

IpAddress ip_of(const sockaddr_storage& address) {
  return IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof address)
      .value_or(IpAddress{});
}

}  // namespace uwarp
