// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/xdr.h"

namespace uwarp::nfs {
namespace {

void require(bool there) {
  if (!there) throw XdrError("XDR: the message is too short");
}

}  // namespace

rpcrdma::core::XdrWriter XdrWriter::append(size_t size) {
  bytes_.resize(bytes_.size() + size);
  return rpcrdma::core::XdrWriter(std::span(bytes_).last(size));
}

void XdrWriter::u32(uint32_t value) { append(sizeof value).u32(value); }

void XdrWriter::u64(uint64_t value) { append(sizeof value).u64(value); }

void XdrWriter::fixed_opaque(ConstBytes data) {
  bytes_.insert(bytes_.end(), data.begin(), data.end());
  bytes_.resize(bytes_.size() + round_up(data.size()) - data.size());
}

void XdrWriter::opaque(ConstBytes data) {
  u32(static_cast<uint32_t>(data.size()));
  fixed_opaque(data);
}

void XdrWriter::string(std::string_view text) { opaque(std::as_bytes(std::span(text))); }

uint32_t XdrReader::u32() {
  uint32_t value = 0;
  require(words_.u32(value));
  return value;
}

uint64_t XdrReader::u64() {
  uint64_t value = 0;
  require(words_.u64(value));
  return value;
}

bool XdrReader::boolean() {
  const uint32_t value = u32();
  if (value > 1) {
    throw XdrError("XDR: a boolean is neither 0 nor 1");
  }
  return value == 1;
}

ConstBytes XdrReader::fixed_opaque(size_t size) {
  ConstBytes value;
  require(words_.fixed_opaque(size, value));
  return value;
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
