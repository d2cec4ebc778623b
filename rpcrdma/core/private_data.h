// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The private data that both sides of an RPC-over-RDMA connection send when it is made, and what
// the two together mean. Sans-IO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rpcrdma::core {

/// What one side announces: version 1, eight bytes, the same for both. RFC 8797-4-c/e/f/j.
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
  /// largest that can be said. Reserved bits are zero. RFC 8797-4-d/g/i, 8797-4.2-b.
  size_t encode(std::span<std::byte> room) const;

  /// The first valid message anywhere in what the peer sent, which may hold other layers' data as
  /// well. An unknown version, or one that is cut off, is none. RFC 8797-5.2-a/b/c/d/e, 8797-6-a.
  static std::optional<PrivateData> find(std::span<const std::byte> bytes);
};

enum class Role { kClient, kServer };

/// What holds on one connection, for as long as it lives. RFC 8797-4-b.
struct Agreement {
  uint32_t client_to_server = 0;  ///< largest message of the client, in bytes
  uint32_t server_to_client = 0;
  bool remote_invalidation = false;  ///< both sides announced it: replies may invalidate

  bool operator==(const Agreement&) const = default;
};

/// What a side counts as having announced when it announced nothing. RFC 8797-3.1-a, 8797-5.1-a.
PrivateData defaults();

/// `size` as it can be announced: whole kibibytes, from 1 to 256 of them. RFC 8797-4.2-a.
uint32_t announceable(uint32_t size);

/// Settles what two announcements mean: the smaller sizes. RFC 8797-3.2-a, 8797-4.2-d/e.
Agreement agree(Role own_role, const PrivateData& own, const std::optional<PrivateData>& peer);

}  // namespace rpcrdma::core
