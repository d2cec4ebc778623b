// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Terminate header. RFC 5040 4.8.
#include "protocol/wire/rdmap_headers.h"

#include <cstring>

namespace uwarp {

void TerminateHeader::copy_ddp_header(const std::byte* header, uint16_t ulpdu_length) {
  ddp_header_size = static_cast<uint8_t>(ddp_header_size_of(header));
  std::memcpy(ddp_header.data(), header, ddp_header_size);
  ddp_segment_length = ulpdu_length;
  has_length = true;
  has_ddp_header = true;
}

void TerminateHeader::copy_read_request(const std::byte* header) {
  std::memcpy(rdmap_header.data(), header, rdmap_header.size());
  has_rdmap_header = true;
}

size_t TerminateHeader::ddp_header_size_of(const std::byte* header) {
  return ::uwarp::ddp_header_size(DdpControl{static_cast<uint8_t>(header[0])});
}

size_t TerminateHeader::encoded_size() const {
  size_t size = kWireSizeMin;
  if (has_length || has_ddp_header) size += sizeof ddp_segment_length;
  if (has_ddp_header) size += ddp_header_size;
  if (has_rdmap_header) size += rdmap_header.size();
  return size;
}

size_t TerminateHeader::encode(std::byte* at) const {
  std::byte* const start = at;
  store_be16(at, static_cast<uint16_t>(code));
  store_be16(at + 2, static_cast<uint16_t>(LengthBit::flag(has_length) |
                                           DdpHeaderBit::flag(has_ddp_header) |
                                           RdmapHeaderBit::flag(has_rdmap_header)));
  at += kWireSizeMin;
  if (has_length || has_ddp_header) {
    store_be16(at, ddp_segment_length);
    at += sizeof ddp_segment_length;
  }
  if (has_ddp_header) {
    std::memcpy(at, ddp_header.data(), ddp_header_size);
    at += ddp_header_size;
  }
  if (has_rdmap_header) {
    std::memcpy(at, rdmap_header.data(), rdmap_header.size());
    at += rdmap_header.size();
  }
  return static_cast<size_t>(at - start);
}

std::optional<TerminateHeader> TerminateHeader::decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kWireSizeMin) return std::nullopt;
  TerminateHeader header;
  header.code = static_cast<TerminateCode>(load_be16(bytes.data()));
  const uint16_t bits = load_be16(bytes.data() + 2);
  bytes = bytes.subspan(kWireSizeMin);
  // The next `size` bytes; null, and nothing behind them counts, if they have been cut off.
  const auto take = [&](size_t size) {
    header.truncated = bytes.size() < size;
    const std::byte* const at = header.truncated ? nullptr : bytes.data();
    bytes = bytes.subspan(header.truncated ? bytes.size() : size);
    return at;
  };
  if (LengthBit::test(bits) || DdpHeaderBit::test(bits)) {
    const std::byte* const length = take(sizeof header.ddp_segment_length);
    if (length == nullptr) return header;
    header.has_length = LengthBit::test(bits);
    header.ddp_segment_length = load_be16(length);
  }
  if (DdpHeaderBit::test(bits)) {
    // Its own first byte says how long it is.
    const size_t size = bytes.empty() ? 1 : ddp_header_size_of(bytes.data());
    const std::byte* const copy = take(size);
    if (copy == nullptr) return header;
    std::memcpy(header.ddp_header.data(), copy, size);
    header.ddp_header_size = static_cast<uint8_t>(size);
    header.has_ddp_header = true;
  }
  if (RdmapHeaderBit::test(bits)) {
    const std::byte* const copy = take(header.rdmap_header.size());
    if (copy != nullptr) header.copy_read_request(copy);
  }
  return header;
}

}  // namespace uwarp
