// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// XDR (RFC 4506): a writer and a bounds-checked reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace uwarp::nfs {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

/// The bytes end too early, or a value is out of its range.
class XdrError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes after the padding that makes `size` a multiple of four.
constexpr size_t xdr_padded(size_t size) { return (size + 3) & ~size_t{3}; }

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
  /// Takes back all that was written after the first `size` bytes.
  void truncate(size_t size) { bytes_.resize(size); }

 private:
  std::vector<std::byte> bytes_;
};

class XdrReader {
 public:
  XdrReader() = default;
  explicit XdrReader(ConstBytes bytes) : bytes_(bytes) {}

  uint32_t u32();
  uint64_t u64();
  bool boolean();
  ConstBytes fixed_opaque(size_t size);
  ConstBytes opaque(size_t limit);
  std::string string(size_t limit);

  size_t remaining() const { return bytes_.size() - position_; }

 private:
  ConstBytes take(size_t size);

  ConstBytes bytes_;
  size_t position_ = 0;
};

}  // namespace uwarp::nfs
