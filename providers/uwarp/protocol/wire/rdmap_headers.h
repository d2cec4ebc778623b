// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RDMAP: control byte, opcodes and what each of them carries, and the headers that follow the
// untagged DDP header. RFC 5040 4, RFC 7306 4 to 6. Layout only; no rules, no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/field.h"
#include "base/ids.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

enum class RdmapOpcode : uint8_t {  // as assigned: RFC 5040-4.1-e, 7306-4.1-b
  kWrite = 0x0,
  kReadRequest = 0x1,
  kReadResponse = 0x2,
  kSend = 0x3,
  kSendInvalidate = 0x4,
  kSendSolicited = 0x5,
  kSendSolicitedInvalidate = 0x6,
  kTerminate = 0x7,
  kImmediate = 0x8,
  kImmediateSolicited = 0x9,
  kAtomicRequest = 0xA,
  kAtomicResponse = 0xB,
  // Set aside for experiments by IANA (RFC 6580). Between recognised uwarps only: docs/wire.md.
  kSendImmediate = 0xF,
};

/// Second byte of every DDP segment (the first of DDP's RsvdULP). RFC 5040-4.1-a/b.
///
///   7..6   5..4   3..0
///   RV     Rsv    Opcode
struct RdmapControl {
  using VersionField = Field<uint8_t{0xC0}>;
  using ReservedField = Field<uint8_t{0x30}>;  // ignored: RFC 5040-4.1-j
  using OpcodeField = Field<uint8_t{0x0F}>;
  static_assert((VersionField::kMask | ReservedField::kMask | OpcodeField::kMask) == 0xFF);
  using SolicitedBit = Field<uint8_t{0x10}>;  // of kSendImmediate alone
  using ImmediateBit = Field<uint8_t{0x20}>;  // of kWrite alone: Immediate Data follows (wire.md)
  static constexpr uint8_t kVersion = 1;

  uint8_t value = 0;

  constexpr uint8_t version() const { return VersionField::get(value); }
  /// Any 4-bit value when it comes from a peer; look at traits(opcode).defined first.
  constexpr RdmapOpcode opcode() const { return static_cast<RdmapOpcode>(OpcodeField::get(value)); }
};

/// The control byte as we send it: version 1, reserved bits zero. RFC 5040-4.1-g/i, 7306-4.1-a.
constexpr uint8_t make_rdmap_control(RdmapOpcode opcode) {
  return static_cast<uint8_t>(RdmapControl::VersionField::put(RdmapControl::kVersion) |
                              RdmapControl::OpcodeField::put(static_cast<uint8_t>(opcode)));
}

/// What an opcode carries, in which model and on which queue. RFC 5040-3.1-b, 5040-4.1-d/f,
/// 7306-4.1-d.
struct RdmapOpcodeTraits {
  const char* name;
  bool defined;         // false: the fields below mean nothing
  bool tagged;          // DDP model it must come in
  QueueNumber queue;    // untagged only
  uint8_t header_size;  // RDMAP header bytes behind the DDP header; Terminate: the least
  bool has_payload;     // ULP bytes may follow
  bool invalidates;     // RsvdULP[8:39] is the Invalidate STag
  bool solicited;       // the receiver raises a solicited event
};

inline constexpr size_t kImmediateSize = 8;
inline constexpr size_t kTerminateHeaderMin = 4;
inline constexpr size_t kTerminateHeaderMax = 4 + 2 + UntaggedHeader::kWireSize + 28;
static_assert(kTerminateHeaderMax == 52);

namespace rdmap_detail {
using Q = QueueNumber;
inline constexpr std::array<RdmapOpcodeTraits, 16> kTraits = {{
    // name, defined, tagged, queue, header, payload, invalidates, solicited
    {"RDMA Write", true, true, Q::kSend, 0, true, false, false},
    {"RDMA Read Request", true, false, Q::kReadRequest, 28, false, false, false},
    {"RDMA Read Response", true, true, Q::kSend, 0, true, false, false},
    {"Send", true, false, Q::kSend, 0, true, false, false},
    {"Send with Invalidate", true, false, Q::kSend, 0, true, true, false},
    {"Send with SE", true, false, Q::kSend, 0, true, false, true},
    {"Send with SE and Invalidate", true, false, Q::kSend, 0, true, true, true},
    {"Terminate", true, false, Q::kTerminate, 4, false, false, false},
    {"Immediate Data", true, false, Q::kSend, 8, false, false, false},
    {"Immediate Data with SE", true, false, Q::kSend, 8, false, false, true},
    {"Atomic Request", true, false, Q::kReadRequest, 52, false, false, false},
    {"Atomic Response", true, false, Q::kAtomicResponse, 12, false, false, false},
    {"reserved opcode 0xC", false, false, Q::kSend, 0, false, false, false},
    {"reserved opcode 0xD", false, false, Q::kSend, 0, false, false, false},
    {"reserved opcode 0xE", false, false, Q::kSend, 0, false, false, false},
    {"Send with Immediate of uwarp", true, false, Q::kSend, 0, true, false, false},
}};
}  // namespace rdmap_detail

/// Safe for every value an RdmapControl can return.
constexpr const RdmapOpcodeTraits& traits(RdmapOpcode opcode) {
  return rdmap_detail::kTraits[static_cast<uint8_t>(opcode) & 0x0F];
}
constexpr const char* name(RdmapOpcode opcode) { return traits(opcode).name; }

/// RDMA Read Request header (28 bytes). RFC 5040-4.4-a.
struct ReadRequestHeader {
  static constexpr size_t kWireSize = 28;

  STag sink_stag{};
  TaggedOffset sink_to = 0;
  uint32_t size = 0;  // RDMARDSZ, bytes
  STag source_stag{};
  TaggedOffset source_to = 0;

  /// Decodes kWireSize bytes at `at`, which the caller has proved to be there.
  static ReadRequestHeader decode(const std::byte* at) {
    return ReadRequestHeader{.sink_stag = STag{load_be32(at)},
                             .sink_to = load_be64(at + 4),
                             .size = load_be32(at + 12),
                             .source_stag = STag{load_be32(at + 16)},
                             .source_to = load_be64(at + 20)};
  }
  /// Writes kWireSize bytes.
  void encode(std::byte* at) const {
    store_be32(at, sink_stag.value);
    store_be64(at + 4, sink_to);
    store_be32(at + 12, size);
    store_be32(at + 16, source_stag.value);
    store_be64(at + 20, source_to);
  }
  friend bool operator==(const ReadRequestHeader&, const ReadRequestHeader&) = default;
};

/// Operation of an Atomic Request; 1 and 3 to 15 are reserved. RFC 7306-5-c.
enum class AtomicOpcode : uint8_t { kFetchAdd = 0x0, kCmpSwap = 0x2 };

/// Atomic Request header (52 bytes); unused bits are ignored. RFC 7306-4-a, 7306-5.2.1-a/f.
struct AtomicRequestHeader {
  static constexpr size_t kWireSize = 52;
  using OpcodeField = Field<uint32_t{0x0000000F}>;  // the 28 bits above are reserved

  AtomicOpcode opcode = AtomicOpcode::kFetchAdd;  // any 4-bit value when it comes from a peer
  uint32_t request_id = 0;
  STag remote_stag{};
  TaggedOffset remote_to = 0;
  uint64_t add_or_swap = 0;
  uint64_t add_or_swap_mask = 0;
  uint64_t compare = 0;
  uint64_t compare_mask = ~uint64_t{0};  // all ones in a FetchAdd, whose receiver ignores it

  /// Decodes kWireSize bytes at `at`, which the caller has proved to be there.
  static AtomicRequestHeader decode(const std::byte* at) {
    return AtomicRequestHeader{.opcode = static_cast<AtomicOpcode>(OpcodeField::get(load_be32(at))),
                               .request_id = load_be32(at + 4),
                               .remote_stag = STag{load_be32(at + 8)},
                               .remote_to = load_be64(at + 12),
                               .add_or_swap = load_be64(at + 20),
                               .add_or_swap_mask = load_be64(at + 28),
                               .compare = load_be64(at + 36),
                               .compare_mask = load_be64(at + 44)};
  }
  /// Writes kWireSize bytes.
  void encode(std::byte* at) const {
    store_be32(at, OpcodeField::put(static_cast<uint8_t>(opcode)));
    store_be32(at + 4, request_id);
    store_be32(at + 8, remote_stag.value);
    store_be64(at + 12, remote_to);
    store_be64(at + 20, add_or_swap);
    store_be64(at + 28, add_or_swap_mask);
    store_be64(at + 36, compare);
    store_be64(at + 44, compare_mask);
  }
  friend bool operator==(const AtomicRequestHeader&, const AtomicRequestHeader&) = default;
};

/// Atomic Response header (12 bytes; the 32 in RFC 7306 4 counts the framing). RFC 7306-4-b.
struct AtomicResponseHeader {
  static constexpr size_t kWireSize = 12;

  uint32_t request_id = 0;
  uint64_t original_value = 0;  // a number: no byte order matters. RFC 7306-5.1.1-h

  /// Decodes kWireSize bytes at `at`, which the caller has proved to be there.
  static AtomicResponseHeader decode(const std::byte* at) {
    return AtomicResponseHeader{.request_id = load_be32(at), .original_value = load_be64(at + 4)};
  }
  /// Writes kWireSize bytes.
  void encode(std::byte* at) const {
    store_be32(at, request_id);
    store_be64(at + 4, original_value);
  }
  friend bool operator==(const AtomicResponseHeader&, const AtomicResponseHeader&) = default;
};

/// Terminate header (4 to 52 bytes): the error, and copies of the headers that caused it. Reserved
/// bits are sent as zero, and ignored. RFC 5040-4.8-a/b/g/h.
///
///   31..28  27..24  23..16      15  14  13  12..0
///   Layer   EType   Error Code  M   D   R   Reserved
///   DDP Segment Length (16 bits, if M or D), DDP header (if D), RDMA Read header (if R)
struct TerminateHeader {
  static constexpr size_t kWireSizeMin = kTerminateHeaderMin;
  static constexpr size_t kWireSizeMax = kTerminateHeaderMax;
  using LengthBit = Field<uint16_t{0x8000}>;       // M
  using DdpHeaderBit = Field<uint16_t{0x4000}>;    // D
  using RdmapHeaderBit = Field<uint16_t{0x2000}>;  // R

  TerminateCode code = TerminateCode::kRdmapLocalCatastrophic;
  bool has_length = false;
  bool has_ddp_header = false;
  bool has_rdmap_header = false;
  // Decoded only: the peer announced more than it sent; what was cut off is marked as absent.
  bool truncated = false;
  // We send the ULPDU_Length of the bad segment. Peers differ; never act on a received value.
  uint16_t ddp_segment_length = 0;
  uint8_t ddp_header_size = 0;  // 14 or 18, by the T bit of the copy
  std::array<std::byte, UntaggedHeader::kWireSize> ddp_header{};
  std::array<std::byte, ReadRequestHeader::kWireSize> rdmap_header{};

  /// Copies the DDP header of the bad segment (14 or 18 bytes, by its own T bit; the caller
  /// vouches for them) and its ULPDU_Length, and sets M and D. RFC 5040-4.8-d/e/i/j.
  void copy_ddp_header(const std::byte* header, uint16_t ulpdu_length);
  /// Copies the Read Request header of the bad segment and sets R. RFC 5040-4.8-f/l.
  void copy_read_request(const std::byte* header);

  size_t encoded_size() const;
  /// Writes encoded_size() bytes and returns their number.
  size_t encode(std::byte* at) const;
  /// Decodes the bytes behind the untagged header of a Terminate. Bytes behind what the bits
  /// announce are ignored (A13). Nothing only if fewer than 4 bytes are given.
  static std::optional<TerminateHeader> decode(std::span<const std::byte> bytes);

 private:
  static size_t ddp_header_size_of(const std::byte* header);
};

}  // namespace uwarp
