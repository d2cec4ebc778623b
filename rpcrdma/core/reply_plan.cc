// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/reply_plan.h"

#include <algorithm>

namespace rpcrdma::core {

namespace {

/// The chunk as the reply returns it: as many segments, each with what was put there.
/// RFC 8166 3.4.6.2.
class ChunkFiller {
 public:
  explicit ChunkFiller(Chunk& chunk) : chunk_(chunk) {
    for (Segment& segment : chunk_) {
      room_.push_back(segment.length);
      segment.length = 0;
    }
  }

  /// Calls write(offset, length, handle, to) for each part of `length` bytes. False: no room left.
  template <typename Write>
  [[nodiscard]] bool put(size_t length, Write&& write) {
    size_t offset = 0;
    while (offset < length) {
      while (at_ < chunk_.size() && chunk_[at_].length == room_[at_]) ++at_;
      if (at_ == chunk_.size()) return false;
      Segment& segment = chunk_[at_];
      const auto part =
          static_cast<uint32_t>(std::min<size_t>(length - offset, room_[at_] - segment.length));
      write(offset, part, segment.handle, segment.offset + segment.length);
      segment.length += part;
      offset += part;
    }
    return true;
  }

 private:
  Chunk& chunk_;
  std::vector<uint32_t> room_;
  size_t at_ = 0;
};

bool fill_write_chunk(const Message::Item& item, Chunk& chunk, ReplyPlan& plan) {
  ChunkFiller filler(chunk);
  return std::all_of(item.pieces.begin(), item.pieces.end(), [&](const rpcrdma_piece& piece) {
    return filler.put(piece.length,
                      [&](size_t offset, uint32_t length, uint32_t handle, uint64_t to) {
                        plan.item_writes.push_back({&piece, offset, length, handle, to});
                      });
  });
}

bool fill_reply_chunk(ReplyPlan& plan) {
  ChunkFiller filler(*plan.header.chunks.reply);
  return filler.put(plan.message_size,
                    [&](size_t offset, uint32_t length, uint32_t handle, uint64_t to) {
                      plan.message_writes.push_back({offset, length, handle, to});
                    });
}

size_t header_size(const ChunkLists& chunks) { return Header::kFixedSize + chunks.wire_size(); }

}  // namespace

std::optional<ReplyPlan> plan_reply(const Message& message, const ChunkLists& call, uint32_t xid,
                                    uint32_t credits, uint32_t server_to_client) {
  ReplyPlan plan;
  plan.header.xid = xid;
  plan.header.credits = credits;
  plan.header.chunks.writes = call.writes;
  plan.items_written = std::min(message.items().size(), call.writes.size());
  for (size_t i = 0; i < call.writes.size(); ++i) {
    Chunk& chunk = plan.header.chunks.writes[i];
    if (i >= plan.items_written)
      ChunkFiller unused(chunk);
    else if (!fill_write_chunk(message.items()[i], chunk, plan))
      return std::nullopt;
  }
  plan.message_size = message.size(plan.items_written);
  if (header_size(plan.header.chunks) + plan.message_size <= server_to_client) return plan;

  plan.header.procedure = Procedure::kNomsg;
  plan.header.chunks.reply = call.reply;
  if (!call.reply || header_size(plan.header.chunks) > server_to_client || !fill_reply_chunk(plan))
    return std::nullopt;
  return plan;
}

uint64_t longest_reply(const ChunkLists& call, uint32_t server_to_client) {
  ChunkLists chunks;
  chunks.writes = call.writes;
  const size_t header = header_size(chunks);
  const uint64_t inside = header < server_to_client ? server_to_client - header : 0;
  return std::max(inside, call.reply ? length_of(*call.reply) : 0);
}

}  // namespace rpcrdma::core
