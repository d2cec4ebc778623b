// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The life of a connection in FPDU mode, without sockets: each phase with each event.
#include "connect/connected_state.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace uwarp {
namespace {

constexpr uint64_t kNow = 1'000'000'000'000;

/// Returns what a test sets, and records the calls.
struct FakeQp {
  QpState state() const { return now; }
  void to_rts() { told += " to_rts"; }
  FaultScript* script() const { return nullptr; }
  bool peer_has_spoken() const { return spoken; }
  bool flush_due() const { return false; }
  StreamFailure failure() const { return {}; }
  void flush() { told += " flush"; }
  bool fall_silent(StreamEnd) {
    told += " silent";
    return whole;
  }
  bool lose_peer(StreamEnd) {
    told += " lost";
    return true;
  }
  void note_peer_end(uint64_t unread_bytes) { told += " unread " + std::to_string(unread_bytes); }
  bool finish_input() {
    told += " finish_input";
    return finishes_input;
  }
  bool end_stream(StreamEnd end) {
    static constexpr const char* kNames[] = {" fin", " reset", " timeout", " close"};
    static_assert(static_cast<int>(StreamEnd::kFin) == 0);
    static_assert(static_cast<int>(StreamEnd::kReset) == 1);
    static_assert(static_cast<int>(StreamEnd::kTimeout) == 2);
    static_assert(static_cast<int>(StreamEnd::kLocalClose) == 3);
    told += kNames[static_cast<int>(end)];
    return false;
  }
  bool nudge() {
    told += " nudge";
    return !spoken;
  }
  struct Side {
    const FakeQp& qp;
    bool rnr_blocked() const { return qp.held; }
    bool finished() const { return qp.sent; }
    bool dry() const { return qp.sent; }
    bool idle() const { return qp.sent; }
  };
  Side receiver() const { return {*this}; }
  Side transmitter() const { return {*this}; }

  QpState now = QpState::kRts;
  bool spoken = false, held = false, sent = false, half = false, finishes_input = true,
       whole = true;
  std::string told;
};

bool half_sent(const FakeQp& qp) { return qp.half; }

struct FakeStream {
  void watch_transmit() { watched = true; }
  void unwatch_peer() { ++unwatched; }
  uint32_t hang_up() const { return hung_up; }
  bool ended() const { return over; }
  uint64_t wire_deadline_ns() const { return wire_ns; }
  bool carries_output() const { return carries; }
  static uint64_t unread_at_most(uint32_t unacknowledged) { return unacknowledged; }
  bool trim_ring() {
    ++trims;
    return rests;
  }

  uint64_t wire_ns = 0;
  bool carries = false;
  int trims = 0;
  bool rests = false;
  uint32_t hung_up = 0;
  bool over = false, watched = false;
  int unwatched = 0;
};

struct FakeEndpoint {
  FakeQp& qp() { return pair; }
  FakeStream& stream() { return pump; }
  Qpn number() const { return Qpn{7}; }
  uint64_t rnr_deadline_ns() const { return kNow + 77; }
  uint32_t peer_timeout_ms() const { return timeout_ms; }

  FakeQp pair;
  FakeStream pump;
  uint32_t timeout_ms = 0;
};

struct FakeSocket {
  int take_error() const { return error; }
  bool owes_acknowledgement() const { return owes; }
  uint32_t unacknowledged_bytes() const { return 17; }
  bool silent_for(uint32_t) const { return silent; }

  int error = 0;
  bool owes = false, silent = false;
};

using Connected = ConnectedState<FakeEndpoint, FakeSocket>;

StreamEvents ended(StreamEnd end) {
  StreamEvents events;
  events.ended = true;
  events.end = end;
  return events;
}

StreamEvents outcome(uint32_t bits) {
  StreamEvents events;
  events.outcome = bits;
  return events;
}

struct World {
  explicit World(const Connected::Terms& terms) : connected(endpoint, socket, terms, kNow) {}

  FakeEndpoint endpoint;
  FakeSocket socket;
  Connected connected;
};

std::string words(const Connected::Next& next) {
  static constexpr const char* kLeave[] = {"stay", "drain", "gentle", "reset"};
  std::string all = kLeave[static_cast<int>(next.leave)];
  if (next.established) all += " established";
  if (next.notify_end) all += " told";
  if (next.pump) all += " pump";
  if (next.turn) all += " turn";
  return all;
}

// --- Each phase with each event

enum class Phase { kFlowing, kDisconnecting, kPeerFinished, kFailing, kSilent, kGivenUp };

void bring_to(Phase phase, World& world) {
  Connected::Next next;
  switch (phase) {
    case Phase::kFlowing:
      break;
    case Phase::kDisconnecting:
      ASSERT_EQ(world.connected.on_disconnect(next, kNow), 0);
      break;
    case Phase::kPeerFinished:
      next = world.connected.on_events(ended(StreamEnd::kFin), kNow);
      break;
    case Phase::kFailing:
      next = world.connected.on_events(outcome(kRxFailed), kNow);
      break;
    case Phase::kSilent:
      next = world.connected.on_events(ended(StreamEnd::kFin), kNow);
      break;
    case Phase::kGivenUp:
      next = world.connected.on_events(ended(StreamEnd::kFin), kNow);
      next = world.connected.on_deadline(world.connected.deadline().at_ns);
      break;
  }
  ASSERT_EQ(next.leave, Connected::Leave::kStay);
  world.endpoint.pair.told.clear();
}

std::string after(std::string_view event, World& world) {
  FakeQp& qp = world.endpoint.pair;
  Connected::Next next;
  const auto hang_up = [&](uint32_t events) {
    world.endpoint.pump.hung_up = events;
    next = world.connected.on_events({}, kNow);
  };
  if (event == "fin") next = world.connected.on_events(ended(StreamEnd::kFin), kNow);
  if (event == "reset") next = world.connected.on_events(ended(StreamEnd::kReset), kNow);
  if (event == "timeout") next = world.connected.on_events(ended(StreamEnd::kTimeout), kNow);
  if (event == "failure") next = world.connected.on_events(outcome(kRxFailed), kNow);
  if (event == "terminate") next = world.connected.on_events(outcome(kRxTerminated), kNow);
  if (event == "disconnect") {
    EXPECT_EQ(world.connected.on_disconnect(next, kNow), 0);
  }
  if (event == "memory") next = world.connected.on_out_of_memory(kNow);
  if (event == "late") next = world.connected.on_deadline(kNow + 2 * kCloseWaitNs);
  if (event == "early") next = world.connected.on_deadline(kNow + 1);
  if (event == "hang-up") hang_up(EPOLLHUP);
  if (event == "half hang-up") hang_up(EPOLLRDHUP);
  if (event == "sent" || event == "spoken") {
    (event == "sent" ? qp.sent : qp.spoken) = true;
    next = world.connected.on_events({}, kNow);
  }
  if (event.starts_with("held")) {
    qp.held = true;
    hang_up(event == "held hang-up" ? EPOLLHUP : EPOLLRDHUP);
  }
  return words(next) + (qp.told.empty() ? "" : " |" + qp.told);
}

struct Expected {
  std::string_view event;
  std::vector<std::string> after;  // one for each phase
};

void check_all(const Connected::Terms& terms, const std::vector<Phase>& phases,
               const std::vector<Expected>& rows) {
  for (const Expected& row : rows) {
    ASSERT_EQ(row.after.size(), phases.size()) << row.event;
    for (size_t i = 0; i < phases.size(); ++i) {
      World world(terms);
      bring_to(phases[i], world);
      EXPECT_EQ(after(row.event, world), row.after[i])
          << row.event << " in phase " << static_cast<int>(phases[i]);
    }
  }
}

TEST(ConnectedState, AWireIsServedAtItsTime) {
  World world({});
  world.endpoint.pump.wire_ns = kNow + 50;
  (void)world.connected.on_events({}, kNow);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + 50);
  EXPECT_FALSE(world.connected.on_deadline(kNow + 49).wire);
  EXPECT_TRUE(world.connected.on_deadline(kNow + 50).wire);
  EXPECT_FALSE(world.connected.on_deadline(kNow + 51).wire);
}

TEST(ConnectedState, TheEndWaitsForWhatIsOnTheWire) {
  World world({});
  bring_to(Phase::kDisconnecting, world);
  world.endpoint.pair.sent = world.endpoint.pump.carries = true;
  EXPECT_EQ(world.connected.on_events({}, kNow).leave, Connected::Leave::kStay);
  world.endpoint.pump.carries = false;
  EXPECT_EQ(world.connected.on_events({}, kNow).leave, Connected::Leave::kDrain);
}

TEST(ConnectedState, EachEventInEachPhaseByRdmaCm) {
  check_all(
      {}, {Phase::kFlowing, Phase::kDisconnecting, Phase::kPeerFinished, Phase::kFailing},
      {
          {"fin",
           {"stay told pump | finish_input", "stay told pump | finish_input", "gentle | fin",
            "stay"}},
          {"reset", {"reset | reset", "reset | reset", "reset | reset", "reset"}},
          {"timeout", {"reset | timeout", "reset | timeout", "reset | timeout", "reset"}},
          {"failure",
           {"stay told pump | flush", "stay told pump | flush", "stay told pump | flush", "stay"}},
          {"terminate",
           {"stay told pump | flush", "stay told pump | flush", "stay told pump | flush", "stay"}},
          {"disconnect", {"stay pump", "stay", "stay pump", "stay"}},
          {"memory", {"reset | reset", "reset | reset", "reset | reset", "reset"}},
          {"early", {"stay", "stay", "stay", "stay"}},
          {"late", {"stay", "reset | close", "reset | close", "reset"}},
          {"hang-up", {"stay turn", "stay turn", "gentle | fin", "reset"}},
          {"half hang-up", {"stay", "stay", "stay", "stay"}},
          {"sent", {"stay", "drain | close", "drain | fin", "drain"}},
          {"spoken", {"stay", "stay", "stay", "stay"}},
          {"held hang-up", {"reset | reset", "reset | reset", "gentle | fin", "reset"}},
          {"held half hang-up", {"stay told", "stay told", "stay told", "stay told"}},
      });
}

TEST(ConnectedState, EachEventInEachPhaseOfARendezvous) {
  check_all(
      {.rendezvous = true}, {Phase::kFlowing, Phase::kSilent, Phase::kGivenUp, Phase::kFailing},
      {
          {"fin", {"stay | silent", "stay | silent", "stay | fin", "stay"}},
          {"reset", {"stay | silent", "stay | silent", "reset | reset", "reset"}},
          {"timeout", {"reset | timeout", "reset | timeout", "reset | timeout", "reset"}},
          {"failure",
           {"stay told pump | flush", "stay told pump | flush", "stay told pump | flush", "stay"}},
          {"memory", {"stay | silent", "stay | silent", "reset | reset", "reset"}},
          {"early", {"stay", "stay", "stay", "stay"}},
          {"late", {"stay", "stay pump | fin", "stay", "reset"}},
          {"hang-up", {"stay turn", "stay turn", "stay turn", "reset"}},
          {"sent", {"stay", "stay", "stay", "drain"}},
          {"held hang-up", {"stay | silent", "stay | silent", "reset | reset", "reset"}},
          {"held half hang-up", {"stay", "stay", "stay", "stay"}},
      });
}

// --- Single phases

// What is sent here is checked by tests with sockets.
TEST(ConnectedState, AFinWithNothingToSendEndsTheConnection) {
  World world({});
  world.endpoint.pair.finishes_input = false;
  EXPECT_EQ(after("fin", world), "gentle | finish_input fin");
}

TEST(ConnectedState, WithAcknowledgementsTheQueuePairOutlivesAFin) {
  World world({.acknowledged = true});
  EXPECT_EQ(after("fin", world), "stay told | unread 17 silent");
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + Connected::kLongestSilenceMs * kNsPerMs);
}

TEST(ConnectedState, NothingButTheOwnEndMattersAfterTheDisconnectOfAPeer) {
  check_all({.acknowledged = true}, {Phase::kSilent, Phase::kGivenUp},
            {
                {"fin", {"stay", "stay"}},
                {"reset", {"stay", "stay"}},
                {"timeout", {"stay", "stay"}},
                {"memory", {"stay", "stay"}},
                {"failure", {"stay told pump | flush", "stay told pump | flush"}},
                {"disconnect", {"drain | close", "drain | close"}},
                {"late", {"stay pump | fin", "stay"}},
                {"half hang-up", {"stay", "stay"}},
                {"sent", {"stay", "stay"}},
            });
}

TEST(ConnectedState, AFinInsideAMessageIsNoDisconnect) {
  World world({.acknowledged = true});
  world.endpoint.pair.whole = false;
  EXPECT_EQ(after("fin", world), "gentle | unread 17 silent fin");
}

TEST(ConnectedState, TheEndOfAnUnreliablePeerIsNotReported) {
  for (const char* end : {"fin", "reset", "timeout", "memory"}) {
    World world({.rendezvous = true, .unreliable = true});
    EXPECT_EQ(after(end, world), "stay | lost") << end;
    EXPECT_EQ(world.connected.deadline().at_ns, Deadline{}.at_ns) << end;
  }
}

TEST(ConnectedState, AnUnreliablePeerThatNeverBeganIsLeft) {
  World world({.rendezvous = true, .unreliable = true, .first_fpdu = {kNow + 100}});
  EXPECT_EQ(after("reset", world), "reset");
}

TEST(ConnectedState, AHalfSentFpduGoesOutBeforeTheEnd) {
  World world({.acknowledged = true});
  world.endpoint.pair.half = true;
  world.endpoint.pair.whole = false;
  EXPECT_EQ(after("fin", world), "stay told pump | unread 17 silent fin");
  EXPECT_TRUE(world.endpoint.pump.watched);
  world.endpoint.pair.told.clear();
  EXPECT_EQ(after("sent", world), "drain");
}

TEST(ConnectedState, WhatThePeerDidNotWaitForIsCut) {
  World world({});
  bring_to(Phase::kPeerFinished, world);
  world.endpoint.pair.half = true;
  EXPECT_EQ(after("hang-up", world), "gentle | fin");
}

TEST(ConnectedState, DisconnectLeavesSqd) {
  World world({});
  world.endpoint.pair.now = QpState::kSqd;
  EXPECT_EQ(after("disconnect", world), "stay pump | to_rts");
  EXPECT_TRUE(world.endpoint.pump.watched);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + kCloseWaitNs);
}

TEST(ConnectedState, TheTimeOfADisconnectGoesOnWhenThePeerFinishes) {
  World world({});
  Connected::Next next;
  ASSERT_EQ(world.connected.on_disconnect(next, kNow), 0);
  (void)world.connected.on_events(ended(StreamEnd::kFin), kNow + 5);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + kCloseWaitNs);
  ASSERT_EQ(world.connected.on_disconnect(next, kNow + 6), 0);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + kCloseWaitNs) << "disconnected before";
}

TEST(ConnectedState, TheFirstFpduOpensThePassiveSide) {
  World world({.first_fpdu = {kNow + 100}});
  Connected::Next next;
  EXPECT_EQ(world.connected.on_disconnect(next, kNow), EINVAL);
  EXPECT_EQ(after("spoken", world), "stay established");
  EXPECT_FALSE(world.connected.deadline());
  EXPECT_EQ(after("spoken", world), "stay") << "reported once";
  EXPECT_EQ(world.connected.on_disconnect(next, kNow), 0);
}

TEST(ConnectedState, WithoutAFirstFpduItEnds) {
  World by_cm({.first_fpdu = {kNow + 100}});
  EXPECT_EQ(words(by_cm.connected.on_deadline(kNow + 99)), "stay");
  EXPECT_EQ(words(by_cm.connected.on_deadline(kNow + 100)), "reset");
  EXPECT_EQ(by_cm.endpoint.pair.told, " timeout");
  // The rendezvous may try again, so the queue pair gets no event.
  for (const char* event : {"late", "fin", "reset", "memory"}) {
    World world({.rendezvous = true, .first_fpdu = {kNow + 100}});
    EXPECT_EQ(after(event, world), std::string_view(event) == "fin" ? "gentle" : "reset") << event;
  }
}

TEST(ConnectedState, SilenceLastsAsLongAsAnAdapterWouldRepeat) {
  for (const auto& [timeout_ms, silence_ms] :
       {std::pair{0u, 600u}, {1u, 100u}, {300u, 300u}, {10'000u, 600u}}) {
    World world({.rendezvous = true});
    world.endpoint.timeout_ms = timeout_ms;
    bring_to(Phase::kSilent, world);
    EXPECT_EQ(world.connected.deadline().at_ns, kNow + silence_ms * kNsPerMs) << timeout_ms;
  }
}

TEST(ConnectedState, AResetInSilenceIsHowItEnds) {
  World world({.rendezvous = true});
  bring_to(Phase::kSilent, world);
  EXPECT_EQ(after("reset", world), "stay | silent");
  world.endpoint.pair.told.clear();
  EXPECT_EQ(after("late", world), "reset pump | reset");
}

TEST(ConnectedState, AnErrorBehindTheEndIsAReset) {
  World world({.rendezvous = true});
  bring_to(Phase::kGivenUp, world);
  world.endpoint.pump.over = true;
  world.endpoint.pump.hung_up = EPOLLERR;
  EXPECT_EQ(words(world.connected.on_events({}, kNow)), "reset");
  EXPECT_EQ(world.endpoint.pair.told, " reset");
}

TEST(ConnectedState, ATimeoutWhileHeldIsReported) {
  World world({});
  world.socket.error = ETIMEDOUT;
  EXPECT_EQ(after("held hang-up", world), "reset | timeout");
}

TEST(ConnectedState, NudgesBecomeRarer) {
  World world({.nudges = true});
  uint64_t last_ns = kNow;
  for (uint64_t wait_ns = Connected::kFirstNudgeNs; wait_ns <= Connected::kLastNudgeNs;
       wait_ns *= 8) {
    ASSERT_EQ(world.connected.deadline().at_ns, last_ns + wait_ns);
    last_ns += wait_ns;
    EXPECT_EQ(words(world.connected.on_deadline(last_ns)), "stay pump");
  }
  EXPECT_FALSE(world.connected.deadline()) << "after the last";
}

TEST(ConnectedState, TheFirstNudgeIsSentBeforeADisconnect) {
  World world({.nudges = true});
  bring_to(Phase::kDisconnecting, world);
  EXPECT_EQ(after("sent", world), "stay");
  EXPECT_EQ(words(world.connected.on_deadline(kNow + Connected::kFirstNudgeNs)), "stay pump");
  EXPECT_EQ(words(world.connected.on_events({}, kNow)), "drain");
}

TEST(ConnectedState, APeerThatHasSentIsNotNudged) {
  World world({.nudges = true});
  world.endpoint.pair.spoken = true;
  EXPECT_EQ(words(world.connected.on_deadline(kNow + Connected::kFirstNudgeNs)), "stay pump");
  EXPECT_FALSE(world.connected.deadline());
}

TEST(ConnectedState, ASilentPeerThatOwesAnAnswerIsLost) {
  World world({.peer_timeout_ms = 1000});
  world.socket.owes = true;
  StreamEvents events;
  events.began_to_send = true;
  (void)world.connected.on_events(events, kNow);
  uint64_t now_ns = kNow;
  const auto poll = [&] {
    now_ns += 500 * kNsPerMs;
    EXPECT_EQ(world.connected.deadline().at_ns, now_ns);
    return words(world.connected.on_deadline(now_ns));
  };
  EXPECT_EQ(poll(), "stay");
  EXPECT_EQ(poll(), "stay");
  EXPECT_EQ(poll(), "stay") << "it answers that it has no room";
  world.socket.silent = true;
  EXPECT_EQ(poll(), "reset");
  EXPECT_EQ(world.endpoint.pair.told, " timeout");
  EXPECT_EQ(world.endpoint.pump.unwatched, 4);
}

TEST(ConnectedState, AnAnswerMustBeOwedForTwoIntervals) {
  World world({.peer_timeout_ms = 1000});
  world.socket.owes = world.socket.silent = true;
  StreamEvents events;
  events.began_to_send = true;
  (void)world.connected.on_events(events, kNow);
  for (const char* expected : {"stay", "stay", "reset"})
    EXPECT_EQ(words(world.connected.on_deadline(world.connected.deadline().at_ns)), expected);
}

TEST(ConnectedState, APeerThatOwesNoAnswerHasNoTimeout) {
  World world({.peer_timeout_ms = 1000});
  StreamEvents events;
  events.began_to_send = true;
  (void)world.connected.on_events(events, kNow);
  EXPECT_EQ(words(world.connected.on_deadline(kNow + 500 * kNsPerMs)), "stay");
  EXPECT_FALSE(world.connected.deadline());
}

TEST(ConnectedState, HeldMessagesAndWaitingPostsHaveTheirTime) {
  World world({});
  world.endpoint.pair.held = true;
  (void)world.connected.on_events(outcome(kRxRnrBlocked), kNow);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + 77);
  EXPECT_TRUE(world.connected.on_deadline(kNow + 77).expire);
  world.connected.on_post_waits(kNow);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + tuning::kPostWaitNs);
  const Connected::Next next = world.connected.on_deadline(kNow + tuning::kPostWaitNs);
  EXPECT_TRUE(next.transmit_overdue);
  EXPECT_FALSE(next.expire);
  EXPECT_FALSE(world.connected.deadline());
}

TEST(ConnectedState, AFailureEndsTheWaitForAReceive) {
  World world({});
  world.endpoint.pair.held = true;
  (void)world.connected.on_events(outcome(kRxRnrBlocked), kNow);
  (void)world.connected.on_events(outcome(kRxFailed), kNow);
  EXPECT_EQ(world.connected.deadline().at_ns, kNow + kCloseWaitNs);
}

// The deadlines end when the ring is found unused, and begin again with the next use.
TEST(ConnectedState, ARingIsLookedAtWhileItIsUsed) {
  World world({});
  const auto poll = [&] { (void)world.connected.on_deadline(world.connected.deadline().at_ns); };
  for (int use = 1; use <= 2; ++use) {
    world.connected.on_busy_ring(kNow);
    EXPECT_EQ(world.connected.deadline().at_ns, kNow + Connected::kTrimAfterNs);
    world.endpoint.pump.rests = false;
    poll();
    EXPECT_EQ(world.connected.deadline().at_ns, kNow + 2 * Connected::kTrimAfterNs);
    world.endpoint.pump.rests = true;
    poll();
    EXPECT_FALSE(world.connected.deadline());
    EXPECT_EQ(world.endpoint.pump.trims, 2 * use);
  }
}

}  // namespace
}  // namespace uwarp
