// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The 40 bytes that stand before a datagram in the receive buffer: a GRH, whose place RoCE v2 gives
// to the IP header of the packet. An IPv6 header fills it, an IPv4 one (RFC 791 3.1) its last 20
// bytes. No packet had it; it is made by the receiver of what it knows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"

namespace uwarp {

class GlobalRouteHeader {
 public:
  static constexpr size_t kBytes = 40;
  using Gid = std::array<uint8_t, 16>;

  GlobalRouteHeader(const Gid& source, const Gid& destination)
      : v4_(is_v4(source) && is_v4(destination)) {
    if (v4_) {
      bytes_[kV4] = std::byte{0x45};         // version 4, five words
      store_be16(&bytes_[kV4 + 6], 0x4000);  // not to be fragmented
      bytes_[kV4 + 9] = kUdp;
      std::memcpy(&bytes_[kV4 + 12], &source[12], 4);
      std::memcpy(&bytes_[kV4 + 16], &destination[12], 4);
    } else {
      bytes_[6] = kUdp;
      std::memcpy(&bytes_[8], source.data(), source.size());
      std::memcpy(&bytes_[24], destination.data(), destination.size());
    }
  }

  /// For a datagram with so much payload.
  std::span<const std::byte> of(uint16_t payload_bytes, uint8_t traffic_class, uint8_t hop_limit) {
    const auto length = static_cast<uint16_t>(payload_bytes + kTransportBytes);
    if (v4_) {
      bytes_[kV4 + 1] = std::byte{traffic_class};
      store_be16(&bytes_[kV4 + 2], static_cast<uint16_t>(length + kBytes - kV4));
      bytes_[kV4 + 8] = std::byte{hop_limit};
      store_be16(&bytes_[kV4 + 10], 0);
      store_be16(&bytes_[kV4 + 10], checksum());
    } else {
      store_be32(bytes_.data(), 6u << 28 | uint32_t{traffic_class} << 20);
      store_be16(&bytes_[4], length);
      bytes_[7] = std::byte{hop_limit};
    }
    return bytes_;
  }

 private:
  static constexpr size_t kV4 = 20;
  static constexpr std::byte kUdp{17};
  // UDP, base and datagram transport headers, and the invariant CRC, as a packet would have them.
  static constexpr uint16_t kTransportBytes = 8 + 12 + 8 + 4;

  static bool is_v4(const Gid& gid) {
    return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
           gid[10] == 0xFF && gid[11] == 0xFF;
  }
  uint16_t checksum() const {
    uint32_t sum = 0;
    for (size_t at = kV4; at < kBytes; at += 2) sum += load_be16(&bytes_[at]);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<uint16_t>(~sum);
  }

  const bool v4_;
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace uwarp
