// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a uwarp tells another which of its messages have been delivered: a zero-length Write whose
// STag and Tagged Offset no receiver checks (RFC 5040 5.1), so that a peer which does not know it
// ignores it. Described in docs/wire.md.
#pragma once

#include <optional>

#include "base/ids.h"
#include "protocol/wire/ddp_headers.h"

namespace uwarp {

/// "All your messages on queue 0 up to this one have been delivered."
struct DeliveredMark {
  Msn msn;
  /// "... and the next one waits for a receive: all that came before it has been placed." What an
  /// RNR NAK of InfiniBand says; the answer to a Read behind that message cannot come now.
  bool next_waits = false;

  /// ASCII "uwar", as where two uwarps recognise each other.
  static constexpr STag kStag{0x75776172};
  /// ASCII "d!" or "w!", then 16 bits of zero; the MSN follows in the lower 32 bits.
  static constexpr TaggedOffset kOffset = 0x6421'0000'0000'0000;
  static constexpr TaggedOffset kWaitsOffset = 0x7721'0000'0000'0000;

  TaggedOffset offset() const { return (next_waits ? kWaitsOffset : kOffset) | msn.value; }
  /// Of a Write that has no payload.
  static std::optional<DeliveredMark> decode(const TaggedHeader& header) {
    const TaggedOffset kind = header.to & ~TaggedOffset{UINT32_MAX};
    if (header.stag != kStag || (kind != kOffset && kind != kWaitsOffset)) return std::nullopt;
    return DeliveredMark{Msn{static_cast<uint32_t>(header.to)}, kind == kWaitsOffset};
  }
};

}  // namespace uwarp
