// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MPA Request and Reply frames, with the IRD/ORD word of revision 2. Layout and the checks that
// need no knowledge of the other frame; the negotiation itself is protocol/mpa/handshake.h.
// RFC 5044 7.1.1, RFC 6581 6 and 9.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/field.h"
#include "base/limits.h"

namespace uwarp {

/// IRD or ORD that is not negotiated in this frame: all ones leave it open. RFC 6581-9.1-b.
inline constexpr uint16_t kDepthNotNegotiated = 0x3FFF;

/// Private data of one frame: a copy of at most 512 bytes.
class PrivateData {
 public:
  PrivateData() = default;
  explicit PrivateData(std::span<const std::byte> bytes) { assign(bytes); }

  /// Returns false, and keeps what was there, if there are more than 512 bytes.
  bool assign(std::span<const std::byte> bytes) {
    if (bytes.size() > kPrivateDataWireMax) return false;
    if (!bytes.empty()) std::memcpy(bytes_.data(), bytes.data(), bytes.size());
    size_ = static_cast<uint16_t>(bytes.size());
    return true;
  }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::array<std::byte, kPrivateDataWireMax> bytes_;
  uint16_t size_ = 0;
};

struct MpaStartFrame {
  static constexpr size_t kFixedSize = 20;
  static constexpr size_t kEnhancedSize = 4;
  static constexpr size_t kSizeMax = kFixedSize + kPrivateDataWireMax;

  // Flags byte. The low four bits are reserved: sent as zero, never read. RFC 5044-7.1.1-c.
  using MarkersBit = Field<uint8_t{0x80}>;
  using CrcBit = Field<uint8_t{0x40}>;
  using RejectBit = Field<uint8_t{0x20}>;
  using EnhancedBit = Field<uint8_t{0x10}>;
  // First and second half of the enhanced word. Depths have 14 bits. RFC 6581-9.1-a.
  using PeerToPeerBit = Field<uint16_t{0x8000}>;
  using RtrSendBit = Field<uint16_t{0x4000}>;
  using IrdField = Field<uint16_t{0x3FFF}>;
  using RtrWriteBit = Field<uint16_t{0x8000}>;
  using RtrReadBit = Field<uint16_t{0x4000}>;
  using OrdField = Field<uint16_t{0x3FFF}>;

  bool is_reply = false;
  bool markers = false;   // M: the sender wants markers in what it receives
  bool crc = false;       // C: the sender wants CRCs
  bool reject = false;    // R: Reply only
  bool enhanced = false;  // S: the fields down to `ord` are on the wire; revision 2 only
  uint8_t revision = 2;
  bool peer_to_peer = false;  // A
  bool rtr_send = false;      // B
  bool rtr_write = false;     // C of the word
  bool rtr_read = false;      // D
  uint16_t ird = 0;           // 14 bits
  uint16_t ord = 0;           // 14 bits
  PrivateData private_data;   // the application's, without the enhanced word. RFC 6581-6-d

  size_t encoded_size() const {
    return kFixedSize + (enhanced ? kEnhancedSize : 0) + private_data.size();
  }
  /// Writes the frame and returns its size; 0 if it does not fit into `buffer` or if private data
  /// and enhanced word together exceed 512 bytes.
  size_t encode(std::span<std::byte> buffer) const;
};

/// Why a start-up ended without a connection; up to kEnhancedTooShort a frame alone shows it.
enum class MpaFailure : uint8_t {
  kNone,
  kBadKey,
  kBadRevision,
  kPrivateDataTooLong,
  kEnhancedTooShort,    // S=1 and fewer than 4 bytes of private data
  kMarkersDemanded,     // the peer wants markers, which we cannot send
  kRevisionMismatch,    // the Reply is not of our Request's revision, or S is missing in it
  kInsufficientIrd,     // initiator: the peer's ORD is more than we can hold
  kNoCommonRtr,         // no ready-to-receive message that both sides know
  kBytesBehindRequest,  // the initiator did not wait for the Reply
  kPeerClosed,          // end of stream before the frame was complete
};

struct StartFrameDecode {
  enum class Status : uint8_t { kNeedMore, kBad, kFrame };
  Status status = Status::kNeedMore;
  MpaFailure error = MpaFailure::kNone;  // kBad
  size_t consumed = 0;                   // kFrame: bytes of the frame
  size_t wanted = 0;                     // kNeedMore: bytes that are certainly still missing
};

/// Decodes a Request (`reply` false) or a Reply from the start of `bytes`. A fault is reported as
/// soon as the byte that shows it is there. `frame` is written only with kFrame.
StartFrameDecode decode_start_frame(std::span<const std::byte> bytes, bool reply,
                                    MpaStartFrame& frame);

}  // namespace uwarp
