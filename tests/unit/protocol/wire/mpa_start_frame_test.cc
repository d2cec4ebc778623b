// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MPA Request and Reply frames: golden vectors in both directions, every cut, and every invalid
// frame.
#include "protocol/wire/mpa_start_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "vector_file.h"

namespace uwarp {
namespace {

using Status = StartFrameDecode::Status;

std::vector<std::byte> encoded(const MpaStartFrame& frame) {
  std::vector<std::byte> bytes(MpaStartFrame::kSizeMax);
  bytes.resize(frame.encode(bytes));
  return bytes;
}

struct Golden {
  const char* name;
  bool reply;
};
constexpr Golden kGolden[] = {{"mpa/x01_request_revision1.hex", false},
                              {"mpa/x02_request_enhanced.hex", false},
                              {"mpa/x03_reply_enhanced.hex", true},
                              {"mpa/x04_reply_reject.hex", true}};

MpaStartFrame decode_golden(const Golden& golden) {
  const auto file = test::load_vector(golden.name);
  MpaStartFrame frame;
  const auto step = decode_start_frame(file.bytes, golden.reply, frame);
  EXPECT_EQ(step.status, Status::kFrame);
  EXPECT_EQ(step.consumed, file.bytes.size());
  return frame;
}

TEST(MpaStartFrame, DecodesRevision1Request) {
  const MpaStartFrame frame = decode_golden(kGolden[0]);
  EXPECT_FALSE(frame.is_reply);
  EXPECT_FALSE(frame.markers || frame.reject || frame.enhanced || frame.peer_to_peer);
  EXPECT_TRUE(frame.crc);
  EXPECT_EQ(frame.revision, 1);
  EXPECT_TRUE(frame.private_data.empty());
}

TEST(MpaStartFrame, DecodesEnhancedRequest) {
  const MpaStartFrame frame = decode_golden(kGolden[1]);
  EXPECT_TRUE(frame.crc && frame.enhanced && frame.peer_to_peer);
  EXPECT_TRUE(frame.rtr_write && frame.rtr_read);
  EXPECT_FALSE(frame.markers || frame.reject || frame.rtr_send);
  EXPECT_EQ(frame.revision, 2);
  EXPECT_EQ(frame.ird, 16);
  EXPECT_EQ(frame.ord, 16);
  EXPECT_EQ(test::text(frame.private_data.bytes()),
            std::string("\xf6\xab\x0e\x18\x01\x01\x03\x03", 8));
}

TEST(MpaStartFrame, DecodesEnhancedReply) {
  const MpaStartFrame frame = decode_golden(kGolden[2]);
  EXPECT_TRUE(frame.is_reply && frame.crc && frame.enhanced && frame.peer_to_peer);
  EXPECT_TRUE(frame.rtr_write);
  EXPECT_FALSE(frame.reject || frame.rtr_read || frame.rtr_send);
  EXPECT_EQ(frame.ird, 16);
  EXPECT_EQ(frame.ord, 8);
  EXPECT_EQ(frame.private_data.size(), 8u);
}

TEST(MpaStartFrame, DecodesReject) {
  const MpaStartFrame frame = decode_golden(kGolden[3]);
  EXPECT_TRUE(frame.is_reply && frame.crc && frame.reject);
  EXPECT_FALSE(frame.enhanced);
  EXPECT_EQ(frame.revision, 1);
  EXPECT_EQ(test::text(frame.private_data.bytes()), "busy");
}

TEST(MpaStartFrame, EncodesTheGoldenBytes) {
  for (const Golden& golden : kGolden)
    EXPECT_EQ(encoded(decode_golden(golden)), test::load_vector(golden.name).bytes) << golden.name;
}

// Cut anywhere: the decoder asks for more bytes, never for more than are missing, and leaves the
// frame unchanged. It ignores bytes behind the frame.
TEST(MpaStartFrame, EveryCut) {
  for (const Golden& golden : kGolden) {
    auto bytes = test::load_vector(golden.name).bytes;
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      MpaStartFrame frame;
      frame.ord = 0x1234;
      const auto step = decode_start_frame(std::span(bytes).first(cut), golden.reply, frame);
      ASSERT_EQ(step.status, Status::kNeedMore) << golden.name << " cut at " << cut;
      ASSERT_GE(step.wanted, 1u);
      ASSERT_LE(step.wanted, bytes.size() - cut);
      ASSERT_EQ(frame.ord, 0x1234);
    }
    const size_t size = bytes.size();
    bytes.resize(size + 100, std::byte{0xFF});
    MpaStartFrame frame;
    EXPECT_EQ(decode_start_frame(bytes, golden.reply, frame).consumed, size);
  }
}

MpaFailure expected_error(const std::string& note) {
  if (note == "bad-key") return MpaFailure::kBadKey;
  if (note == "bad-revision") return MpaFailure::kBadRevision;
  if (note == "private-data-too-long") return MpaFailure::kPrivateDataTooLong;
  EXPECT_EQ(note, "enhanced-too-short");
  return MpaFailure::kEnhancedTooShort;
}

// Each invalid frame is refused with its reason, as a whole or byte by byte. The fault is found at
// the byte that causes it, and stays the same. 5044-7.1.1-a, -b, -d; 6581-6-a.
TEST(MpaStartFrame, InvalidFrames) {
  for (const auto& file : test::load_vectors("mpa/invalid")) {
    SCOPED_TRACE(file.name);
    const bool reply = file.notes.at("frame") == "reply";
    const MpaFailure error = expected_error(file.notes.at("expect"));
    MpaStartFrame frame;
    const auto whole = decode_start_frame(file.bytes, reply, frame);
    EXPECT_EQ(whole.status, Status::kBad);
    EXPECT_EQ(whole.error, error);
    bool seen = false;
    for (size_t cut = 0; cut <= file.bytes.size(); ++cut) {
      const auto step = decode_start_frame(std::span(file.bytes).first(cut), reply, frame);
      ASSERT_NE(step.status, Status::kFrame);
      if (seen) {
        ASSERT_EQ(step.status, Status::kBad);
      }
      if (step.status == Status::kBad) {
        ASSERT_EQ(step.error, error);
      }
      seen = step.status == Status::kBad;
    }
  }
}

// Reserved flag bits are ignored, and so is S in revision 1. 5044-7.1.1-c.
// Proves: 5044-7.1.1-c
TEST(MpaStartFrame, ReservedBitsAreIgnored) {
  auto bytes = test::load_vector("mpa/x01_request_revision1.hex").bytes;
  bytes[16] = std::byte{0x5F};
  MpaStartFrame frame;
  ASSERT_EQ(decode_start_frame(bytes, false, frame).status, Status::kFrame);
  EXPECT_TRUE(frame.crc);
  EXPECT_FALSE(frame.enhanced || frame.markers || frame.reject);
  EXPECT_EQ(encoded(frame)[16], std::byte{0x40});
}

// At most 512 bytes of private data, including the enhanced word. 5044-7.1.1-d.
TEST(MpaStartFrame, PrivateDataLimits) {
  const std::vector<std::byte> bytes(513, std::byte{0xA5});
  for (const auto& [enhanced, limit] : {std::pair{false, 512u}, std::pair{true, 508u}}) {
    MpaStartFrame frame;
    frame.enhanced = enhanced;
    ASSERT_TRUE(frame.private_data.assign(std::span(bytes).first(limit)));
    const auto bytes = encoded(frame);
    ASSERT_EQ(bytes.size(), MpaStartFrame::kSizeMax);
    MpaStartFrame back;
    ASSERT_EQ(decode_start_frame(bytes, false, back).status, Status::kFrame);
    EXPECT_EQ(back.private_data.size(), limit);

    std::vector<std::byte> small(bytes.size() - 1);
    EXPECT_EQ(frame.encode(small), 0u);
    if (enhanced) {
      ASSERT_TRUE(frame.private_data.assign(std::span(bytes).first(limit + 1)));
      EXPECT_TRUE(encoded(frame).empty());
    } else {
      EXPECT_FALSE(frame.private_data.assign(std::span(bytes).first(limit + 1)));
      EXPECT_EQ(frame.private_data.size(), limit);
    }
  }
}

// Every bit of the flags and the enhanced word is in its own place when encoded and decoded.
// 6581-9.1-a.
// Proves: 6581-9.1-a
TEST(MpaStartFrame, EveryBitRoundTrips) {
  for (unsigned bits = 0; bits < 128; ++bits) {
    MpaStartFrame frame;
    frame.is_reply = (bits & 1) != 0;
    frame.markers = (bits & 2) != 0;
    frame.crc = (bits & 4) != 0;
    frame.enhanced = true;
    frame.peer_to_peer = (bits & 8) != 0;
    frame.rtr_send = (bits & 16) != 0;
    frame.rtr_write = (bits & 32) != 0;
    frame.rtr_read = (bits & 64) != 0;
    frame.ird = 0x2AAA;
    frame.ord = 0x1555;
    const auto bytes = encoded(frame);
    const auto word = [&](size_t at) { return std::to_integer<int>(bytes[at]); };
    EXPECT_EQ(word(16), 0x10 | (frame.markers ? 0x80 : 0) | (frame.crc ? 0x40 : 0));
    EXPECT_EQ(word(20), 0x2A | (frame.peer_to_peer ? 0x80 : 0) | (frame.rtr_send ? 0x40 : 0));
    EXPECT_EQ(word(22), 0x15 | (frame.rtr_write ? 0x80 : 0) | (frame.rtr_read ? 0x40 : 0));
    MpaStartFrame back;
    ASSERT_EQ(decode_start_frame(bytes, frame.is_reply, back).status, Status::kFrame);
    EXPECT_EQ(encoded(back), bytes);
    EXPECT_EQ(back.ird, 0x2AAA);
    EXPECT_EQ(back.ord, 0x1555);
  }
}

}  // namespace
}  // namespace uwarp
