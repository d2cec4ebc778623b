// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Transport headers as bytes, good and bad.
#include "core/header.h"

#include <gtest/gtest.h>

#include "rpcrdma/unit/bytes.h"

namespace rpcrdma::core {
namespace {

using Verdict = DecodedHeader::Verdict;

struct Vector {
  const char* name;
  const char* bytes;
  Header header;
};

Header with(Procedure procedure, ChunkLists chunks) {
  Header header;
  header.xid = 0x12345678;
  header.credits = 32;
  header.procedure = procedure;
  header.chunks = std::move(chunks);
  return header;
}

const std::vector<Vector>& vectors() {
  static const std::vector<Vector> all{
      {"no chunks", "12345678 00000001 00000020 00000000 00000000 00000000 00000000",
       with(Procedure::kMsg, {})},
      {"two read chunks",
       "12345678 00000001 00000020 00000000"
       "00000001 00000028 00000007 00002711 00007f0000001000"
       "00000001 00000028 00000009 00000004 0000000000000008"
       "00000001 00003000 0000000a 00000010 0000000000000000"
       "00000000 00000000 00000000",
       with(Procedure::kMsg,
            {{{40, {7, 10001, 0x7f0000001000}}, {40, {9, 4, 8}}, {0x3000, {10, 16, 0}}}, {}, {}})},
      {"write chunks, one without a segment, and a reply chunk",
       "12345678 00000001 00000020 00000001 00000000"
       "00000001 00000002 00000001 00001000 0000000000001000"
       "                  00000002 00000064 0000000000003000"
       "00000001 00000000"
       "00000000"
       "00000001 00000001 00000004 00002000 ffffffffffffffff",
       with(Procedure::kNomsg,
            {{}, {{{1, 4096, 0x1000}, {2, 100, 0x3000}}, {}}, Chunk{{4, 8192, UINT64_MAX}}})},
      {"ERR_VERS", "12345678 00000001 00000020 00000004 00000001 00000001 00000001",
       Header::make_error(0x12345678, 32, HeaderError::kVersion)},
      {"ERR_CHUNK", "12345678 00000001 00000020 00000004 00000002",
       Header::make_error(0x12345678, 32, HeaderError::kChunk)},
  };
  return all;
}

TEST(Header, Vectors) {
  for (const Vector& vector : vectors()) {
    SCOPED_TRACE(vector.name);
    const Bytes bytes = hex(vector.bytes);
    Bytes room(bytes.size());
    EXPECT_EQ(vector.header.encode(room), bytes.size());
    EXPECT_EQ(room, bytes);
    // What follows is the RPC message.
    const auto decoded = decode_header(bytes + hex("0102030405060708"));
    EXPECT_EQ(decoded.verdict, Verdict::kGood);
    EXPECT_EQ(decoded.size, bytes.size());
    EXPECT_EQ(decoded.header, vector.header);
    room.pop_back();
    EXPECT_EQ(vector.header.encode(room), 0u);
  }
}

// At every length: nothing below the fixed part, no good body until it is whole.
TEST(Header, CutShort) {
  for (const Vector& vector : vectors()) {
    const Bytes bytes = hex(vector.bytes);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const Bytes part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      const auto decoded = decode_header(part);
      EXPECT_EQ(decoded.verdict, size < Header::kFixedSize ? Verdict::kShort : Verdict::kBadBody)
          << vector.name << " at " << size;
      EXPECT_TRUE(decoded.header.chunks == ChunkLists{});
    }
  }
}

TEST(Header, SizeOfChunkListsIsKnownBeforehand) {
  for (const Vector& vector : vectors()) {
    if (vector.header.procedure == Procedure::kError) continue;
    EXPECT_EQ(Header::kFixedSize + vector.header.chunks.wire_size(), hex(vector.bytes).size());
  }
}

TEST(Header, AnotherVersion) {
  for (const char* bytes : {"12345678 00000002 00000020 00000000 00000000 00000000 00000000",
                            "12345678 00000000 00000000 00000063"}) {
    const auto decoded = decode_header(hex(bytes));
    EXPECT_EQ(decoded.verdict, Verdict::kBadVersion);
    EXPECT_EQ(decoded.header.xid, 0x12345678u);
  }
}

TEST(Header, BadBodies) {
  const std::string fixed = "12345678 00000001 00000020 00000000";
  for (const char* body : {
           "00000002 00000000 00000000",                    // a bool that is none
           "00000000 00000001 ffffffff",                    // a count beyond everything
           "00000000 00000001 00000041",                    // one beyond the limit
           "00000000 00000000 00000001 10000000",           // in the Reply chunk
           "00000001 00000028 00000007 00000001 00000000",  // half a segment
       }) {
    EXPECT_EQ(decode_header(hex(fixed + body)).verdict, Verdict::kBadBody) << body;
  }
  EXPECT_EQ(decode_header(hex("12345678 00000001 00000020 00000004 00000003")).verdict,
            Verdict::kBadBody);
}

TEST(Header, ListsWithoutEnd) {
  Bytes reads = hex("12345678 00000001 00000020 00000000");
  Bytes writes = reads + hex("00000000");
  for (size_t i = 0; i < kSegmentsMax; ++i) {
    reads = reads + hex("00000001 00000028 00000007 00000001 0000000000000000");
    writes = writes + hex("00000001 00000000");
  }
  const Bytes end = hex("00000000 00000000 00000000");
  EXPECT_EQ(decode_header(reads + end).verdict, Verdict::kGood);
  EXPECT_EQ(decode_header(writes + end).verdict, Verdict::kGood);
  reads = reads + hex("00000001 00000028 00000007 00000001 0000000000000000");
  writes = writes + hex("00000001 00000000");
  EXPECT_EQ(decode_header(reads + end).verdict, Verdict::kBadBody);
  EXPECT_EQ(decode_header(writes + end).verdict, Verdict::kBadBody);
}

// What to do with them is the receiver's business.
TEST(Header, ProceduresWithoutChunks) {
  for (const char* procedure : {"00000002", "00000003", "00000005", "ffffffff"}) {
    const auto decoded =
        decode_header(hex("12345678 00000001 00000020") + hex(procedure) + hex("ffffffff"));
    EXPECT_EQ(decoded.verdict, Verdict::kGood);
    EXPECT_EQ(decoded.size, Header::kFixedSize);
  }
}

TEST(ChunkLists, AnyHandleIsOneOfTheirs) {
  EXPECT_EQ(ChunkLists{}.any_handle(), std::nullopt);
  EXPECT_EQ((ChunkLists{{}, {{}, {{5, 1, 1}}}, {}}).any_handle(), 5u);
  EXPECT_EQ((ChunkLists{{{4, {6, 1, 1}}}, {}, Chunk{{7, 1, 1}}}).any_handle(), 7u);
  EXPECT_EQ((ChunkLists{{{4, {6, 1, 1}}}, {}, Chunk{}}).any_handle(), 6u);
}

}  // namespace
}  // namespace rpcrdma::core
