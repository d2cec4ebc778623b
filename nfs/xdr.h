// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// XDR (RFC 4506) of RPC messages: a writer that grows, and a reader that throws where the message
// ends too early, on the words of librpcrdma's core/xdr.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/xdr.h"

namespace uwarp::nfs {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;
using rpcrdma::core::round_up;  // to the words that XDR items fill

/// The bytes end too early, or a value is out of its range.
class XdrError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class XdrWriter {
 public:
  void u32(uint32_t value);
  void u64(uint64_t value);
  void boolean(bool value) { u32(value ? 1 : 0); }
  void fixed_opaque(ConstBytes data);
  void opaque(ConstBytes data);
  void string(std::string_view text);
  /// The length word of an opaque at the end of a message, whose bytes lie elsewhere: the transport
  /// puts them behind the message, or moves them by RDMA (RFC 8166, DDP-eligible data).
  void item(size_t length) { u32(static_cast<uint32_t>(length)); }

  size_t size() const { return bytes_.size(); }
  ConstBytes bytes() const { return bytes_; }
  std::vector<std::byte> take() && { return std::move(bytes_); }
  /// Removes all but the first `size` bytes.
  void truncate(size_t size) { bytes_.resize(size); }

 private:
  /// A writer for the next `size` bytes.
  rpcrdma::core::XdrWriter append(size_t size);

  std::vector<std::byte> bytes_;
};

class XdrReader {
 public:
  explicit XdrReader(ConstBytes bytes = {}) : words_(bytes) {}

  uint32_t u32();
  uint64_t u64();
  bool boolean();
  ConstBytes fixed_opaque(size_t size);
  ConstBytes opaque(size_t limit);
  std::string string(size_t limit);

  size_t remaining() const { return words_.remaining(); }

 private:
  rpcrdma::core::XdrReader words_;
};

}  // namespace uwarp::nfs
