// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What goes inline and what goes by chunks, on both sides; and messages made of pieces.
#include <gtest/gtest.h>

#include <cerrno>

#include "core/call_plan.h"
#include "core/reply_check.h"
#include "core/reply_plan.h"
#include "rpcrdma/unit/bytes.h"

namespace rpcrdma::core {
namespace {

const Bytes kText = hex("12345678") + Bytes(100000, std::byte{'t'});
const Bytes kItem(100000, std::byte{'d'});

rpcrdma_piece text(size_t length) { return {kText.data(), length, 0, nullptr}; }
rpcrdma_piece item(size_t length, unsigned more = 0) {
  return {kItem.data(), length, RPCRDMA_PIECE_DDP | more, nullptr};
}

// --- messages

TEST(Message, SizesAndPositions) {
  const rpcrdma_piece pieces[] = {text(40), item(5), item(4, RPCRDMA_PIECE_CONTINUED), text(8),
                                  item(3)};
  const auto message = Message::of(pieces);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->xid(), 0x12345678u);
  ASSERT_EQ(message->items().size(), 2u);
  EXPECT_EQ(message->items()[0].position, 40u);
  EXPECT_EQ(message->items()[0].length, 9u);
  EXPECT_EQ(message->items()[1].position, 60u);
  EXPECT_EQ(message->size(), 64u);
  EXPECT_EQ(message->size(1), 52u);
  EXPECT_EQ(message->size(2), 48u);
}

TEST(Message, Copies) {
  const rpcrdma_piece pieces[] = {text(8), item(5), item(1, RPCRDMA_PIECE_CONTINUED), text(4),
                                  item(3)};
  const auto message = Message::of(pieces);
  ASSERT_TRUE(message);
  const auto copy = [&](size_t left_out) {
    Bytes room(message->size(left_out), std::byte{0xff});
    message->copy(room, left_out);
    return room;
  };
  const Bytes head = hex("12345678 74747474"), middle = hex("12345678");
  EXPECT_EQ(copy(0), head + hex("646464646464 0000") + middle + hex("646464 00"));
  EXPECT_EQ(copy(1), head + middle + hex("646464 00"));
  EXPECT_EQ(copy(2), head + middle);
}

TEST(Message, WhatIsNone) {
  const auto is_message = [](std::vector<rpcrdma_piece> pieces) {
    return Message::of(pieces).has_value();
  };
  EXPECT_FALSE(is_message({}));
  EXPECT_FALSE(is_message({text(4)}));
  EXPECT_FALSE(is_message({text(2), text(8)}));
  EXPECT_FALSE(is_message({item(8), text(8)}));  // no XID
  EXPECT_FALSE(is_message({text(9), item(8)}));  // not at a word
  EXPECT_FALSE(is_message({text(8), item(4), text(4), item(4, RPCRDMA_PIECE_CONTINUED)}));
  EXPECT_FALSE(is_message({text(8), {kText.data(), 4, RPCRDMA_PIECE_CONTINUED, nullptr}}));
  EXPECT_FALSE(is_message({text(8), {kText.data(), 4, 4, nullptr}}));  // unknown flag
  EXPECT_FALSE(is_message({text(8), {nullptr, 4, 0, nullptr}}));
  EXPECT_FALSE(is_message({text(8), {kText.data(), SIZE_MAX, 0, nullptr}}));
  EXPECT_TRUE(is_message({text(8), {nullptr, 0, 0, nullptr}}));
}

// --- calls

class PlannedCall {
 public:
  explicit PlannedCall(std::vector<rpcrdma_piece> pieces) : pieces_(std::move(pieces)) {}
  PlannedCall& reply(size_t max, size_t size) {
    wishes_.reply_max = max, wishes_.reply_size = size;
    return *this;
  }
  PlannedCall& result(size_t length) {
    results_.push_back({nullptr, length, 0, nullptr, 0});
    return *this;
  }
  PlannedCall& always_chunks() {
    wishes_.always_chunks = true;
    return *this;
  }
  std::optional<CallPlan> at(uint32_t client_to_server, uint32_t server_to_client) {
    wishes_.results = results_;
    return plan_call(*Message::of(pieces_), wishes_, {client_to_server, server_to_client, false});
  }

 private:
  std::vector<rpcrdma_piece> pieces_;
  std::vector<rpcrdma_result> results_;
  CallWishes wishes_{128, 128, {}, false};
};

constexpr CallPlan kInline{}, kReads{true, false, false, false}, kLong{false, true, false, false},
    kLongReads{true, true, false, false}, kResults{false, false, true, false},
    kReplyChunk{false, false, false, true}, kResultsAndReply{false, false, true, true};

TEST(CallPlan, AsMuchInlineAsFits) {
  EXPECT_EQ(PlannedCall({text(996)}).at(1024, 1024), kInline);
  EXPECT_EQ(PlannedCall({text(1000)}).at(1024, 1024), kLong);
  EXPECT_EQ(PlannedCall({text(500), item(496)}).at(1024, 1024), kInline);
  EXPECT_EQ(PlannedCall({text(500), item(497)}).at(1024, 1024), kReads);
  EXPECT_EQ(PlannedCall({text(2000), item(2000)}).at(1024, 1024), kLongReads);
  EXPECT_EQ(PlannedCall({text(2000), item(2000)}).at(4096, 1024), kInline);
}

// Too many segments for the Send: all in one, with a copy.
TEST(CallPlan, ManyPieces) {
  std::vector<rpcrdma_piece> pieces{text(40), item(100)};
  while (pieces.size() < 64) pieces.push_back(item(100, RPCRDMA_PIECE_CONTINUED));
  EXPECT_EQ(PlannedCall(pieces).at(1024, 1024), kLong);
  EXPECT_EQ(PlannedCall(pieces).at(4096, 1024), kReads);
}

TEST(CallPlan, NothingFits) {
  PlannedCall call({text(40)});
  for (int i = 0; i < 60; ++i) call.result(4096);
  EXPECT_EQ(call.at(1024, 1024), std::nullopt);
}

// The GETATTR of the text books: its reply fits one threshold and not the other.
// Proves: 8797-3.1-a
TEST(CallPlan, ReplyChunkWhereTheThresholdAsksForIt) {
  PlannedCall call({text(100)});
  call.reply(2000, 2000);
  EXPECT_EQ(call.at(1024, 1024), kReplyChunk);
  EXPECT_EQ(call.at(4096, 4096), kInline);
  EXPECT_EQ(call.at(4096, 2028), kInline);
  EXPECT_EQ(call.at(4096, 2027), kReplyChunk);
}

TEST(CallPlan, ResultsInlineWhereThereIsRoom) {
  EXPECT_EQ(PlannedCall({text(100)}).reply(128, 1000).result(512).at(1024, 1024), kInline);
  EXPECT_EQ(PlannedCall({text(100)}).reply(128, 1000).result(868).at(1024, 1024), kInline);
  EXPECT_EQ(PlannedCall({text(100)}).reply(128, 1000).result(869).at(1024, 1024), kResults);
  // There is no room in the caller's memory.
  EXPECT_EQ(PlannedCall({text(100)}).reply(128, 639).result(512).at(1024, 1024), kResults);
  EXPECT_EQ(PlannedCall({text(100)}).reply(1200, 4000).result(5000).at(1024, 1024),
            kResultsAndReply);
}

TEST(CallPlan, AlwaysChunks) {
  EXPECT_EQ(PlannedCall({text(40), item(4)}).always_chunks().at(1024, 1024), kReads);
  EXPECT_EQ(PlannedCall({text(40)}).always_chunks().result(4).at(1024, 1024), kResults);
}

// --- replies

const ChunkLists kOffered{{},
                          {{{1, 4096, 0x1000}, {2, 100, 0x3000}}, {{3, 50, 0x4000}}},
                          Chunk{{4, 3000, 0x5000}, {5, 3000, 0x9000}}};

std::optional<ReplyPlan> reply_to(const ChunkLists& call, std::vector<rpcrdma_piece> pieces) {
  static std::vector<rpcrdma_piece> kept;  // the plan points to them
  kept = std::move(pieces);
  return plan_reply(*Message::of(kept), call, 0x12345678, 9, 1024);
}

TEST(ReplyPlan, Inline) {
  const auto plan = reply_to({}, {text(24), item(100)});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->header.procedure, Procedure::kMsg);
  EXPECT_EQ(plan->message_size, 124u);
  EXPECT_EQ(plan->items_written, 0u);
  EXPECT_TRUE(plan->item_writes.empty());
}

TEST(ReplyPlan, ItemsFillTheirChunks) {
  const auto plan = reply_to(kOffered, {text(24), item(4000), item(150, RPCRDMA_PIECE_CONTINUED),
                                        text(4), item(20), text(4), item(10)});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->item_writes.size(), 4u);
  const auto is = [&](size_t index, size_t offset, uint32_t length, uint32_t handle, uint64_t to) {
    const auto& one = plan->item_writes[index];
    EXPECT_EQ(std::tuple(one.offset, one.length, one.handle, one.to),
              std::tuple(offset, length, handle, to));
  };
  is(0, 0, 4000, 1, 0x1000);
  is(1, 0, 96, 1, 0x1000 + 4000);
  is(2, 96, 54, 2, 0x3000);
  is(3, 0, 20, 3, 0x4000);
  // The third item has no chunk, and is inline with its padding.
  EXPECT_EQ(plan->items_written, 2u);
  EXPECT_EQ(plan->message_size, 24u + 4 + 4 + 12);
  EXPECT_EQ(plan->header.chunks.writes,
            (std::vector<Chunk>{{{1, 4096, 0x1000}, {2, 54, 0x3000}}, {{3, 20, 0x4000}}}));
  EXPECT_FALSE(plan->header.chunks.reply);
}

TEST(ReplyPlan, ChunksThatAreNotUsedComeBackEmpty) {
  const auto plan = reply_to(kOffered, {text(24)});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->header.procedure, Procedure::kMsg);
  EXPECT_EQ(plan->header.chunks.writes,
            (std::vector<Chunk>{{{1, 0, 0x1000}, {2, 0, 0x3000}}, {{3, 0, 0x4000}}}));
}

TEST(ReplyPlan, LongReply) {
  const auto plan = reply_to(kOffered, {text(5000), item(8)});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->header.procedure, Procedure::kNomsg);
  EXPECT_EQ(plan->message_writes,
            (std::vector<ReplyPlan::MessageWrite>{{0, 3000, 4, 0x5000}, {3000, 2000, 5, 0x9000}}));
  EXPECT_EQ(*plan->header.chunks.reply, (Chunk{{4, 3000, 0x5000}, {5, 2000, 0x9000}}));
}

TEST(ReplyPlan, WhatDoesNotFit) {
  EXPECT_FALSE(reply_to({}, {text(1000)}));
  EXPECT_FALSE(reply_to(kOffered, {text(6004)}));
  EXPECT_FALSE(reply_to(kOffered, {text(24), item(4197)}));
  EXPECT_TRUE(reply_to(kOffered, {text(6000)}));
  EXPECT_TRUE(reply_to(kOffered, {text(24), item(4196)}));
}

TEST(ReplyPlan, LongestReply) {
  EXPECT_EQ(longest_reply({}, 1024), 1024u - 28);
  EXPECT_EQ(longest_reply(kOffered, 1024), 6000u);
  EXPECT_EQ(longest_reply({{}, {}, Chunk{{1, 10, 0}}}, 1024), 1024u - 28);
}

// --- what comes back

ReplyCheck check(Header header, const Bytes& message, const ChunkLists& offered = kOffered) {
  Bytes room(1000);
  header.xid = 0x12345678;
  room.resize(header.encode(room));
  const Bytes received = room + message;
  return check_reply(decode_header(received), received, offered);
}

Header reply_header(Procedure procedure, ChunkLists chunks) {
  Header header;
  header.procedure = procedure;
  header.chunks = std::move(chunks);
  return header;
}

const Bytes kReply = hex("12345678 00000001 00000000 00000000");

TEST(ReplyCheck, Good) {
  const auto inline_one = check(reply_header(Procedure::kMsg, {}), kReply);
  EXPECT_EQ(inline_one.status, 0);
  EXPECT_EQ(inline_one.length, kReply.size());
  EXPECT_EQ(inline_one.received, (std::vector<uint32_t>{0, 0, 0}));
  const auto with_results =
      check(reply_header(Procedure::kMsg,
                         {{}, {{{1, 4096, 0x1000}, {2, 7, 0x3000}}, {{3, 0, 0x4000}}}, {}}),
            kReply);
  EXPECT_EQ(with_results.status, 0);
  EXPECT_EQ(with_results.received, (std::vector<uint32_t>{4096, 7, 0}));
  const auto long_one = check(
      reply_header(Procedure::kNomsg, {{}, {}, Chunk{{4, 3000, 0x5000}, {5, 12, 0x9000}}}), {});
  EXPECT_EQ(long_one.status, 0);
  EXPECT_TRUE(long_one.in_reply_chunk);
  EXPECT_EQ(long_one.length, 3012u);
}

TEST(ReplyCheck, Errors) {
  EXPECT_EQ(check(Header::make_error(0, 1, HeaderError::kVersion), {}).status, -EPROTONOSUPPORT);
  EXPECT_EQ(check(Header::make_error(0, 1, HeaderError::kChunk), {}).status, -EREMOTEIO);
}

TEST(ReplyCheck, ChunksThatWereNotOfferedAreRefused) {
  const auto refused = [](Procedure procedure, ChunkLists chunks, const Bytes& message = kReply) {
    return check(reply_header(procedure, std::move(chunks)), message).status == -EREMOTEIO;
  };
  EXPECT_TRUE(refused(Procedure::kMsg, {{{8, {1, 1, 1}}}, {}, {}}));  // Read chunks in a reply
  EXPECT_TRUE(refused(Procedure::kMsg, {{}, {{{1, 4096, 0}, {2, 101, 0}}, {{3, 0, 0}}}, {}}));
  EXPECT_TRUE(refused(Procedure::kMsg, {{}, {{{1, 4096, 0}}, {{3, 0, 0}}}, {}}));
  EXPECT_TRUE(refused(Procedure::kMsg, {{}, {{{1, 1, 0}, {2, 1, 0}}}, {}}));
  EXPECT_TRUE(refused(Procedure::kNomsg, {}));
  EXPECT_TRUE(refused(Procedure::kNomsg, {{}, {}, Chunk{{4, 3001, 0}, {5, 0, 0}}}));
  EXPECT_TRUE(refused(Procedure::kNomsg, {{}, {}, Chunk{{4, 4, 0}, {5, 0, 0}}}));  // no message
  EXPECT_TRUE(refused(Procedure::kMsg, {}, hex("12345678")));
  EXPECT_TRUE(refused(Procedure::kMsg, {}, hex("12345679 00000001")));  // another call's
  EXPECT_EQ(
      check(reply_header(Procedure::kNomsg, {{}, {}, Chunk{{4, 30, 0}, {5, 0, 0}}}), {}, {}).status,
      -EREMOTEIO);
}

}  // namespace
}  // namespace rpcrdma::core
