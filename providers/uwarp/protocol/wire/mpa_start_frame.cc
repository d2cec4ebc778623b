// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Encoding and decoding of MPA Request and Reply frames.
#include "protocol/wire/mpa_start_frame.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"

namespace uwarp {

namespace {

constexpr std::string_view kRequestKey = "MPA ID Req Frame";
constexpr std::string_view kReplyKey = "MPA ID Rep Frame";
static_assert(kRequestKey.size() == 16 && kReplyKey.size() == 16);

constexpr size_t kFlagsAt = 16;
constexpr size_t kRevisionAt = 17;
constexpr size_t kLengthAt = 18;

StartFrameDecode need(size_t wanted) {
  return {.status = StartFrameDecode::Status::kNeedMore, .wanted = wanted};
}

// The first fault that the bytes present can show.
MpaFailure check_prefix(std::span<const std::byte> bytes, std::string_view key) {
  const size_t key_size = std::min(bytes.size(), key.size());
  if (key_size != 0 && std::memcmp(bytes.data(), key.data(), key_size) != 0)
    return MpaFailure::kBadKey;  // RFC 5044-7.1.1-a
  if (bytes.size() <= kRevisionAt) return MpaFailure::kNone;
  const auto revision = static_cast<uint8_t>(bytes[kRevisionAt]);
  if (revision != 1 && revision != 2) return MpaFailure::kBadRevision;  // RFC 5044-7.1.1-b
  if (bytes.size() < MpaStartFrame::kFixedSize) return MpaFailure::kNone;
  const uint16_t length = load_be16(&bytes[kLengthAt]);
  if (length > kPrivateDataWireMax) return MpaFailure::kPrivateDataTooLong;  // RFC 5044-7.1.1-d
  // S is a reserved bit, and so ignored, in revision 1. RFC 6581-6-a.
  const bool enhanced =
      revision == 2 && MpaStartFrame::EnhancedBit::test(static_cast<uint8_t>(bytes[kFlagsAt]));
  if (enhanced && length < MpaStartFrame::kEnhancedSize) return MpaFailure::kEnhancedTooShort;
  return MpaFailure::kNone;
}

}  // namespace

size_t MpaStartFrame::encode(std::span<std::byte> buffer) const {
  const size_t length = encoded_size() - kFixedSize;
  if (length > kPrivateDataWireMax || buffer.size() < encoded_size()) return 0;
  std::byte* at = buffer.data();
  std::memcpy(at, is_reply ? kReplyKey.data() : kRequestKey.data(), kRequestKey.size());
  at[kFlagsAt] =
      std::byte{static_cast<uint8_t>(MarkersBit::flag(markers) | CrcBit::flag(crc) |
                                     RejectBit::flag(reject) | EnhancedBit::flag(enhanced))};
  at[kRevisionAt] = std::byte{revision};
  store_be16(at + kLengthAt, static_cast<uint16_t>(length));
  at += kFixedSize;
  if (enhanced) {
    store_be16(at, static_cast<uint16_t>(PeerToPeerBit::flag(peer_to_peer) |
                                         RtrSendBit::flag(rtr_send) | IrdField::put(ird)));
    store_be16(at + 2, static_cast<uint16_t>(RtrWriteBit::flag(rtr_write) |
                                             RtrReadBit::flag(rtr_read) | OrdField::put(ord)));
    at += kEnhancedSize;
  }
  if (!private_data.empty()) std::memcpy(at, private_data.bytes().data(), private_data.size());
  return encoded_size();
}

StartFrameDecode decode_start_frame(std::span<const std::byte> bytes, bool reply,
                                    MpaStartFrame& frame) {
  const MpaFailure error = check_prefix(bytes, reply ? kReplyKey : kRequestKey);
  if (error != MpaFailure::kNone) return {.status = StartFrameDecode::Status::kBad, .error = error};
  if (bytes.size() < MpaStartFrame::kFixedSize)
    return need(MpaStartFrame::kFixedSize - bytes.size());
  const size_t size = MpaStartFrame::kFixedSize + load_be16(&bytes[kLengthAt]);
  if (bytes.size() < size) return need(size - bytes.size());

  const auto flags = static_cast<uint8_t>(bytes[kFlagsAt]);
  frame = MpaStartFrame{};
  frame.is_reply = reply;
  frame.markers = MpaStartFrame::MarkersBit::test(flags);
  frame.crc = MpaStartFrame::CrcBit::test(flags);
  frame.reject = MpaStartFrame::RejectBit::test(flags);
  frame.revision = static_cast<uint8_t>(bytes[kRevisionAt]);
  frame.enhanced = frame.revision == 2 && MpaStartFrame::EnhancedBit::test(flags);
  std::span<const std::byte> rest = bytes.first(size).subspan(MpaStartFrame::kFixedSize);
  if (frame.enhanced) {
    const uint16_t first = load_be16(rest.data());
    const uint16_t second = load_be16(rest.data() + 2);
    frame.peer_to_peer = MpaStartFrame::PeerToPeerBit::test(first);
    frame.rtr_send = MpaStartFrame::RtrSendBit::test(first);
    frame.ird = MpaStartFrame::IrdField::get(first);
    frame.rtr_write = MpaStartFrame::RtrWriteBit::test(second);
    frame.rtr_read = MpaStartFrame::RtrReadBit::test(second);
    frame.ord = MpaStartFrame::OrdField::get(second);
    rest = rest.subspan(MpaStartFrame::kEnhancedSize);
  }
  (void)frame.private_data.assign(rest);  // cannot be too long: check_prefix
  return {.status = StartFrameDecode::Status::kFrame, .consumed = size};
}

}  // namespace uwarp
