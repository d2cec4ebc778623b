// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An RPC program to test the transport with, its server, and calls to it. The program has one
// procedure: the call says how long a reply it wants, how many bytes of result, and carries data.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/rounding.h"
#include "core/xdr.h"
#include "rpcrdma/rpcrdma.hpp"

namespace rpcrdma {

using Bytes = std::vector<std::byte>;

inline Bytes pattern(size_t length, unsigned seed) {
  Bytes bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return bytes;
}

/// Waits for what happens soon, with a limit that a busy machine keeps.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// The call: XID, message type, bytes of filler wanted in the reply, bytes of result wanted, the
/// data as an opaque, one word.
constexpr uint32_t kTrailer = 0x7e57da7a;

struct Words {
  std::vector<uint32_t> values;
  Bytes bytes() const {
    Bytes room(values.size() * 4);
    core::XdrWriter writer(room);
    for (const uint32_t value : values) writer.u32(value);
    return room;
  }
};

/// One RPC: all its memory is here.
struct TestCall {
  TestCall(uint32_t xid, Bytes its_data, uint32_t filler, uint32_t result_length,
           size_t reply_size = 0)
      : data(std::move(its_data)),
        head(Words{{xid, 0, filler, result_length, static_cast<uint32_t>(data.size())}}.bytes()),
        tail(Words{{kTrailer}}.bytes()),
        reply(reply_size != 0 ? reply_size : 12 + core::round_up(filler) + result_length + 8),
        result(result_length) {
    pieces[0] = piece(head);
    pieces[1] = ddp_piece(data);
    pieces[2] = piece(tail);
    call.pieces = pieces;
    call.piece_count = 3;
    call.reply = reply.data();
    call.reply_size = reply.size();
    call.reply_max = 16 + core::round_up(filler);
    if (result_length != 0) {
      wanted = rpcrdma::result(result);
      call.results = &wanted;
      call.result_count = 1;
    }
  }
  TestCall(const TestCall&) = delete;
  TestCall& operator=(const TestCall&) = delete;

  uint32_t word(size_t index) const {
    uint32_t value = 0;
    core::XdrReader reader({reply.data() + index * 4, 4});
    EXPECT_TRUE(reader.u32(value));
    return value;
  }

  Bytes data, head, tail, reply, result;
  rpcrdma_piece pieces[3];
  rpcrdma_result wanted{};
  rpcrdma_call call{};
};

/// The reply: XID, message type, checksum of the data, the filler as an opaque without its length
/// word, the length of the result and the result, which is pattern(length, XID).
inline uint32_t checksum(std::span<const std::byte> data) {
  uint32_t sum = 1;
  for (const std::byte byte : data) sum = sum * 16777619 ^ static_cast<uint32_t>(byte);
  return sum;
}

struct ParsedCall {
  uint32_t xid = 0, type = 0, filler = 0, result = 0;
  std::span<const std::byte> data;
};

inline bool parse(std::span<const std::byte> message, ParsedCall& call) {
  core::XdrReader reader(message);
  uint32_t length = 0, trailer = 0;
  if (!reader.u32(call.xid) || !reader.u32(call.type) || !reader.u32(call.filler) ||
      !reader.u32(call.result) || !reader.u32(length))
    return false;
  const size_t padded = core::round_up(length);
  if (message.size() != 20 + padded + 4) return false;
  call.data = message.subspan(20, length);
  for (const std::byte pad : message.subspan(20 + length, padded - length))
    if (pad != std::byte{0}) return false;
  core::XdrReader end(message.last(4));
  return end.u32(trailer) && trailer == kTrailer;
}

/// Answers a call of the test program.
inline int answer(Request request) {
  ParsedCall call;
  if (!parse(request.message(), call)) {
    ADD_FAILURE() << "call of " << request.message().size() << " bytes is not as it was sent";
    return -EINVAL;
  }
  const Bytes head = Words{{call.xid, 1, checksum(call.data)}}.bytes();
  const Bytes filler = pattern(core::round_up(call.filler), 7);
  const Bytes length = Words{{call.result}}.bytes();
  std::vector<rpcrdma_piece> pieces{piece(head), piece(filler), piece(length)};
  if (call.result != 0) {
    rpcrdma_memory* memory = nullptr;
    void* room = rpcrdma_request_buffer(request.get(), call.result, &memory);
    const Bytes result = pattern(call.result, call.xid);
    std::memcpy(room, result.data(), result.size());
    pieces.push_back(ddp_piece({static_cast<std::byte*>(room), call.result}, memory));
  }
  return request.reply(pieces);
}

/// Checks the answer to a call that succeeded.
inline void expect_answer(const TestCall& test, uint32_t xid, uint32_t filler) {
  ASSERT_EQ(test.call.status, 0) << std::strerror(-test.call.status);
  const size_t plain = 12 + core::round_up(filler) + 4;
  ASSERT_GE(test.call.reply_length, plain);
  EXPECT_EQ(test.word(0), xid);
  EXPECT_EQ(test.word(2), checksum(test.data));
  const Bytes expected_filler = pattern(core::round_up(filler), 7);
  EXPECT_TRUE(std::equal(expected_filler.begin(), expected_filler.end(), test.reply.begin() + 12));
  const Bytes expected = pattern(test.result.size(), xid);
  EXPECT_EQ(test.word(plain / 4 - 1), expected.size());
  if (test.wanted.received != 0 || expected.empty()) {
    EXPECT_EQ(test.wanted.received, expected.size());
    EXPECT_EQ(test.call.reply_length, plain);
    EXPECT_EQ(test.result, expected);
  } else {
    ASSERT_EQ(test.call.reply_length, plain + core::round_up(expected.size()));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           test.reply.begin() + static_cast<ptrdiff_t>(plain)));
  }
}

constexpr char kHost[] = "127.0.0.1";

}  // namespace rpcrdma
