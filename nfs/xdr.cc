// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/xdr.h"

#include <endian.h>

#include <cstring>

namespace uwarp::nfs {

void XdrWriter::u32(uint32_t value) {
  uint32_t big_endian = htobe32(value);
  auto raw = std::as_bytes(std::span(&big_endian, 1));
  bytes_.insert(bytes_.end(), raw.begin(), raw.end());
}

void XdrWriter::u64(uint64_t value) {
  u32(static_cast<uint32_t>(value >> 32));
  u32(static_cast<uint32_t>(value));
}

void XdrWriter::fixed_opaque(ConstBytes data) {
  bytes_.insert(bytes_.end(), data.begin(), data.end());
  bytes_.resize(bytes_.size() + xdr_padded(data.size()) - data.size());
}

void XdrWriter::opaque(ConstBytes data) {
  u32(static_cast<uint32_t>(data.size()));
  fixed_opaque(data);
}

void XdrWriter::string(std::string_view text) { opaque(std::as_bytes(std::span(text))); }

ConstBytes XdrReader::take(size_t size) {
  if (size > remaining()) {
    throw XdrError("XDR: the message is too short");
  }
  auto taken = bytes_.subspan(position_, size);
  position_ += size;
  return taken;
}

uint32_t XdrReader::u32() {
  uint32_t big_endian;
  std::memcpy(&big_endian, take(4).data(), 4);
  return be32toh(big_endian);
}

uint64_t XdrReader::u64() {
  uint64_t high = u32();
  return high << 32 | u32();
}

bool XdrReader::boolean() {
  uint32_t value = u32();
  if (value > 1) {
    throw XdrError("XDR: a boolean is neither 0 nor 1");
  }
  return value == 1;
}

ConstBytes XdrReader::fixed_opaque(size_t size) {
  if (size > remaining()) {  // first of all, so that rounding up cannot overflow
    throw XdrError("XDR: the message is too short");
  }
  return take(xdr_padded(size)).first(size);
}

ConstBytes XdrReader::opaque(size_t limit) {
  size_t size = u32();
  if (size > limit) {
    throw XdrError("XDR: an opaque is longer than allowed");
  }
  return fixed_opaque(size);
}

std::string XdrReader::string(size_t limit) {
  auto bytes = opaque(limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace uwarp::nfs
