// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One direction of a ring: records, wrapping, going back to the start when empty, and a peer that
// writes nonsense.
#include "carrier/byte_ring.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace uwarp {
namespace {

constexpr uint32_t kRing = 1024;

struct OneWay {
  RingControl control;
  alignas(8) std::byte bytes[kRing] = {};
  RingWriter writer{control, bytes, kRing};
  RingReader reader{control, bytes, kRing};

  /// Writes as much of `text` as fits; false if some is left.
  bool write(const std::string& text) {
    EXPECT_TRUE(writer.poll());
    for (size_t at = 0; at != text.size();) {
      const uint32_t fits = writer.space(static_cast<uint32_t>(text.size() - at));
      if (fits == 0) return writer.publish(), false;
      std::memcpy(writer.place(), text.data() + at, fits);
      writer.put(RingRecord::kBytes, fits);
      at += fits;
    }
    writer.publish();
    return true;
  }
  std::string read(size_t most = ~size_t{0}) {
    std::string text;
    while (text.size() < most && reader.begin()) {
      const auto size = static_cast<uint32_t>(std::min<size_t>(reader.left(), most - text.size()));
      text.append(reinterpret_cast<const char*>(reader.data()), size);
      reader.advance(size);
    }
    (void)reader.release();
    return text;
  }
};

TEST(ByteRing, BytesArriveAsTheyWereSent) {
  OneWay ring;
  EXPECT_EQ(ring.read(), "");
  ASSERT_TRUE(ring.write("hello"));
  ASSERT_TRUE(ring.write(" you"));
  EXPECT_EQ(ring.read(2), "he");
  EXPECT_EQ(ring.read(), "llo you");
  EXPECT_EQ(ring.read(), "");
}

TEST(ByteRing, RandomPiecesOverManyRounds) {
  OneWay ring;
  std::mt19937 random(7);
  std::string sent, got;
  for (int i = 0; i < 20000; ++i) {
    std::string piece(1 + random() % 300, static_cast<char>('a' + i % 26));
    if (random() % 2 == 0) {
      const uint32_t before = ring.writer.free_bytes();
      if (before > piece.size() + 300 && ring.write(piece)) sent += piece;
    } else {
      got += ring.read(random() % 400);
    }
    ASSERT_FALSE(ring.reader.broken());
  }
  got += ring.read();
  EXPECT_EQ(got, sent);
}

TEST(ByteRing, AnEmptyOneBeginsAgainAtItsStart) {
  OneWay ring;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(ring.write(std::to_string(i)));
    ASSERT_EQ(ring.read(), std::to_string(i));
    EXPECT_LE(RingPosition::of(ring.control.head.load()).bytes, 16u);
  }
}

TEST(ByteRing, AFullOneTakesNoMore) {
  OneWay ring;
  size_t written = 0;
  while (ring.write(std::string(40, 'x'))) written += 40;
  EXPECT_GT(written, kRing / 2);
  EXPECT_FALSE(ring.writer.moved());
  EXPECT_GE(ring.read().size(), written);
  EXPECT_TRUE(ring.writer.moved());
  EXPECT_TRUE(ring.write("more"));
}

TEST(ByteRing, PlacesCarryAnAddress) {
  OneWay ring;
  const char text[] = "elsewhere";
  ASSERT_TRUE(ring.writer.poll());
  ASSERT_TRUE(ring.writer.put_place(text, sizeof text));
  const RingPosition end = ring.writer.at();
  ring.writer.publish();
  EXPECT_FALSE(ring.writer.has_read(end));
  ASSERT_TRUE(ring.reader.begin());
  ASSERT_TRUE(ring.reader.is_place());
  EXPECT_EQ(ring.reader.left(), sizeof text);
  ring.reader.advance(3);
  EXPECT_EQ(ring.reader.address(), reinterpret_cast<uintptr_t>(text) + 3);
  (void)ring.reader.release();
  ASSERT_TRUE(ring.writer.poll());
  EXPECT_FALSE(ring.writer.has_read(end)) << "only a part of it has been read";
  ring.reader.advance(sizeof text - 3);
  (void)ring.reader.release();
  ASSERT_TRUE(ring.writer.poll());
  EXPECT_TRUE(ring.writer.has_read(end));
}

TEST(ByteRing, ASleepingSideIsWokenOnce) {
  OneWay ring;
  EXPECT_TRUE(ring.reader.begin_sleep());
  ASSERT_TRUE(ring.writer.poll());
  (void)ring.writer.space(1);
  ring.writer.put(RingRecord::kBytes, 1);
  EXPECT_TRUE(ring.writer.publish());
  EXPECT_FALSE(ring.writer.publish());
  EXPECT_FALSE(ring.reader.begin_sleep()) << "there is something";
  EXPECT_TRUE(ring.writer.begin_sleep());
  (void)ring.read();
  EXPECT_TRUE(ring.writer.moved());
}

// For any values in the shared words, the reader stays inside the ring and the writer does not
// overwrite unread bytes.
TEST(ByteRing, InvalidPositionsOfTheOtherSide) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3000; ++round) {
    auto ring = std::make_unique<OneWay>();
    for (auto& byte : ring->bytes) byte = static_cast<std::byte>(random() % 5 == 0 ? random() : 0);
    ring->control.head.store(random() >> (random() % 64));
    for (int i = 0; i < 100 && ring->reader.begin(); ++i) {
      ASSERT_GT(ring->reader.left(), 0u);
      if (!ring->reader.is_place()) {
        const auto* const data = ring->reader.data();
        ASSERT_GE(data, ring->bytes);
        ASSERT_LE(data + ring->reader.left(), ring->bytes + kRing);
      }
      ring->reader.advance(1 + static_cast<uint32_t>(random() % ring->reader.left()));
    }
    ring->control.tail.store(random() >> (random() % 64));
    if (!ring->writer.poll()) continue;
    EXPECT_LE(ring->writer.free_bytes(), kRing);
    const uint32_t fits = ring->writer.space(5000);
    EXPECT_LE(ring->writer.place() + fits, ring->bytes + kRing);
  }
}

}  // namespace
}  // namespace uwarp
