// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two uwarps say to each other by Writes without bytes, which any other peer drops: the key
// names the kind, the offset is what it says.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/adapter_profile.h"
#include "base/ids.h"
#include "protocol/wire/ddp_headers.h"

namespace uwarp {

// How two uwarps on one host agree to leave TCP: zero-length Writes whose STag and Tagged Offset no
// receiver checks (RFC 5040 5.1), so that a peer which does not know them ignores them. Described
// in docs/wire.md.
struct CarrierWrite {
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
  static std::optional<CarrierWrite> decode(const TaggedHeader& header) {
    if (header.stag != kStag) return std::nullopt;
    for (const Kind kind : {Kind::kMailbox, Kind::kNumber, Kind::kSwitch}) {
      const CarrierWrite write{kind, header.to & kValueMask};
      if (write.offset() == header.to) return write;
    }
    return std::nullopt;
  }
};

// How a uwarp tells another which of its messages have been delivered: a zero-length Write whose
// STag and Tagged Offset no receiver checks (RFC 5040 5.1), so that a peer which does not know it
// ignores it. Described in docs/wire.md.

/// "All your messages on queue 0 up to this one have been delivered."
struct DeliveredWrite {
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
  static std::optional<DeliveredWrite> decode(const TaggedHeader& header) {
    const TaggedOffset kind = header.to & ~TaggedOffset{UINT32_MAX};
    if (header.stag != kStag || (kind != kOffset && kind != kWaitsOffset)) return std::nullopt;
    return DeliveredWrite{Msn{static_cast<uint32_t>(header.to)}, kind == kWaitsOffset};
  }
};

// How a uwarp that has a wire ordered (UWARP_FAULT) tells another so: a zero-length Write that no
// receiver checks, as above. Described in docs/wire.md.

/// "What I send is as late as my wire makes it: delay it no further."
struct WireWrite {
  /// ASCII "uwar", as where two uwarps recognise each other.
  static constexpr STag kStag{0x75776172};
  /// ASCII "l!", then 48 bits of zero.
  static constexpr TaggedOffset kOffset = 0x6c21'0000'0000'0000;

  /// Of a Write that has no payload.
  static bool is(const TaggedHeader& header) {
    return header.stag == kStag && header.to == kOffset;
  }
};

// How two uwarps on an rdma_cm connection find out that their personas differ: a zero-length Write
// that no receiver checks, as above. Described in docs/wire.md.

/// "I have this persona."
struct PersonaWrite {
  enum class Said : uint8_t { kNothing = 0, kIwarp = 1, kRoce = 2 };

  /// ASCII "uwar", as where two uwarps recognise each other.
  static constexpr STag kStag{0x75776172};
  /// ASCII "n!", then 40 bits of zero; the persona is the last byte.
  static constexpr TaggedOffset kOffset = 0x6e21'0000'0000'0000;

  static constexpr Said of(Persona persona) {
    return persona == Persona::kRoce ? Said::kRoce : Said::kIwarp;
  }
  /// As UWARP_PERSONA has it.
  static constexpr const char* name(Said persona) {
    return persona == Said::kRoce ? "roce" : "iwarp";
  }
  static constexpr TaggedOffset offset(Said persona) {
    return kOffset | static_cast<TaggedOffset>(persona);
  }
  /// Of a Write that has no payload.
  static Said decode(const TaggedHeader& header) {
    for (const Said persona : {Said::kIwarp, Said::kRoce})
      if (header.stag == kStag && header.to == offset(persona)) return persona;
    return Said::kNothing;
  }
};

// What a UDP datagram to a multicast group begins with, before the header of the datagram in it:
// docs/wire.md, "Multicast". No start-up settles a version there, and strangers may use the port.

/// ASCII "uMC" and the version.
inline constexpr std::array<std::byte, 4> kMulticastMagic{std::byte{'u'}, std::byte{'M'},
                                                          std::byte{'C'}, std::byte{1}};

/// What is behind the magic number; nothing if there is none, or that of another version.
inline std::optional<std::span<const std::byte>> behind_multicast_magic(
    std::span<const std::byte> bytes) {
  if (bytes.size() < kMulticastMagic.size() ||
      !std::ranges::equal(bytes.first(kMulticastMagic.size()), kMulticastMagic))
    return std::nullopt;
  return bytes.subspan(kMulticastMagic.size());
}

// How two uwarps recognise each other on an rdma_cm connection: by STag and Tagged Offset of the
// zero-length RTR Write, which no receiver checks. Described in docs/wire.md.

/// ASCII "uwar".
inline constexpr STag kPeerMagicStag{0x75776172};
/// ASCII "p!", then 40 bits of zero, then the version of what a recognised peer may be sent.
inline constexpr TaggedOffset kPeerMagicOffset = 0x7021'0000'0000'0001;

/// STag and offset of an RTR Write that promises nothing.
inline constexpr STag kPlainRtrStag{1};

}  // namespace uwarp
