// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/slot_cipher.h"

#include <array>

namespace uwarp {
namespace {

constexpr int kRounds = 8;
constexpr int kHalfBits = 12;
constexpr uint32_t kHalfMask = (1u << kHalfBits) - 1;

}  // namespace

uint32_t SlotCipher::round(uint32_t half, int number) const {
  const std::array message{static_cast<std::byte>(half), static_cast<std::byte>(half >> 8),
                           static_cast<std::byte>(number)};
  return static_cast<uint32_t>(SipHash::of(secret_, message)) & kHalfMask;
}

uint32_t SlotCipher::encrypt(uint32_t slot) const {
  uint32_t left = slot >> kHalfBits, right = slot & kHalfMask;
  for (int number = 0; number < kRounds; ++number) {
    const uint32_t mixed = left ^ round(right, number);
    left = right;
    right = mixed;
  }
  return left << kHalfBits | right;
}

uint32_t SlotCipher::decrypt(uint32_t sealed) const {
  uint32_t left = sealed >> kHalfBits, right = sealed & kHalfMask;
  for (int number = kRounds; number-- > 0;) {
    const uint32_t mixed = right ^ round(left, number);
    right = left;
    left = mixed;
  }
  return left << kHalfBits | right;
}

}  // namespace uwarp
