// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What has been sent, and may still be read by the peer out of the memory that it was sent from.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace uwarp {

class LentMemory {
 public:
  virtual ~LentMemory() = default;
  /// That memory is about to become another's: it is not read any more, and if something is missing
  /// the stream ends. Under the transmit side of the queue pair.
  virtual void withdraw() = 0;
  /// `pending`: what is to be sent, from the first byte on that has not gone. How many of these
  /// bytes the peer has read meanwhile: they have gone. Under the transmit side.
  virtual size_t given_back(std::span<const iovec> pending) = 0;
};

}  // namespace uwarp
