// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The private data that both sides of an RPC-over-RDMA connection send when it is made, and what
// the two together mean. Sans-IO. RFC 8797 4 and 5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rpcrdma::core {

/// What one side announces: version 1, eight bytes.
struct PrivateData {
  static constexpr size_t kWireSize = 8;
  static constexpr uint32_t kIdentifier = 0xf6ab0e18;
  static constexpr uint8_t kVersion = 1;

  bool remote_invalidation = false;
  uint32_t send_size = 0;     ///< largest message that the sender of this sends, in bytes
  uint32_t receive_size = 0;  ///< largest one that it takes

  bool operator==(const PrivateData&) const = default;

  /// Returns the bytes written. 0: `room` has less than eight bytes, or a size is below the
  /// smallest that can be said; then no message is sent. Sizes are rounded down, and cut to the
  /// largest that can be said. RFC 8797 4.2.
  size_t encode(std::span<std::byte> room) const;

  /// The first valid message anywhere in what the peer sent, which may hold other layers' data as
  /// well. An unknown version, or a message that does not end in the buffer, is none. RFC 8797 5.2.
  static std::optional<PrivateData> find(std::span<const std::byte> bytes);
};

enum class Role { kClient, kServer };

/// What holds on one connection, for as long as it lives.
struct Agreement {
  uint32_t client_to_server = 0;  ///< largest message of the client, in bytes
  uint32_t server_to_client = 0;
  bool remote_invalidation = false;  ///< both sides announced it: replies may invalidate

  bool operator==(const Agreement&) const = default;
};

/// What a side counts as having announced when it announced nothing. RFC 8797 5.1.
PrivateData defaults();

/// `size` as it can be announced: whole kibibytes, from 1 to 256 of them.
uint32_t announceable(uint32_t size);

/// Settles what two announcements mean. RFC 8797 4.1, 4.2.
Agreement agree(Role own_role, const PrivateData& own, const std::optional<PrivateData>& peer);

}  // namespace rpcrdma::core
