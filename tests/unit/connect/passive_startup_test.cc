// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The passive side of a start-up, and the draining of a connection, without sockets.
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "connect/connection_socket.h"
#include "connect/startup.h"

namespace uwarp {
namespace {

using State = MpaResponder::State;
constexpr uint64_t kUntil = 1'000'000'000'000;

std::vector<std::byte> request() {
  MpaInitiator::Config config;
  config.ird = 3;
  config.ord = 5;
  const std::vector<std::byte> text(2, std::byte{'x'});
  config.private_data = text;
  const MpaInitiator initiator(config);
  const auto bytes = initiator.request();
  return {bytes.begin(), bytes.end()};
}

PassiveStartup reading() { return PassiveStartup({}, false, {kUntil}); }

PassiveStartup requested() {
  PassiveStartup startup = reading();
  const auto bytes = request();
  EXPECT_EQ(startup.on_received(static_cast<ssize_t>(bytes.size()), bytes).state, State::kRequest);
  return startup;
}

PassiveStartup left() {
  PassiveStartup startup = requested();
  EXPECT_TRUE(startup.on_peeked(0));
  return startup;
}

TEST(PassiveStartup, ReadsARequestInPieces) {
  PassiveStartup startup = reading();
  const auto bytes = request();
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_TRUE(startup.reading()) << i;
    EXPECT_GE(startup.bytes_wanted(), 1u);
    (void)startup.on_received(1, std::span(bytes).subspan(i, 1));
  }
  EXPECT_TRUE(startup.requested());
  const ConnectParameters asked = startup.take_parameters();
  EXPECT_EQ(asked.responder_resources, 5);
  EXPECT_EQ(asked.initiator_depth, 3);
  EXPECT_EQ(asked.private_data.size(), 2u);
}

TEST(PassiveStartup, WhatEndsIt) {
  const std::vector<std::byte> garbage(20, std::byte{'G'});
  PassiveStartup refused = reading();
  EXPECT_EQ(refused.on_received(20, garbage).failure, MpaFailure::kBadKey);
  for (const ssize_t end : {0, -ECONNRESET}) {
    PassiveStartup gone = reading();
    EXPECT_EQ(gone.on_received(end, {}).failure, MpaFailure::kPeerClosed);
    EXPECT_FALSE(gone.requested());
  }
}

TEST(PassiveStartup, TimeRunsUntilTheRequestIsWhole) {
  PassiveStartup startup = reading();
  EXPECT_EQ(startup.deadline().at_ns, kUntil);
  EXPECT_FALSE(startup.on_deadline(kUntil - 1));
  EXPECT_TRUE(startup.on_deadline(kUntil));
  for (PassiveStartup later : {requested(), left()}) {
    EXPECT_FALSE(later.deadline());
    EXPECT_FALSE(later.on_deadline(kUntil + 1));
  }
}

TEST(PassiveStartup, ThePeerIsSilentUntilTheReply) {
  for (const ssize_t count : {1, 0, -ECONNRESET}) {
    PassiveStartup startup = requested();
    EXPECT_FALSE(startup.on_peeked(-EAGAIN));
    EXPECT_TRUE(startup.requested());
    EXPECT_TRUE(startup.on_peeked(count));
    EXPECT_TRUE(startup.peer_left());
    EXPECT_FALSE(startup.requested() || startup.reading());
    EXPECT_FALSE(startup.on_peeked(count)) << "nothing new";
  }
  PassiveStartup early = reading();
  EXPECT_FALSE(early.on_peeked(0)) << "for on_received() to find";
  EXPECT_TRUE(early.reading());
}

// --- Draining

struct Room {
  bool peer_has_no_space() const { return full; }
  bool full;
};

TEST(Draining, EndsWithThePeersFinOrAnError) {
  EXPECT_EQ(Draining(false, kUntil).on_end(0), CloseMode::kDone);
  EXPECT_EQ(Draining(false, kUntil).on_end(-ECONNRESET), CloseMode::kGentle);
  EXPECT_EQ(Draining(true, kUntil).on_end(0), CloseMode::kGentle) << "a reset is due";
  EXPECT_EQ(Draining(true, kUntil).on_end(-ECONNRESET), CloseMode::kGentle);
}

TEST(Draining, LastsSoLong) {
  Draining draining(false, kUntil);
  EXPECT_EQ(draining.deadline().at_ns, kUntil + kCloseWaitNs);
  EXPECT_FALSE(draining.on_deadline(Room{true}, kUntil + kCloseWaitNs - 1));
  EXPECT_TRUE(draining.on_deadline(Room{false}, kUntil + kCloseWaitNs));
}

TEST(Draining, WithAcknowledgementsThePeerMustHaveRoom) {
  Draining draining(true, kUntil);
  uint64_t now_ns = kUntil + Draining::kNoSpaceWaitNs;
  EXPECT_EQ(draining.deadline().at_ns, now_ns);
  EXPECT_FALSE(draining.on_deadline(Room{false}, now_ns));
  now_ns += Draining::kNoSpaceWaitNs;
  EXPECT_EQ(draining.deadline().at_ns, now_ns) << "checked again";
  EXPECT_TRUE(draining.on_deadline(Room{true}, now_ns));
}

}  // namespace
}  // namespace uwarp
