// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// DDP segment headers: control byte, tagged header (14 bytes), untagged header (18 bytes).
// RFC 5041 4.1 to 4.3. Layout only: no rule about what a value may be is checked here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/field.h"
#include "base/ids.h"

namespace uwarp {

/// First byte of every DDP segment.
///
///   7   6   5..2   1..0
///   T   L   Rsvd   DV
struct DdpControl {
  using TaggedBit = Field<uint8_t{0x80}>;
  using LastBit = Field<uint8_t{0x40}>;
  using ReservedField = Field<uint8_t{0x3C}>;
  using VersionField = Field<uint8_t{0x03}>;
  static_assert((TaggedBit::kMask | LastBit::kMask | ReservedField::kMask | VersionField::kMask) ==
                0xFF);
  static constexpr uint8_t kVersion = 1;

  uint8_t value = kVersion;

  constexpr bool tagged() const { return TaggedBit::test(value); }
  constexpr bool last() const { return LastBit::test(value); }
  constexpr uint8_t version() const { return VersionField::get(value); }

  /// In a segment to another uwarp (docs/wire.md): at least so many segments of the same message
  /// and size follow directly. From other peers the field means nothing.
  static constexpr uint8_t kMostFollowing = ReservedField::kMax;
  constexpr uint8_t following() const { return ReservedField::get(value); }

  constexpr DdpControl followed_by(uint8_t following) const {
    return {static_cast<uint8_t>(value | ReservedField::put(following))};
  }

  /// The byte as we send it: version 1, and reserved bits zero. RFC 5040-3.1-a, 5041-4.1-h.
  static constexpr DdpControl make(bool tagged, bool last) {
    return {static_cast<uint8_t>(TaggedBit::flag(tagged) | LastBit::flag(last) | kVersion)};
  }
  friend constexpr bool operator==(DdpControl, DdpControl) = default;
};

/// Header of a tagged segment; the payload follows. `rsvd_ulp`: RDMAP's control. RFC 5041-4.2-a.
struct TaggedHeader {
  static constexpr size_t kWireSize = 14;

  DdpControl control = DdpControl::make(true, true);
  uint8_t rsvd_ulp = 0;
  STag stag;
  TaggedOffset to = 0;

  /// Decodes kWireSize bytes at `at`, which the caller has proved to be there.
  static TaggedHeader decode(const std::byte* at) {
    return TaggedHeader{.control = DdpControl{static_cast<uint8_t>(at[0])},
                        .rsvd_ulp = static_cast<uint8_t>(at[1]),
                        .stag = STag{load_be32(at + 2)},
                        .to = load_be64(at + 6)};
  }
  /// Writes kWireSize bytes.
  void encode(std::byte* at) const {
    at[0] = std::byte{control.value};
    at[1] = std::byte{rsvd_ulp};
    store_be32(at + 2, stag.value);
    store_be64(at + 6, to);
  }
  friend bool operator==(const TaggedHeader&, const TaggedHeader&) = default;
};

/// Header of an untagged segment; RDMAP header or payload follow it. `rsvd_ulp` is RDMAP's
/// control byte, `invalidate_stag` its 32 further bits (RsvdULP[8:39]). RFC 5040-4.1-c, 5041-4.3-a.
struct UntaggedHeader {
  static constexpr size_t kWireSize = 18;

  DdpControl control = DdpControl::make(false, true);
  uint8_t rsvd_ulp = 0;
  STag invalidate_stag;
  QueueNumber qn = QueueNumber::kSend;  // any 32-bit value when it comes from a peer
  Msn msn;
  uint32_t mo = 0;

  /// Decodes kWireSize bytes at `at`, which the caller has proved to be there.
  static UntaggedHeader decode(const std::byte* at) {
    return UntaggedHeader{.control = DdpControl{static_cast<uint8_t>(at[0])},
                          .rsvd_ulp = static_cast<uint8_t>(at[1]),
                          .invalidate_stag = STag{load_be32(at + 2)},
                          .qn = static_cast<QueueNumber>(load_be32(at + 6)),
                          .msn = Msn{load_be32(at + 10)},
                          .mo = load_be32(at + 14)};
  }
  /// Writes kWireSize bytes.
  void encode(std::byte* at) const {
    at[0] = std::byte{control.value};
    at[1] = std::byte{rsvd_ulp};
    store_be32(at + 2, invalidate_stag.value);
    store_be32(at + 6, static_cast<uint32_t>(qn));
    store_be32(at + 10, msn.value);
    store_be32(at + 14, mo);
  }
  friend bool operator==(const UntaggedHeader&, const UntaggedHeader&) = default;
};

inline constexpr size_t kDdpHeaderMax = UntaggedHeader::kWireSize;

/// Size of the DDP header that a control byte announces.
constexpr size_t ddp_header_size(DdpControl control) {
  return control.tagged() ? TaggedHeader::kWireSize : UntaggedHeader::kWireSize;
}

}  // namespace uwarp
