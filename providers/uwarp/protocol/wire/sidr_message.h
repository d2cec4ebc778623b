// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two uwarps say to each other when an rdma_cm id of datagrams connects: InfiniBand's service
// ID resolution (SIDR), a request and a reply, each one UDP datagram. Layout: docs/wire.md,
// "Service ID resolution". Decode and encode only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace uwarp {

/// Version of both messages. A receiver answers other ones with kUnknownVersion.
inline constexpr uint8_t kSidrVersion = 1;
/// Application's bytes in a request and in a reply: as the kernel's rdma_cm takes them.
inline constexpr size_t kSidrRequestDataMax = 180;
inline constexpr size_t kSidrReplyDataMax = 136;

/// Values of ib_cm_sidr_status, which rdma_cm hands to the application as an event's status.
enum class SidrStatus : uint8_t {
  kSuccess = 0,
  kUnsupported = 1,  ///< nothing listens there
  kRejected = 2,
  kNoQueuePair = 3,
  kRedirected = 4,
  kUnknownVersion = 5,
};

/// Every request has this size, so that no reply is larger than its request: an attacker that
/// forges a victim's address must send more bytes to us than we send to the victim.
struct SidrRequest {
  static constexpr size_t kWireSize = 256;

  uint64_t transaction = 0;  ///< repetitions of a request have the same one
  uint16_t port_space = 0;   ///< rdma_ucm_port_space
  std::vector<std::byte> private_data{};

  /// At most kSidrRequestDataMax bytes of private data.
  std::array<std::byte, kWireSize> encode() const;
  /// Nothing if it is no whole request, or one of a version that is not known.
  static std::optional<SidrRequest> decode(std::span<const std::byte> bytes);
  /// The transaction of a whole request of another version, which is owed a reply.
  static std::optional<uint64_t> of_other_version(std::span<const std::byte> bytes);
};

struct SidrReply {
  static constexpr size_t kHeaderSize = 32;
  static constexpr size_t kMostWireSize = kHeaderSize + kSidrReplyDataMax;

  uint64_t transaction = 0;
  SidrStatus status = SidrStatus::kSuccess;
  uint32_t qp_number = 0;
  uint32_t qkey = 0;
  std::vector<std::byte> private_data{};

  /// At most kSidrReplyDataMax bytes of private data.
  std::vector<std::byte> encode() const;
  /// Nothing if it is no reply. A success of another version is kUnknownVersion.
  static std::optional<SidrReply> decode(std::span<const std::byte> bytes);
};
static_assert(SidrReply::kMostWireSize <= SidrRequest::kWireSize);

const char* describe(SidrStatus status);

}  // namespace uwarp
