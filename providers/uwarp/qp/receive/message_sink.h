// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the messages of a stream go that belong to no posted receive: those of a trunk, which has
// many datagrams in each. Sends only; anything else fails the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace uwarp {

/// Called with the receive side of the queue pair held: must not block.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  /// Memory for the message that begins, valid until arrived() or the next call. Empty: not now;
  /// the stream is held until Receiver::resume(). A message that does not fit fails the stream.
  virtual std::span<std::byte> room() = 0;
  /// The message is whole, in the memory that room() gave.
  virtual void arrived(size_t bytes) = 0;
};

}  // namespace uwarp
