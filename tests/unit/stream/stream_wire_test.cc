// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Both directions of a stream over a wire, with a carrier of this test: what is handed over when,
// and when the stream is to be looked at again.
#include "stream/stream_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace uwarp {
namespace {

constexpr uint64_t kLatencyNs = 20'000;

WireTerms wire_terms(uint64_t bits_per_second = 0) {
  WireTerms terms;
  terms.latency_ns = kLatencyNs;
  terms.bits_per_second = bits_per_second;
  terms.queue_bytes = bits_per_second != 0 ? WireTerms::kLeastQueue : 0;
  return terms;
}

/// A stream over a wire, what its carrier has, and the time.
struct Wired {
  explicit Wired(uint64_t bits_per_second = 0, bool delays_input = true)
      : link(wire_terms(bits_per_second)), wire(link, delays_input) {}

  ssize_t send(const std::string& text) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    return wire.enter({&piece, 1}, now_ns);
  }
  std::string hand_over(size_t most = 1 << 20) {
    std::string all;
    for (const iovec& piece : wire.carried(now_ns)) {
      const size_t part = std::min(piece.iov_len, most - all.size());
      all.append(static_cast<const char*>(piece.iov_base), part);
    }
    wire.handed_over(all.size());
    return all;
  }
  /// What the stream sees: bytes, or the count that it gets instead.
  std::string receive(size_t most = 1 << 20) {
    std::string text(most, '\0');
    const iovec piece{text.data(), text.size()};
    const ssize_t count = wire.receive(
        {&piece, 1}, [this] { return now_ns; },
        [this](std::span<const iovec> place) { return read(place); });
    return count > 0 ? text.substr(0, static_cast<size_t>(count)) : std::to_string(count);
  }
  ssize_t read(std::span<const iovec> place) {
    if (come.empty()) return end;
    size_t copied = 0;
    for (const iovec& piece : place) {
      const size_t part = std::min(piece.iov_len, come.size() - copied);
      std::copy_n(come.data() + copied, part, static_cast<char*>(piece.iov_base));
      copied += part;
    }
    come.erase(0, copied);
    return static_cast<ssize_t>(copied);
  }

  WireLink link;
  StreamWire wire;
  uint64_t now_ns = 1'000;
  std::string come;
  ssize_t end = -EAGAIN;
};

const std::string kNothingYet = std::to_string(-EAGAIN);

TEST(StreamWire, WhatIsSentIsHandedOverAfterTheLatency) {
  Wired one;
  EXPECT_EQ(one.send("ping"), 4);
  EXPECT_TRUE(one.wire.end_turn(one.now_ns));
  EXPECT_TRUE(one.wire.carries());
  EXPECT_EQ(one.wire.deadline_ns(), 1'000 + kLatencyNs);
  EXPECT_FALSE(one.wire.output_due(1'000 + kLatencyNs - 1));
  EXPECT_EQ(one.hand_over(), "");
  one.now_ns += kLatencyNs;
  EXPECT_TRUE(one.wire.output_due(one.now_ns));
  EXPECT_EQ(one.hand_over(), "ping");
  EXPECT_FALSE(one.wire.end_turn(one.now_ns));
  EXPECT_FALSE(one.wire.carries());
  EXPECT_EQ(one.wire.deadline_ns(), 0u);
}

TEST(StreamWire, ACarrierWithoutRoomIsTriedAgain) {
  Wired one;
  (void)one.send("ping");
  one.now_ns += kLatencyNs;
  EXPECT_EQ(one.hand_over(1), "p");
  one.wire.note_full();
  EXPECT_TRUE(one.wire.end_turn(one.now_ns));
  EXPECT_EQ(one.wire.deadline_ns(), 0u);  // its edge brings it, or a poll
  EXPECT_TRUE(one.wire.output_due(one.now_ns));
  EXPECT_EQ(one.hand_over(), "ing");
}

TEST(StreamWire, WhatFindsTheQueueFullWaits) {
  Wired one(1'000'000'000);
  const std::string large(3 * WireTerms::kLeastQueue, 'x');
  EXPECT_EQ(one.send(large), static_cast<ssize_t>(WireTerms::kLeastQueue));
  EXPECT_EQ(one.send(large), -EAGAIN);
  EXPECT_TRUE(one.wire.queue_full());
  EXPECT_FALSE(one.wire.has_space(one.now_ns));
  EXPECT_TRUE(one.wire.end_turn(one.now_ns));
  // Half of the queue has gone long before the first bytes have arrived.
  EXPECT_EQ(one.wire.deadline_ns(), one.now_ns + 8 * WireTerms::kLeastQueue / 2);
  one.now_ns = one.wire.deadline_ns();
  EXPECT_EQ(one.hand_over(), "");
  EXPECT_FALSE(one.wire.queue_full());
  EXPECT_GT(one.send(large), 0);
}

TEST(StreamWire, TheCarrierChangesBehindWhatWasSentBefore) {
  Wired one;
  EXPECT_FALSE(one.wire.take_switch());
  (void)one.send("by TCP");
  one.wire.switch_here();
  (void)one.send("by memory");
  one.now_ns += kLatencyNs;
  EXPECT_FALSE(one.wire.switch_due());
  EXPECT_EQ(one.hand_over(), "by TCP");
  EXPECT_EQ(one.hand_over(), "");
  EXPECT_TRUE(one.wire.take_switch());
  EXPECT_FALSE(one.wire.take_switch());
  EXPECT_EQ(one.hand_over(), "by memory");
}

TEST(StreamWire, AFailureStandsAndNothingIsHandedOver) {
  Wired one;
  (void)one.send("ping");
  one.wire.fail(-EPIPE);
  one.now_ns += kLatencyNs;
  EXPECT_EQ(one.hand_over(), "");
  EXPECT_EQ(one.send("ping"), -EPIPE);
}

TEST(StreamWire, WhatComesIsSeenAfterTheLatency) {
  Wired one;
  one.come = "pong";
  EXPECT_EQ(one.receive(), kNothingYet);
  EXPECT_TRUE(one.wire.input_wake_changed());
  EXPECT_FALSE(one.wire.input_wake_changed());
  EXPECT_EQ(one.wire.deadline_ns(), 1'000 + kLatencyNs);
  // After a deadline the same time is told again.
  one.wire.begin_deadline();
  EXPECT_EQ(one.receive(), kNothingYet);
  EXPECT_TRUE(one.wire.input_wake_changed());
  one.now_ns += kLatencyNs;
  EXPECT_EQ(one.receive(3), "pon");
  EXPECT_EQ(one.receive(), "g");
  EXPECT_EQ(one.receive(), kNothingYet);
  EXPECT_EQ(one.wire.deadline_ns(), 0u);
}

TEST(StreamWire, TheEndComesBehindWhatCameBefore) {
  for (ssize_t end : {ssize_t{0}, ssize_t{-ECONNRESET}}) {
    Wired one;
    one.come = "last";
    one.end = end;
    EXPECT_EQ(one.receive(), kNothingYet);
    EXPECT_TRUE(one.wire.awaits_input());
    one.now_ns += kLatencyNs;
    EXPECT_EQ(one.receive(), "last");
    EXPECT_EQ(one.receive(), std::to_string(end));
    EXPECT_FALSE(one.wire.awaits_input());
  }
}

TEST(StreamWire, WhatAPeerHasDelayedIsDelayedNoFurther) {
  Wired one;
  one.come = "slow";
  EXPECT_EQ(one.receive(), kNothingYet);
  one.wire.pass_input();
  one.come = "quick";
  EXPECT_EQ(one.receive(), kNothingYet);  // not before what came first
  one.now_ns += kLatencyNs;
  EXPECT_EQ(one.receive(), "slow");
  EXPECT_EQ(one.wire.deadline_ns(), one.now_ns);  // no edge tells of the rest
  one.wire.begin_deadline();
  EXPECT_EQ(one.receive(), "quick");
  EXPECT_EQ(one.wire.deadline_ns(), 0u);
  Wired to_itself(0, false);
  to_itself.come = "at once";
  EXPECT_EQ(to_itself.receive(), "at once");
}

TEST(StreamWire, InputBeyondTheQueueWaitsAtTheSender) {
  Wired one(1'000'000'000);
  one.come.assign(3 * WireTerms::kLeastQueue, 'x');
  EXPECT_EQ(one.receive(), kNothingYet);
  EXPECT_EQ(one.come.size(), 2 * WireTerms::kLeastQueue);
  std::string all;
  while (all.size() != 3 * WireTerms::kLeastQueue) {
    ASSERT_GT(one.wire.deadline_ns(), one.now_ns);
    one.now_ns = one.wire.deadline_ns();
    if (const std::string got = one.receive(); got != kNothingYet) all += got;
  }
  // Nothing was lost to the waiting: the link was busy all the time.
  EXPECT_EQ(one.now_ns, 1'000 + 8 * 3 * WireTerms::kLeastQueue + kLatencyNs);
}

TEST(StreamWire, ThatSomethingIsPlacedIsToldAsLateAsOverTheWire) {
  Wired one;
  EXPECT_TRUE(one.wire.note_placed(100, one.now_ns));
  EXPECT_FALSE(one.wire.note_placed(100, one.now_ns));
  EXPECT_TRUE(one.wire.note_placed(200, one.now_ns + 5));
  EXPECT_EQ(one.wire.take_placed(one.now_ns + kLatencyNs - 1), 0u);
  EXPECT_EQ(one.receive(), kNothingYet);
  EXPECT_EQ(one.wire.deadline_ns(), one.now_ns + kLatencyNs);
  EXPECT_EQ(one.wire.take_placed(one.now_ns + kLatencyNs), 100u);
  EXPECT_EQ(one.wire.take_placed(one.now_ns + kLatencyNs + 5), 200u);
  for (uint64_t i = 1; i <= 100; ++i) EXPECT_TRUE(one.wire.note_placed(200 + i, one.now_ns + i));
  EXPECT_EQ(one.wire.take_placed(one.now_ns + 100 + kLatencyNs), 300u);
}

}  // namespace
}  // namespace uwarp
