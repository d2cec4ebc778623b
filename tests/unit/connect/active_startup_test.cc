// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The active side of a start-up, without sockets: each state with each event.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "connect/startup.h"

namespace uwarp {
namespace {

using Next = ActiveStartup::Next;
constexpr uint64_t kBegin = 1'000'000'000'000;

ActiveStartup::Options to_peer(bool rendezvous = false) {
  ActiveStartup::Options options;
  IpAddress::from_string("192.0.2.7")->to_sockaddr(options.remote, 7);
  options.timeout_ms = 1000;
  options.rendezvous = rendezvous;
  return options;
}

/// A start-up, and the peer's half of the handshake.
struct Attempt {
  explicit Attempt(bool rendezvous = false)
      : startup(to_peer(rendezvous), {.responder_resources = 4, .initiator_depth = 4}, modes,
                kBegin) {}

  void connect() {
    startup.on_connected();
    responder.emplace(MpaResponder::Config{});
    const auto verdict = responder->on_bytes(startup.unsent());
    ASSERT_EQ(verdict.state, MpaResponder::State::kRequest);
  }
  Next receive(std::span<const std::byte> bytes) {
    return startup.on_received(static_cast<ssize_t>(bytes.size()), bytes, kBegin);
  }
  Next receive_end() { return startup.on_received(0, {}, kBegin); }

  StartupModeCache modes;
  ActiveStartup startup;
  std::optional<MpaResponder> responder;
};

TEST(ActiveStartup, BeginsByDialling) {
  Attempt attempt;
  EXPECT_TRUE(attempt.startup.dialling());
  EXPECT_FALSE(attempt.startup.requesting());
  EXPECT_EQ(attempt.startup.deadline().at_ns, kBegin + 1000 * 1'000'000);
}

// --- Each state with each event

enum class In { kDialling, kPausing, kRequesting };

void move_to(In state, Attempt& attempt) {
  if (state == In::kRequesting) attempt.connect();
  if (state != In::kPausing) return;
  ASSERT_EQ(attempt.startup.on_failed(ECONNREFUSED, kBegin), Next::kPause);
}

struct Row {
  const char* event;
  std::function<Next(Attempt&)> happen;
  std::vector<Next> after;  // for In::kDialling, kPausing, kRequesting
};

TEST(ActiveStartup, EachEventInEachState) {
  const auto failed = [](int error) {
    return [=](Attempt& attempt) { return attempt.startup.on_failed(error, kBegin); };
  };
  const auto at = [](uint64_t now_ns) {
    return [=](Attempt& attempt) { return attempt.startup.on_deadline(now_ns); };
  };
  const Row rows[] = {
      {"refused", failed(ECONNREFUSED), {Next::kPause, Next::kPause, Next::kOver}},
      {"unreachable", failed(EHOSTUNREACH), {Next::kOver, Next::kOver, Next::kOver}},
      {"no memory", failed(ENOMEM), {Next::kOver, Next::kOver, Next::kOver}},
      {"too early", at(kBegin + 1), {Next::kWait, Next::kWait, Next::kWait}},
      {"pause over",
       at(kBegin + ActiveStartup::kRedialWaitNs),
       {Next::kWait, Next::kDial, Next::kWait}},
      {"timed out", at(kBegin + 1'000'000'000), {Next::kOver, Next::kOver, Next::kOver}},
  };
  for (const Row& row : rows)
    for (const In state : {In::kDialling, In::kPausing, In::kRequesting}) {
      Attempt attempt;
      move_to(state, attempt);
      EXPECT_EQ(row.happen(attempt), row.after[static_cast<size_t>(state)])
          << row.event << " in " << static_cast<int>(state);
    }
}

TEST(ActiveStartup, EachFailureIsReportedToTheOwner) {
  for (const auto& [error, rejected] : {std::pair{ECONNRESET, true}, {ETIMEDOUT, false}}) {
    Attempt attempt;
    ASSERT_EQ(attempt.startup.on_failed(error, kBegin), Next::kOver);
    EXPECT_EQ(attempt.startup.end().rejected, rejected);
    EXPECT_EQ(attempt.startup.end().status, -error);
    EXPECT_EQ(attempt.startup.end().close, CloseMode::kReset);
  }
}

TEST(ActiveStartup, ARefusedOneIsDialledAgainForAWhile) {
  Attempt attempt;
  uint64_t now_ns = kBegin;
  for (uint32_t i = 0; i < ActiveStartup::kMostRedials; ++i) {
    ASSERT_EQ(attempt.startup.on_failed(ECONNREFUSED, now_ns), Next::kPause) << i;
    EXPECT_FALSE(attempt.startup.dialling()) << "late edges do nothing";
    now_ns += ActiveStartup::kRedialWaitNs;
    EXPECT_EQ(attempt.startup.deadline().at_ns, now_ns);
    ASSERT_EQ(attempt.startup.on_deadline(now_ns), Next::kDial);
    EXPECT_TRUE(attempt.startup.dialling());
  }
  ASSERT_EQ(attempt.startup.on_failed(ECONNREFUSED, now_ns), Next::kOver);
  EXPECT_TRUE(attempt.startup.end().rejected);
}

TEST(ActiveStartup, ARendezvousNeitherDialsAgainNorFallsBack) {
  Attempt refused(true);
  EXPECT_EQ(refused.startup.on_failed(ECONNREFUSED, kBegin), Next::kOver);
  Attempt closed(true);
  closed.connect();
  EXPECT_EQ(closed.receive_end(), Next::kOver);
  EXPECT_EQ(closed.startup.end().status, -ECONNRESET);
}

// --- The handshake

TEST(ActiveStartup, TheRequestGoesOutInPieces) {
  Attempt attempt;
  attempt.connect();
  const size_t size = attempt.startup.unsent().size();
  EXPECT_EQ(attempt.startup.on_sent(-EAGAIN, kBegin), Next::kWait);
  EXPECT_EQ(attempt.startup.on_sent(5, kBegin), Next::kWait);
  EXPECT_EQ(attempt.startup.unsent().size(), size - 5);
  EXPECT_EQ(attempt.startup.on_sent(static_cast<ssize_t>(size - 5), kBegin), Next::kWait);
  EXPECT_TRUE(attempt.startup.unsent().empty());
}

TEST(ActiveStartup, AnAcceptingReplyOpens) {
  Attempt attempt;
  attempt.connect();
  const std::vector<std::byte> text(3, std::byte{'x'});
  const auto reply = attempt.responder->accept(4, 4, text).bytes;
  EXPECT_EQ(attempt.startup.on_received(-EAGAIN, {}, kBegin), Next::kWait);
  EXPECT_EQ(attempt.receive(reply.first(7)), Next::kWait);
  EXPECT_EQ(attempt.receive(reply.subspan(7)), Next::kOpen);
  EXPECT_TRUE(attempt.startup.initiator().negotiated().peer_to_peer);
  EXPECT_EQ(attempt.startup.initiator().private_data().size(), 3u);
  // The queue pair may have been destroyed by then.
  EXPECT_EQ(attempt.startup.on_failed(ECONNABORTED, kBegin), Next::kOver);
  EXPECT_FALSE(attempt.startup.end().rejected);
}

TEST(ActiveStartup, ARejectingReplyIsTheEnd) {
  Attempt attempt;
  attempt.connect();
  const std::vector<std::byte> text(3, std::byte{'x'});
  EXPECT_EQ(attempt.receive(attempt.responder->reject(text).bytes), Next::kOver);
  EXPECT_TRUE(attempt.startup.end().rejected);
  EXPECT_EQ(attempt.startup.end().status, -ECONNREFUSED);
  EXPECT_EQ(attempt.startup.end().private_data, text);
  EXPECT_EQ(attempt.startup.end().close, CloseMode::kGentle);
}

TEST(ActiveStartup, GarbageIsTheEnd) {
  Attempt attempt;
  attempt.connect();
  const std::vector<std::byte> garbage(20, std::byte{'G'});
  EXPECT_EQ(attempt.receive(garbage), Next::kOver);
  EXPECT_EQ(attempt.startup.end().status, -EPROTO);
  EXPECT_EQ(attempt.startup.end().close, CloseMode::kGentle);
}

TEST(ActiveStartup, AnErrorOfTheSocketIsTheEnd) {
  Attempt attempt;
  attempt.connect();
  EXPECT_EQ(attempt.startup.on_received(-EHOSTUNREACH, {}, kBegin), Next::kOver);
  EXPECT_EQ(attempt.startup.end().status, -EHOSTUNREACH);
}

// --- Modes

TEST(ActiveStartup, APeerThatClosesIsTriedInEachMode) {
  Attempt attempt;
  const std::function<Next()> ways_to_close[] = {
      [&] { return attempt.receive_end(); },
      [&] { return attempt.startup.on_received(-ECONNRESET, {}, kBegin); },
      [&] { return attempt.startup.on_sent(-EPIPE, kBegin); },
  };
  std::vector<int> revisions;
  for (size_t i = 0; i < 3; ++i) {
    attempt.connect();
    revisions.push_back(static_cast<int>(attempt.startup.unsent()[17]));
    const Next next = ways_to_close[i]();
    EXPECT_EQ(next, i < 2 ? Next::kDial : Next::kOver);
    EXPECT_EQ(attempt.startup.dialling(), i < 2);
  }
  EXPECT_EQ(revisions, (std::vector{2, 2, 1}));
  EXPECT_TRUE(attempt.startup.end().rejected);
  EXPECT_EQ(attempt.startup.end().status, -ECONNRESET);
}

TEST(ActiveStartup, TheModeOfAReplyIsRemembered) {
  Attempt attempt;
  attempt.connect();
  ASSERT_EQ(attempt.receive_end(), Next::kDial);
  attempt.connect();
  ASSERT_EQ(attempt.receive(attempt.responder->reject({}).bytes), Next::kOver);
  EXPECT_EQ(attempt.modes.first_for(to_peer().remote, kBegin), StartupMode::kPlain);
  // A failed attempt forgets the mode.
  ActiveStartup next(to_peer(), {}, attempt.modes, kBegin);
  ASSERT_EQ(next.on_deadline(kBegin + 1'000'000'000), Next::kOver);
  EXPECT_EQ(attempt.modes.first_for(to_peer().remote, kBegin), StartupMode::kPeerToPeer);
}

TEST(ActiveStartup, AWrongRememberedModeLeadsBackToTheFirst) {
  StartupModeCache modes;
  modes.remember(to_peer().remote, StartupMode::kRevision1, kBegin);
  ActiveStartup startup(to_peer(), {}, modes, kBegin);
  startup.on_connected();
  EXPECT_EQ(static_cast<int>(startup.unsent()[17]), 1);
  ASSERT_EQ(startup.on_received(0, {}, kBegin), Next::kDial);
  startup.on_connected();
  EXPECT_EQ(static_cast<int>(startup.unsent()[17]), 2);
}

}  // namespace
}  // namespace uwarp
