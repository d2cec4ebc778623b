// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An RPC message as its owner describes it: pieces, some of which are DDP-eligible data items.
// Sans-IO. RFC 8166 3.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rpcrdma/rpcrdma.h"

namespace rpcrdma::core {

class Message {
 public:
  /// XID and message type: no RPC message is shorter.
  static constexpr size_t kSizeMin = 8;

  /// One or more pieces that are the content of one XDR opaque.
  struct Item {
    std::span<const rpcrdma_piece> pieces;
    size_t length;
    size_t position;  ///< in the whole message, padding of the items before it included
  };

  /// Refers to the pieces. Nothing: they are no message, or their flags make no sense.
  static std::optional<Message> of(std::span<const rpcrdma_piece> pieces);

  uint32_t xid() const { return xid_; }
  const std::vector<Item>& items() const { return items_; }
  /// Bytes of the message without its first `left_out` items and their padding.
  size_t size(size_t left_out = 0) const;
  /// Writes these bytes; `room` has exactly their size.
  void copy(std::span<std::byte> room, size_t left_out = 0) const;

 private:
  [[nodiscard]] bool add(const rpcrdma_piece& piece);

  std::span<const rpcrdma_piece> pieces_;
  std::vector<Item> items_;
  size_t size_ = 0;
  uint32_t xid_ = 0;
};

}  // namespace rpcrdma::core
