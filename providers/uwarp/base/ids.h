// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Strong types for the numbers that name things on the wire, so that they cannot be mixed up.
// Host byte order only; protocol/wire/ stores them in messages.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace uwarp {

/// Steering tag: names a tagged buffer. RFC 5041 4.2.
struct STag {
  uint32_t value = 0;
  friend constexpr bool operator==(STag, STag) = default;
};

/// Message sequence number of one untagged queue: the first message has 1, and 0 follows
/// 0xFFFFFFFF. RFC 5041-4.3-e/f/g.
struct Msn {
  uint32_t value = 1;
  friend constexpr bool operator==(Msn, Msn) = default;
  /// The number of the message that follows on the same queue.
  constexpr Msn next() const { return Msn{value + 1u}; }
  constexpr Msn previous() const { return Msn{value - 1u}; }
  /// This message comes after `other`: numbers wrap, and never are 2^31 messages under way.
  constexpr bool after(Msn other) const { return static_cast<int32_t>(value - other.value) > 0; }
};

/// Untagged DDP queues used by RDMAP. RFC 5040 4.1, RFC 7306 10.2.
enum class QueueNumber : uint32_t {
  kSend = 0,
  kReadRequest = 1,
  kTerminate = 2,
  kAtomicResponse = 3,
};
/// From here on queue numbers name XRC shared receive queues (docs/wire.md).
inline constexpr uint32_t kFirstSharedQueue = 16;

/// Byte offset inside a tagged buffer. Plain, because all 64-bit arithmetic on it is wanted.
using TaggedOffset = uint64_t;

/// Queue pair number as applications see it (24 bits).
struct Qpn {
  uint32_t value = 0;
  friend constexpr auto operator<=>(Qpn, Qpn) = default;
};

}  // namespace uwarp

template <>
struct std::hash<uwarp::STag> {
  size_t operator()(uwarp::STag stag) const noexcept { return std::hash<uint32_t>{}(stag.value); }
};
