// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How two uwarps on one host agree to leave TCP: zero-length Writes whose STag and Tagged Offset no
// receiver checks (RFC 5040 5.1), so that a peer which does not know them ignores them. Described
// in docs/wire.md.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "protocol/wire/ddp_headers.h"

namespace uwarp {

struct CarrierMark {
  enum class Kind : uint8_t {
    kMailbox,  // "A process that can reach this name may send me a letter about shared memory" ...
    kNumber,   // "... which begins with this number, for this stream"
    kSwitch,   // "What follows comes through the memory"
  };
  static constexpr uint64_t kValueMask = (uint64_t{1} << 48) - 1;

  Kind kind = Kind::kMailbox;
  uint64_t value = 0;  // 48 bits

  /// ASCII "uwar", as where two uwarps recognise each other.
  static constexpr STag kStag{0x75776172};

  /// ASCII "o!", "t!" or "r!" in front of the value.
  TaggedOffset offset() const {
    constexpr uint64_t kNames[] = {0x6f21, 0x7421, 0x7221};
    return kNames[static_cast<size_t>(kind)] << 48 | (value & kValueMask);
  }
  /// Of a Write that has no payload.
  static std::optional<CarrierMark> decode(const TaggedHeader& header) {
    if (header.stag != kStag) return std::nullopt;
    for (const Kind kind : {Kind::kMailbox, Kind::kNumber, Kind::kSwitch}) {
      const CarrierMark mark{kind, header.to & kValueMask};
      if (mark.offset() == header.to) return mark;
    }
    return std::nullopt;
  }
};

}  // namespace uwarp
