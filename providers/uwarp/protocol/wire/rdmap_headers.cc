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
  ByteReader in(bytes);
  const auto error = in.take_u16();
  const auto bits = in.take_u16();
  if (!error || !bits) return std::nullopt;

  TerminateHeader header;
  header.code = static_cast<TerminateCode>(*error);
  const bool wants_ddp_header = DdpHeaderBit::test(*bits);
  if (LengthBit::test(*bits) || wants_ddp_header) {
    const auto length = in.take_u16();
    header.truncated = !length;
    if (!length) return header;
    header.has_length = LengthBit::test(*bits);
    header.ddp_segment_length = *length;
  }
  if (wants_ddp_header) {
    // Its own first octet says how long it is.
    const size_t size = in.remaining() == 0 ? 0 : ddp_header_size_of(in.rest().data());
    const auto copy = size == 0 ? std::nullopt : in.take_bytes(size);
    header.truncated = !copy;
    if (!copy) return header;
    std::memcpy(header.ddp_header.data(), copy->data(), size);
    header.ddp_header_size = static_cast<uint8_t>(size);
    header.has_ddp_header = true;
  }
  if (RdmapHeaderBit::test(*bits)) {
    const auto copy = in.take_bytes(header.rdmap_header.size());
    header.truncated = !copy;
    if (!copy) return header;
    std::memcpy(header.rdmap_header.data(), copy->data(), copy->size());
    header.has_rdmap_header = true;
  }
  return header;
}

}  // namespace uwarp
