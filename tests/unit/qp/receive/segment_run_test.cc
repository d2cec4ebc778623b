// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the bytes of a receive window go, and which segments were announced.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "qp/receive/inbound_stream.h"

namespace uwarp {
namespace {

constexpr uint16_t kUlpdu = 20'000;
constexpr size_t kDirect = 19'000, kStaged = 30;

/// A run of three announced segments, after a segment of a Write at this offset.
SegmentRun run_behind(TaggedOffset to) {
  std::byte header[TaggedHeader::kWireSize];
  TaggedHeader{.control = DdpControl::make(true, false).followed_by(3),
               .rsvd_ulp = 0x40,
               .stag = STag{9},
               .to = to}
      .encode(header);
  SegmentRun run;
  run.begin(header, kUlpdu, 3);
  return run;
}

/// Opens a window for `segments` and receives this many bytes into it.
size_t receive(SegmentRun& run, uint32_t segments, size_t bytes, bool filled = false) {
  run.open(segments, kDirect, kStaged);
  return run.take(bytes, filled);
}

TEST(SegmentRun, WindowsGrowWhileTheyAreFilled) {
  SegmentRun run = run_behind(0);
  EXPECT_EQ(run.wanted(), 0u);
  EXPECT_EQ(receive(run, 0, 100, true), 100u);
  EXPECT_EQ(run.wanted(), 1u);
  EXPECT_EQ(receive(run, 1, kStaged + kDirect + 12, true), kStaged + 12);
  EXPECT_EQ(run.wanted(), 2u);
  EXPECT_EQ(run.claim(), kDirect);
  EXPECT_EQ(receive(run, 2, 2 * (kStaged + kDirect) + 12, true), 2 * kStaged + 12);
  EXPECT_EQ(run.wanted(), 3u);  // all that are announced
}

TEST(SegmentRun, WindowsShrinkToWhatCame) {
  SegmentRun run = run_behind(0);
  EXPECT_EQ(receive(run, 3, 3 * (kStaged + kDirect)), 3 * kStaged);
  EXPECT_EQ(run.wanted(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.claim(), kDirect);
  EXPECT_EQ(run.ahead(), 0u);
  EXPECT_EQ(receive(run, 3, 2 * (kStaged + kDirect) + 1), 2 * kStaged + 1);
  EXPECT_EQ(run.wanted(), 2u);
  run.give_up();
  EXPECT_EQ(receive(run, 2, 0), 0u);
  EXPECT_EQ(run.wanted(), 1u);
  EXPECT_EQ(receive(run, 0, 0), 0u);
  EXPECT_EQ(run.wanted(), 0u);
}

TEST(SegmentRun, APartOfTheLastOneIsAhead) {
  SegmentRun run = run_behind(0);
  EXPECT_EQ(receive(run, 2, kStaged + kDirect + kStaged + 5), 2 * kStaged);
  EXPECT_FALSE(run.ahead_is_one());
  EXPECT_EQ(run.claim(), kDirect);
  EXPECT_TRUE(run.ahead_is_one());
  EXPECT_EQ(run.claim(), 5u);
  EXPECT_EQ(run.ahead(), 0u);
}

TEST(SegmentRun, KnowsTheOneThatWasAnnounced) {
  const SegmentRun run = run_behind(1000);
  const auto continues = [&](uint16_t ulpdu, const TaggedHeader& header) {
    std::byte fpdu[2 + TaggedHeader::kWireSize];
    store_be16(fpdu, ulpdu);
    header.encode(fpdu + 2);
    return run.continues(fpdu);
  };
  TaggedHeader next{.control = DdpControl::make(true, true),
                    .rsvd_ulp = 0x40,
                    .stag = STag{9},
                    .to = 1000 + kUlpdu - TaggedHeader::kWireSize};
  EXPECT_TRUE(continues(kUlpdu, next));
  next.control = DdpControl::make(true, false).followed_by(7);
  EXPECT_TRUE(continues(kUlpdu, next));
  EXPECT_FALSE(continues(kUlpdu - 1, next));
  next.control = DdpControl::make(false, false);
  EXPECT_FALSE(continues(kUlpdu, next));
  next.control = DdpControl::make(true, false);
  next.to += 1;
  EXPECT_FALSE(continues(kUlpdu, next));
  next.to -= 1;
  next.stag = STag{8};
  EXPECT_FALSE(continues(kUlpdu, next));
}

}  // namespace
}  // namespace uwarp
