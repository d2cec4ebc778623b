// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// XDR streams over memory (RFC 4506): libtirpc's, with a size that cannot be overrun.
#pragma once

#include <rpc/xdr.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/rounding.h"

namespace rpcrdma::core {

/// Takes words off a peer's bytes. What fails consumes nothing.
class XdrReader {
 public:
  explicit XdrReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    // Decoding only reads, though libtirpc's parameter is not const.
    auto* start = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
    xdrmem_create(&stream_, start,
                  static_cast<u_int>(bytes.size() < INT_MAX ? bytes.size() : INT_MAX), XDR_DECODE);
  }

  [[nodiscard]] bool u32(uint32_t& value) { return xdr_u_int32_t(&stream_, &value); }
  [[nodiscard]] bool u64(uint64_t& value) {
    return remaining() >= sizeof value && xdr_u_int64_t(&stream_, &value);
  }
  /// An XDR bool: any word but 0 and 1 is refused.
  [[nodiscard]] bool flag(bool& value) {
    uint32_t word = 0;
    if (!u32(word) || word > 1) return false;
    value = word == 1;
    return true;
  }
  /// Bytes as they are, with the padding behind them that makes their number a multiple of four.
  [[nodiscard]] bool fixed_opaque(size_t size, std::span<const std::byte>& value) {
    if (size > remaining() || round_up(size) > remaining()) return false;
    const size_t at = consumed();
    if (!xdr_setpos(&stream_, static_cast<u_int>(at + round_up(size)))) return false;
    value = bytes_.subspan(at, size);
    return true;
  }
  size_t consumed() const { return xdr_getpos(&stream_); }
  size_t remaining() const { return bytes_.size() - consumed(); }

 private:
  mutable XDR stream_;  // to ask for a position, libtirpc wants it changeable
  std::span<const std::byte> bytes_;
};

/// Puts words into memory. Once something did not fit, good() is false for ever.
class XdrWriter {
 public:
  explicit XdrWriter(std::span<std::byte> room) {
    xdrmem_create(&stream_, reinterpret_cast<char*>(room.data()),
                  static_cast<u_int>(room.size() < INT_MAX ? room.size() : INT_MAX), XDR_ENCODE);
  }

  void u32(uint32_t value) { good_ = good_ && xdr_u_int32_t(&stream_, &value); }
  void u64(uint64_t value) { good_ = good_ && xdr_u_int64_t(&stream_, &value); }
  void flag(bool value) { u32(value ? 1 : 0); }
  bool good() const { return good_; }
  size_t size() { return xdr_getpos(&stream_); }

 private:
  XDR stream_;
  bool good_ = true;
};

}  // namespace rpcrdma::core
