// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Calls and replies with several data items of lengths that XDR pads: chunks have no padding, but
// what follows them begins at a word. RFC 8166 3.4.5.2, 3.4.6.2.
#include <algorithm>

#include "rpcrdma/verbs/rpcrdma_fixture.h"

namespace rpcrdma {
namespace {

uint32_t word_at(std::span<const std::byte> message, size_t at) {
  uint32_t value = 0;
  core::XdrReader reader(message.subspan(at));
  EXPECT_TRUE(reader.u32(value));
  return value;
}

/// XID, message type, number of items, the items as opaques, one word.
class ItemMessage {
 public:
  ItemMessage(uint32_t xid, uint32_t type, const std::vector<rpcrdma_piece>& items) {
    texts_.push_back(Words{{xid, type, static_cast<uint32_t>(items.size())}}.bytes());
    for (const rpcrdma_piece& item : items)
      texts_.push_back(Words{{static_cast<uint32_t>(item.length)}}.bytes());
    texts_.push_back(Words{{kTrailer}}.bytes());
    pieces_.push_back(piece(texts_.front()));
    for (size_t i = 0; i < items.size(); ++i) {
      pieces_.push_back(piece(texts_[i + 1]));
      pieces_.push_back(items[i]);
    }
    pieces_.push_back(piece(texts_.back()));
  }
  const std::vector<rpcrdma_piece>& pieces() const { return pieces_; }

 private:
  std::vector<Bytes> texts_;
  std::vector<rpcrdma_piece> pieces_;
};

constexpr size_t kHeadSize = 12;

/// Sends the items of a call back.
void echo(Request request) {
  const auto call = request.message();
  std::vector<rpcrdma_piece> items;
  size_t at = kHeadSize;
  for (uint32_t left = word_at(call, 8); left > 0; --left) {
    const uint32_t length = word_at(call, at);
    const auto data = call.subspan(at + 4, core::round_up(length));
    const auto padding = data.subspan(length);
    EXPECT_EQ(std::count(padding.begin(), padding.end(), std::byte{0}),
              static_cast<ptrdiff_t>(padding.size()));
    rpcrdma_memory* memory = nullptr;
    void* room = rpcrdma_request_buffer(request.get(), length, &memory);
    std::memcpy(room, data.data(), length);
    items.push_back(ddp_piece({static_cast<std::byte*>(room), length}, memory));
    at += 4 + data.size();
  }
  EXPECT_EQ(word_at(call, at), kTrailer);
  EXPECT_EQ(at + 4, call.size());
  EXPECT_EQ(request.reply(ItemMessage(word_at(call, 0), 1, items).pieces()), 0);
}

class SeveralItems : public testing::Test {
 protected:
  /// One call with a room for each item that comes back; all are compared.
  void exchange(const std::vector<size_t>& lengths, unsigned flags) {
    std::vector<Bytes> sent, rooms;
    std::vector<rpcrdma_piece> items;
    std::vector<rpcrdma_result> results;
    for (const size_t length : lengths) {
      items.push_back(ddp_piece(sent.emplace_back(pattern(length, unsigned(length)))));
      results.push_back(result(rooms.emplace_back(length)));
    }
    const uint32_t xid = client_.next_xid();
    const ItemMessage message(xid, 0, items);
    Bytes reply(120000);
    rpcrdma_call call{};
    call.pieces = message.pieces().data();
    call.piece_count = static_cast<unsigned>(message.pieces().size());
    call.flags = flags;
    call.reply = reply.data();
    call.reply_size = reply.size();
    call.reply_max = kHeadSize + 4 * (lengths.size() + 1);
    call.results = results.data();
    call.result_count = static_cast<unsigned>(results.size());
    ASSERT_EQ(rpcrdma_client_call(client_.get(), &call), 0);
    reply.resize(call.reply_length);
    EXPECT_EQ(word_at(reply, 0), xid);
    take_inline(reply, results);
    EXPECT_EQ(rooms, sent);
  }

  /// What was not put into the rooms is in the message.
  static void take_inline(std::span<const std::byte> reply, std::span<rpcrdma_result> results) {
    size_t at = kHeadSize;
    for (const rpcrdma_result& one : results) {
      ASSERT_EQ(word_at(reply, at), one.length);
      at += 4;
      if (one.received == 0) {
        std::memcpy(one.base, reply.data() + at, one.length);
        at += core::round_up(one.length);
      } else {
        EXPECT_EQ(one.received, one.length);
      }
    }
    EXPECT_EQ(word_at(reply, at), kTrailer);
    EXPECT_EQ(reply.size(), at + 4);
  }

  Server server_{kHost, "", &echo, ServerOptions()};
  Client client_{kHost, std::to_string(server_.port()), ClientOptions()};
};

TEST_F(SeveralItems, OfOddLengths) {
  const std::vector<std::vector<size_t>> small{{1, 2, 3}, {4, 7, 8}, {5}};
  const std::vector<std::vector<size_t>> large{{5001, 3, 70002, 20000}, {9999}};
  for (const auto& lengths : small) exchange(lengths, 0);
  EXPECT_EQ(client_.statistics().read_chunks, 0u);
  for (const auto& lengths : large) exchange(lengths, 0);
  EXPECT_EQ(client_.statistics().read_chunks, 5u);
  EXPECT_EQ(client_.statistics().write_chunks_used, 5u);
  for (const auto& lengths : small) exchange(lengths, RPCRDMA_CALL_CHUNKS);
  EXPECT_EQ(client_.statistics().read_chunks, 12u);
}

}  // namespace
}  // namespace rpcrdma
