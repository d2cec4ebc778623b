// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a server sends inside a Send and what it writes into the chunks that came with the call.
// Sans-IO. RFC 8166 3.4.6, 3.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/header.h"
#include "core/message.h"

namespace rpcrdma::core {

struct ReplyPlan {
  /// Bytes of a data item, from `offset` in one piece, to the requester's memory.
  struct ItemWrite {
    const rpcrdma_piece* piece;
    size_t offset;
    uint32_t length;
    uint32_t handle;
    uint64_t to;
    bool operator==(const ItemWrite&) const = default;
  };
  /// Bytes of the message without the items that are written, from `offset`.
  struct MessageWrite {
    size_t offset;
    uint32_t length;
    uint32_t handle;
    uint64_t to;
    bool operator==(const MessageWrite&) const = default;
  };

  Header header;
  size_t items_written = 0;  ///< the message's first items go to Write chunks
  size_t message_size = 0;   ///< of the message without these
  std::vector<ItemWrite> item_writes;
  std::vector<MessageWrite> message_writes;  ///< into the Reply chunk, when the header is kNomsg
};

/// Fills the chunks of the call in their order. Nothing: an item does not fit its chunk, or the
/// message neither a Send nor the Reply chunk; the answer to that is ERR_CHUNK.
std::optional<ReplyPlan> plan_reply(const Message& message, const ChunkLists& call, uint32_t xid,
                                    uint32_t credits, uint32_t server_to_client);

/// The longest message that plan_reply() can place, the items in Write chunks not counted.
uint64_t longest_reply(const ChunkLists& call, uint32_t server_to_client);

}  // namespace rpcrdma::core
