// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a client checks a message that came back: nothing in it is used that does not fit
// what the call offered. Sans-IO. RFC 8166 3.4.6, 4.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/header.h"

namespace rpcrdma::core {

struct ReplyCheck {
  /// 0, -EPROTONOSUPPORT (ERR_VERS), or -EREMOTEIO (ERR_CHUNK, or a reply against the rules).
  int status = 0;
  /// The message is in the Reply chunk; otherwise it follows the header.
  bool in_reply_chunk = false;
  size_t length = 0;  ///< of the message
  /// Bytes put into each segment of the Write list, in the order of the segments.
  std::vector<uint32_t> received;
};

/// `received`: the whole message with its transport header, whose XID is that of a call which
/// offered these chunks.
ReplyCheck check_reply(const DecodedHeader& decoded, std::span<const std::byte> received,
                       const ChunkLists& offered);

/// The first word of an RPC message. Nothing below eight bytes, which are no RPC message.
bool has_xid(std::span<const std::byte> rpc_message, uint32_t xid);

}  // namespace rpcrdma::core
