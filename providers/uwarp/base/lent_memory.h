// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What has been sent, and may still be read by the peer out of the memory that it was sent from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uwarp {

class LentMemory {
 public:
  virtual ~LentMemory() = default;
  /// That memory is about to become another's: it is not read any more, and if something is missing
  /// the stream ends. Under the transmit side of the queue pair.
  virtual void withdraw() = 0;
  /// How many bytes the peer has read since the last send call or give_back(): they have gone.
  /// Under the transmit side of the queue pair.
  virtual size_t give_back() = 0;
  /// How many bytes the peer has read of all that has ever been sent this way. Under the transmit
  /// side of the queue pair.
  virtual uint64_t read_bytes() const = 0;
  /// How many of them it has placed and completed; 0: it does not tell. Any thread.
  virtual uint64_t placed_bytes() const = 0;
};

}  // namespace uwarp
