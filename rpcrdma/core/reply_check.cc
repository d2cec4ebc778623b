// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/reply_check.h"

#include <cerrno>

#include "core/message.h"

namespace rpcrdma::core {

namespace {

/// A returned chunk has as many segments as the offered one, each no longer.
bool fits(const Chunk& returned, const Chunk& offered) {
  if (returned.size() != offered.size()) return false;
  for (size_t i = 0; i < returned.size(); ++i)
    if (returned[i].length > offered[i].length) return false;
  return true;
}

/// A server that uses no Write chunk may leave out the list.
bool take_writes(const std::vector<Chunk>& returned, const std::vector<Chunk>& offered,
                 std::vector<uint32_t>& received) {
  if (!returned.empty() && returned.size() != offered.size()) return false;
  for (size_t i = 0; i < offered.size(); ++i) {
    if (!returned.empty() && !fits(returned[i], offered[i])) return false;
    for (size_t k = 0; k < offered[i].size(); ++k)
      received.push_back(returned.empty() ? 0 : returned[i][k].length);
  }
  return true;
}

bool check_message(const DecodedHeader& decoded, std::span<const std::byte> received,
                   const ChunkLists& offered, ReplyCheck& check) {
  const ChunkLists& chunks = decoded.header.chunks;
  if (!chunks.reads.empty() || !take_writes(chunks.writes, offered.writes, check.received))
    return false;
  if (decoded.header.procedure == Procedure::kMsg) {
    const auto message = received.subspan(decoded.size);
    check.length = message.size();
    return has_xid(message, decoded.header.xid);
  }
  if (!chunks.reply || !offered.reply || !fits(*chunks.reply, *offered.reply)) return false;
  check.in_reply_chunk = true;
  check.length = length_of(*chunks.reply);
  return check.length >= Message::kSizeMin;
}

}  // namespace

bool has_xid(std::span<const std::byte> rpc_message, uint32_t xid) {
  uint32_t found = 0;
  return rpc_message.size() >= Message::kSizeMin && XdrReader(rpc_message).u32(found) &&
         found == xid;
}

ReplyCheck check_reply(const DecodedHeader& decoded, std::span<const std::byte> received,
                       const ChunkLists& offered) {
  ReplyCheck check;
  const Header& header = decoded.header;
  if (decoded.verdict != DecodedHeader::Verdict::kGood) {
    check.status = -EREMOTEIO;
  } else if (header.procedure == Procedure::kError) {
    check.status = header.error == HeaderError::kVersion ? -EPROTONOSUPPORT : -EREMOTEIO;
  } else if ((header.procedure != Procedure::kMsg && header.procedure != Procedure::kNomsg) ||
             !check_message(decoded, received, offered, check)) {
    check.status = -EREMOTEIO;
  }
  if (check.status != 0) check.received.clear();
  return check;
}

}  // namespace rpcrdma::core
