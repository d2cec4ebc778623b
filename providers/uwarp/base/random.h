// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Numbers that no other process and no peer can guess.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace uwarp {

// SipHash-2-4: a keyed function of 64 bits that cannot be predicted without the key. Aumasson and
// Bernstein, "SipHash: a fast short-input PRF", 2012.
struct SipKey {
  uint64_t first = 0;  // bytes 0 to 7 of the key, the least significant first
  uint64_t second = 0;
};

class SipHash {
 public:
  /// The hash of `message`, taken as bytes.
  static constexpr uint64_t of(const SipKey& key, std::span<const std::byte> message) {
    SipHash state(key);
    size_t at = 0;
    for (; message.size() - at >= 8; at += 8) state.absorb(word(message.subspan(at, 8)));
    state.absorb(word(message.subspan(at)) | uint64_t{message.size()} << 56);
    return state.finish();
  }

 private:
  constexpr explicit SipHash(const SipKey& key)
      : v0_(key.first ^ 0x736f6d6570736575),
        v1_(key.second ^ 0x646f72616e646f6d),
        v2_(key.first ^ 0x6c7967656e657261),
        v3_(key.second ^ 0x7465646279746573) {}

  static constexpr uint64_t word(std::span<const std::byte> bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<uint64_t>(bytes[i]) << 8 * i;
    return value;
  }
  constexpr void round() {
    v0_ += v1_, v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_, v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_, v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_, v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }
  constexpr void absorb(uint64_t word) {
    v3_ ^= word;
    round(), round();
    v0_ ^= word;
  }
  constexpr uint64_t finish() {
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

  uint64_t v0_, v1_, v2_, v3_;
};

/// 64 random bits of the kernel. Waits only where the system has just started and has no entropy
/// yet (getrandom(2)). Where a sandbox refuses that call, they come from the bits that the kernel
/// gave the process at its start. Any thread.
uint64_t random_word();

}  // namespace uwarp
