// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reading and writing of integers in byte buffers: bounds-checked cursors for whatever a peer
// sends, and unchecked loads and stores for places whose size the caller has already proved.
// Big-endian (network order) unless the name says otherwise. No alignment is needed anywhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace uwarp {

static_assert(std::endian::native == std::endian::little, "only little-endian hosts are supported");

inline uint16_t load_be16(const void* at) {
  uint16_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap16(raw);
}

inline uint32_t load_be32(const void* at) {
  uint32_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap32(raw);
}

inline uint64_t load_be64(const void* at) {
  uint64_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap64(raw);
}

inline uint32_t load_le32(const void* at) {
  uint32_t raw;
  std::memcpy(&raw, at, sizeof raw);
  return raw;
}

inline void store_be16(void* at, uint16_t value) {
  const uint16_t raw = __builtin_bswap16(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_be32(void* at, uint32_t value) {
  const uint32_t raw = __builtin_bswap32(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_be64(void* at, uint64_t value) {
  const uint64_t raw = __builtin_bswap64(value);
  std::memcpy(at, &raw, sizeof raw);
}

inline void store_le32(void* at, uint32_t value) { std::memcpy(at, &value, sizeof value); }

/// Cursor over bytes from outside. Every take either returns the value and moves on, or returns
/// nothing and consumes nothing.
class ByteReader {
 public:
  ByteReader() = default;
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  size_t remaining() const { return rest_.size(); }
  std::span<const std::byte> rest() const { return rest_; }

  std::optional<uint8_t> take_u8() {
    if (rest_.empty()) return std::nullopt;
    const auto value = static_cast<uint8_t>(rest_[0]);
    rest_ = rest_.subspan(1);
    return value;
  }
  std::optional<uint16_t> take_u16() { return take<uint16_t, load_be16>(); }
  std::optional<uint32_t> take_u32() { return take<uint32_t, load_be32>(); }
  std::optional<uint64_t> take_u64() { return take<uint64_t, load_be64>(); }

  /// The next `size` bytes as a view into the input.
  std::optional<std::span<const std::byte>> take_bytes(size_t size) {
    if (size > rest_.size()) return std::nullopt;
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  [[nodiscard]] bool skip(size_t size) { return take_bytes(size).has_value(); }

 private:
  template <typename T, T (*load)(const void*)>
  std::optional<T> take() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    const T value = load(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }

  std::span<const std::byte> rest_;
};

/// Cursor that fills a buffer. A put that does not fit returns false and writes nothing.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> room) : whole_(room) {}

  size_t size() const { return used_; }
  size_t remaining() const { return whole_.size() - used_; }
  std::span<const std::byte> written() const { return whole_.first(used_); }

  [[nodiscard]] bool put_u8(uint8_t value) { return put_raw(&value, sizeof value); }
  [[nodiscard]] bool put_u16(uint16_t value) {
    const uint16_t raw = __builtin_bswap16(value);
    return put_raw(&raw, sizeof raw);
  }
  [[nodiscard]] bool put_u32(uint32_t value) {
    const uint32_t raw = __builtin_bswap32(value);
    return put_raw(&raw, sizeof raw);
  }
  [[nodiscard]] bool put_u64(uint64_t value) {
    const uint64_t raw = __builtin_bswap64(value);
    return put_raw(&raw, sizeof raw);
  }
  [[nodiscard]] bool put_bytes(std::span<const std::byte> bytes) {
    return put_raw(bytes.data(), bytes.size());
  }
  [[nodiscard]] bool put_zeros(size_t size) {
    if (size > remaining()) return false;
    if (size != 0) std::memset(whole_.data() + used_, 0, size);
    used_ += size;
    return true;
  }

 private:
  bool put_raw(const void* from, size_t size) {
    if (size > remaining()) return false;
    if (size != 0) std::memcpy(whole_.data() + used_, from, size);
    used_ += size;
    return true;
  }

  std::span<std::byte> whole_;
  size_t used_ = 0;
};

}  // namespace uwarp
