// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What stands before the payload of a datagram between two uwarps, on a trunk or in a multicast
// group: docs/wire.md, "Datagrams". Layout only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/ids.h"

namespace uwarp {

/// Largest payload: that of the largest path MTU.
inline constexpr uint32_t kMaxDatagramBytes = 4096;

struct DatagramHeader {
  static constexpr size_t kWireSize = 24;
  enum Flag : uint8_t { kImmediate = 1, kSolicited = 2 };

  uint16_t payload_bytes = 0;
  uint8_t flags = 0;  // Flag; unknown bits are ignored
  uint8_t traffic_class = 0;
  Qpn destination;
  Qpn source;
  uint32_t qkey = 0;
  uint32_t immediate = 0;  // as the application gave it: network order
  uint8_t hop_limit = 0;

  void encode(std::byte* to) const {
    store_be16(to, payload_bytes);
    to[2] = std::byte{flags};
    to[3] = std::byte{traffic_class};
    store_be32(to + 4, destination.value);
    store_be32(to + 8, source.value);
    store_be32(to + 12, qkey);
    std::memcpy(to + 16, &immediate, sizeof immediate);
    to[20] = std::byte{hop_limit};
    std::memset(to + 21, 0, 3);
  }
  /// Any values when it comes from a peer.
  static DatagramHeader decode(const std::byte* from) {
    DatagramHeader header;
    header.payload_bytes = load_be16(from);
    header.flags = static_cast<uint8_t>(from[2]);
    header.traffic_class = static_cast<uint8_t>(from[3]);
    header.destination.value = load_be32(from + 4);
    header.source.value = load_be32(from + 8);
    header.qkey = load_be32(from + 12);
    std::memcpy(&header.immediate, from + 16, sizeof header.immediate);
    header.hop_limit = static_cast<uint8_t>(from[20]);
    return header;
  }
};

}  // namespace uwarp
