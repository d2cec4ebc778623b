// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One bit field inside a word, named by its mask alone: the shift is derived, so that mask and
// shift cannot disagree. Knows nothing of any protocol.
#pragma once

#include <bit>
#include <cstdint>

namespace uwarp {

/// A field of an unsigned word. `Field<0x3C>::get(word)` returns the field moved down to bit 0.
template <auto Mask>
struct Field {
  using Word = decltype(Mask);
  static_assert(Mask != 0);
  static constexpr Word kMask = Mask;
  static constexpr int kShift = std::countr_zero(static_cast<uint64_t>(Mask));
  static constexpr Word kMax = static_cast<Word>(Mask >> kShift);

  static constexpr Word get(Word word) { return static_cast<Word>((word & kMask) >> kShift); }
  static constexpr bool test(Word word) { return (word & kMask) != 0; }
  /// Returns the bits of `value` at their place; bits that do not fit are dropped.
  static constexpr Word put(Word value) { return static_cast<Word>((value << kShift) & kMask); }
  static constexpr Word flag(bool on) { return on ? kMask : Word{0}; }
};

}  // namespace uwarp
