// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RPC-over-RDMA messages: any bytes, as a server and as a client take them. Checked: a decoded
// header encodes to the same bytes; the parts of a call cover it without overlap and stay within
// what was sent and offered; a reply is accepted only within what the call offered; a reply to the
// call keeps within its chunks.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/call_layout.h"
#include "core/header.h"
#include "core/reply_check.h"
#include "core/reply_plan.h"

namespace {

using namespace rpcrdma::core;  // NOLINT: all of it is under test

constexpr size_t kCallMax = 1 << 20;
constexpr uint32_t kThreshold = 4096;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_round_trip(const DecodedHeader& decoded, std::span<const std::byte> input) {
  // Procedures that are never sent cannot be encoded.
  if (decoded.header.procedure != Procedure::kMsg &&
      decoded.header.procedure != Procedure::kNomsg &&
      decoded.header.procedure != Procedure::kError)
    return;
  std::vector<std::byte> room(decoded.size);
  check(decoded.header.encode(room) == decoded.size);
  check(std::equal(room.begin(), room.end(), input.begin()));
  if (!room.empty()) {
    room.pop_back();
    check(decoded.header.encode(room) == 0);
  }
}

struct Part {
  size_t to, length;
};

void check_layout(const CallLayout& layout, size_t inline_size) {
  check(layout.size <= kCallMax);
  std::vector<Part> parts;
  for (const auto& copy : layout.copies) {
    check(copy.from <= inline_size && copy.length <= inline_size - copy.from);
    parts.push_back({copy.to, copy.length});
  }
  for (const auto& read : layout.reads) parts.push_back({read.to, read.source.length});
  for (const auto& padding : layout.paddings) {
    check(padding.length < 4);
    parts.push_back({padding.to, padding.length});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.to < b.to; });
  size_t end = 0;
  for (const Part& part : parts) {
    check(part.to == end && part.length > 0);
    end += part.length;
  }
  check(end == layout.size);
}

void check_reply_to(const Header& call) {
  static const std::vector<std::byte> text(9000), item(5001);
  const rpcrdma_piece pieces[] = {{text.data(), 20, 0, nullptr},
                                  {item.data(), 0, RPCRDMA_PIECE_DDP, nullptr},
                                  {text.data(), 12, 0, nullptr},
                                  {item.data(), item.size(), RPCRDMA_PIECE_DDP, nullptr},
                                  {text.data(), call.credits % text.size() / 4 * 4, 0, nullptr}};
  const auto message = Message::of(pieces);
  check(message.has_value());
  const auto plan = plan_reply(*message, call.chunks, call.xid, 1, kThreshold);
  if (!plan) return;
  uint64_t written = 0;
  for (const auto& one : plan->item_writes) {
    check(one.offset <= one.piece->length && one.length <= one.piece->length - one.offset);
    written += one.length;
  }
  uint64_t announced = 0;
  for (size_t i = 0; i < call.chunks.writes.size(); ++i) {
    const Chunk& offered = call.chunks.writes[i];
    const Chunk& used = plan->header.chunks.writes[i];
    check(used.size() == offered.size());
    for (size_t k = 0; k < used.size(); ++k) check(used[k].length <= offered[k].length);
    announced += length_of(used);
  }
  check(written == announced);
  std::vector<std::byte> room(kThreshold);
  const size_t header = plan->header.encode(room);
  check(header != 0);
  if (plan->header.procedure == Procedure::kMsg) {
    check(header + plan->message_size <= kThreshold);
  } else {
    check(length_of(*plan->header.chunks.reply) == plan->message_size);
    check(plan->message_size <= longest_reply(call.chunks, kThreshold));
  }
  // The client that made the call receives the reply.
  if (plan->header.procedure == Procedure::kNomsg && plan->message_size >= 8) {
    const auto back = decode_header(std::span(room).first(header));
    check(back.verdict == DecodedHeader::Verdict::kGood && back.header == plan->header);
    check(check_reply(back, room, call.chunks).status == 0);
  }
}

void check_as_reply(const DecodedHeader& decoded, std::span<const std::byte> input) {
  const ChunkLists offered{
      {}, {{{1, 4096, 0x1000}}, {{2, 100, 0x3000}, {3, 8, 0x4000}}}, Chunk{{4, 8192, 0x5000}}};
  const ReplyCheck reply = check_reply(decoded, input, offered);
  check(reply.status == 0 || reply.status == -EREMOTEIO || reply.status == -EPROTONOSUPPORT);
  if (reply.status != 0) return;
  check(reply.received.size() == 3 && reply.length >= 8);
  check(reply.received[0] <= 4096 && reply.received[1] <= 100 && reply.received[2] <= 8);
  check(reply.length <= (reply.in_reply_chunk ? 8192 : input.size() - decoded.size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto input = std::as_bytes(std::span(bytes, size));
  const DecodedHeader decoded = decode_header(input);
  check_as_reply(decoded, input);
  if (decoded.verdict != DecodedHeader::Verdict::kGood) return 0;
  check(decoded.size >= Header::kFixedSize && decoded.size <= size);
  check(decoded.header.chunks.segment_count() <= 3 * kSegmentsMax);
  check_round_trip(decoded, input);
  if (const auto layout = lay_out_call(decoded.header, size - decoded.size, kCallMax))
    check_layout(*layout, size - decoded.size);
  check_reply_to(decoded.header);
  return 0;
}
