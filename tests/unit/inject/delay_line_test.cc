// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Bytes on a wire: all of them come out, in their order, and none before its time.
#include "inject/delay_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>

namespace uwarp {
namespace {

constexpr uint64_t kLineUs = 1'000;

std::shared_ptr<Wire> wire(uint64_t latency_ns, uint64_t bits_per_second = 0,
                           uint64_t jitter_ns = 0) {
  WireTerms terms;
  terms.latency_ns = latency_ns;
  terms.bits_per_second = bits_per_second;
  terms.jitter_ns = jitter_ns;
  return std::make_shared<Wire>(terms);
}

size_t enter(DelayLine& line, const std::string& text, uint64_t now_ns) {
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  return line.enter({&piece, 1}, text.size(), now_ns);
}

std::string read(DelayLine& line, uint64_t now_ns, size_t most = 1 << 20) {
  std::string text(most, '\0');
  const iovec piece{text.data(), text.size()};
  text.resize(line.read({&piece, 1}, now_ns));
  return text;
}

TEST(DelayLine, BytesComeOutWhenTheirTimeHasCome) {
  DelayLine line(wire(20 * kLineUs));
  EXPECT_EQ(line.next_ns(), 0u);
  EXPECT_EQ(enter(line, "one", 0), 3u);
  EXPECT_EQ(enter(line, "two", 5 * kLineUs), 3u);
  EXPECT_EQ(line.next_ns(), 20 * kLineUs);
  EXPECT_EQ(read(line, 20 * kLineUs - 1), "");
  EXPECT_EQ(read(line, 20 * kLineUs, 2), "on");
  EXPECT_EQ(line.next_ns(), 20 * kLineUs);
  EXPECT_EQ(read(line, 24 * kLineUs), "e");
  EXPECT_EQ(line.next_ns(), 25 * kLineUs);
  EXPECT_EQ(read(line, 25 * kLineUs), "two");
  EXPECT_TRUE(line.empty());
  EXPECT_EQ(line.next_ns(), 0u);
  EXPECT_EQ(line.taken_bytes(), 6u);
}

TEST(DelayLine, AtARateTheyComeOutPieceByPiece) {
  DelayLine line(wire(0, 1'000'000'000));
  EXPECT_EQ(enter(line, std::string(3 * Wire::kPieceBytes, 'x'), 0), 3 * Wire::kPieceBytes);
  constexpr uint64_t kPieceNs = 8 * Wire::kPieceBytes;
  EXPECT_EQ(read(line, kPieceNs - 1).size(), 0u);
  EXPECT_EQ(read(line, kPieceNs).size(), Wire::kPieceBytes);
  EXPECT_EQ(read(line, 3 * kPieceNs).size(), 2 * Wire::kPieceBytes);
}

TEST(DelayLine, OutGivesNoMoreThanIsAskedFor) {
  DelayLine line(wire(1));
  (void)enter(line, std::string(20'000, 'x'), 0);
  EXPECT_TRUE(line.out(0).empty());
  ASSERT_EQ(line.out(1, 5).size(), 1u);
  EXPECT_EQ(line.out(1, 5)[0].iov_len, 5u);
  const auto pieces = line.out(1);
  ASSERT_EQ(pieces.size(), 3u);
  for (const iovec& piece : pieces) EXPECT_LE(piece.iov_len, DelayLine::kBlockBytes);
  line.take(20'000);
  EXPECT_TRUE(line.empty());
}

TEST(DelayLine, HurriedBytesComeOutAtOnceAndThoseBehindInTheirOrder) {
  DelayLine line(wire(1'000 * kLineUs));
  (void)enter(line, "early", 0);
  line.hurry();
  (void)enter(line, "late", 10);
  EXPECT_EQ(read(line, 10), "early");
  EXPECT_EQ(line.next_ns(), 1'000 * kLineUs + 10);
  line.clear();
  EXPECT_TRUE(line.empty());
  EXPECT_EQ(line.next_ns(), 0u);
}

TEST(DelayLine, ALineWithoutARateIsBounded) {
  DelayLine line(wire(5 * kLineUs));
  const std::string large(8 << 20, 'x');
  for (int i = 0; i < 4; ++i) EXPECT_EQ(enter(line, large, i), large.size());
  EXPECT_EQ(line.space(10), 0u);
  EXPECT_EQ(line.space_ns(10), 5 * kLineUs);
  EXPECT_EQ(read(line, 5 * kLineUs, 100).size(), 100u);
  EXPECT_EQ(line.space(5 * kLineUs), 100u);
}

// Random sizes and times: in order, complete, and never early, jitter or not.
TEST(DelayLine, KeepsTheOrderOfAStream) {
  constexpr size_t kBytes = 1'000'000;
  for (uint64_t jitter_ns : {uint64_t{0}, 15 * kLineUs}) {
    DelayLine line(wire(20 * kLineUs, 10'000'000'000, jitter_ns));
    std::mt19937 random(7);
    std::string sent, received;
    std::deque<std::pair<size_t, uint64_t>> earliest;  // bytes, and when the last may come
    uint64_t now = 0;
    while (sent.size() < kBytes || !line.empty()) {
      now += random() % (2 * kLineUs);
      if (const size_t space = line.space(now); space != 0 && sent.size() < kBytes) {
        std::string text(1 + random() % std::min<size_t>(space, 20'000), '\0');
        for (char& letter : text) letter = static_cast<char>(random());
        if (random() % 2 == 0) {
          ASSERT_EQ(enter(line, text, now), text.size());
        } else {
          size_t filled = 0;
          for (const iovec& piece : line.place(text.size())) {
            std::copy_n(text.data() + filled, piece.iov_len, static_cast<char*>(piece.iov_base));
            filled += piece.iov_len;
          }
          ASSERT_EQ(filled, text.size());
          line.entered(filled, now);
        }
        sent += text;
        earliest.emplace_back(sent.size(), now + 20 * kLineUs - jitter_ns);
      }
      received += read(line, now, 1 + random() % 30'000);
      while (!earliest.empty() && earliest.front().first <= received.size()) {
        ASSERT_GE(now, earliest.front().second);
        earliest.pop_front();
      }
    }
    EXPECT_TRUE(sent == received);
  }
}

}  // namespace
}  // namespace uwarp
