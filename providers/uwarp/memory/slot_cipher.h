// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Slot numbers become the upper 24 bits of keys that a peer cannot predict from the keys that it
// has seen (RFC 5040 8.1.1).
#pragma once

#include <cstdint>

#include "base/siphash.h"

namespace uwarp {

/// A keyed permutation of 24 bits: a balanced Feistel network whose round function is SipHash-2-4
/// over the half and the number of the round. Four rounds withstand as many known keys as a half
/// has values to the power of one half; twice as many rounds leave a margin.
class SlotCipher {
 public:
  explicit SlotCipher(const SipKey& secret) : secret_(secret) {}

  uint32_t encrypt(uint32_t slot) const;
  uint32_t decrypt(uint32_t sealed) const;

 private:
  uint32_t round(uint32_t half, int number) const;

  const SipKey secret_;
};

}  // namespace uwarp
