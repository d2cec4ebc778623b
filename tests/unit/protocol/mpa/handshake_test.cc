// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MPA start-up: each rule of both roles, against each other and against a hand-made peer. The
// comment above a case says what arrives and what is expected; numbers name conformance rows.
#include "protocol/mpa/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/mpa/fpdu.h"
#include "protocol/wire/rdmap_headers.h"
#include "vector_file.h"

namespace uwarp {
namespace {

using Bytes = std::vector<std::byte>;
using InitiatorState = MpaInitiator::State;
using ResponderState = MpaResponder::State;

Bytes bytes_of(std::string_view text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes first_of(Bytes bytes, size_t size) {
  bytes.resize(size);
  return bytes;
}

Bytes encode(const MpaStartFrame& frame) {
  Bytes bytes(MpaStartFrame::kSizeMax);
  bytes.resize(frame.encode(bytes));
  EXPECT_FALSE(bytes.empty());
  return bytes;
}

MpaStartFrame decode(std::span<const std::byte> bytes, bool reply) {
  MpaStartFrame frame;
  const auto step = decode_start_frame(bytes, reply, frame);
  EXPECT_EQ(step.status, StartFrameDecode::Status::kFrame);
  EXPECT_EQ(step.consumed, bytes.size());
  return frame;
}

// The correct Reply to MpaInitiator's default Request; a test changes the field that it checks.
MpaStartFrame good_reply() {
  MpaStartFrame frame;
  frame.is_reply = true;
  frame.enhanced = true;
  frame.peer_to_peer = true;
  frame.rtr_write = true;
  frame.ird = 16;
  frame.ord = 8;
  return frame;
}

MpaStartFrame good_request() {
  MpaStartFrame frame;
  frame.enhanced = true;
  frame.peer_to_peer = true;
  frame.rtr_write = true;
  frame.rtr_read = true;
  frame.ird = 16;
  frame.ord = 16;
  return frame;
}

MpaInitiator::Config initiator_config() { return {.ird = 16, .ord = 16, .private_data = {}}; }

struct InitiatorRun {
  MpaInitiator initiator;
  MpaInitiator::Verdict verdict;
};

InitiatorRun run_initiator(const MpaInitiator::Config& config, const Bytes& reply) {
  InitiatorRun run{MpaInitiator(config), {}};
  run.verdict = run.initiator.on_bytes(reply);
  return run;
}

InitiatorRun run_initiator(const MpaInitiator::Config& config, const MpaStartFrame& reply) {
  return run_initiator(config, encode(reply));
}

// --- Golden exchange ----------------------------------------------------------------------------

// Proves: 6581-6-a
TEST(MpaHandshake, GoldenRequest) {
  const Bytes private_data = bytes_of(std::string_view("\xf6\xab\x0e\x18\x01\x01\x03\x03", 8));
  MpaInitiator::Config config = initiator_config();
  config.crc = true;
  config.private_data = private_data;
  MpaInitiator initiator(config);
  const auto request = initiator.request();
  EXPECT_EQ(Bytes(request.begin(), request.end()),
            test::load_vector("mpa/x02_request_enhanced.hex").bytes);

  const auto reply = test::load_vector("mpa/x03_reply_enhanced.hex").bytes;
  const auto verdict = initiator.on_bytes(reply);
  EXPECT_EQ(verdict.state, InitiatorState::kAccepted);
  EXPECT_EQ(verdict.consumed, reply.size());
  const MpaNegotiated& result = initiator.negotiated();
  EXPECT_TRUE(result.crc && result.enhanced && result.peer_to_peer);
  EXPECT_EQ(result.rtr, RtrKind::kWrite);
  EXPECT_EQ(result.ird, 16);
  EXPECT_EQ(result.ord, 16);
  EXPECT_EQ(initiator.private_data().size(), 8u);
}

TEST(MpaHandshake, GoldenRevision1Request) {
  MpaInitiator::Config config = initiator_config();
  config.revision = 1;
  config.crc = true;
  const MpaInitiator initiator(config);
  EXPECT_EQ(Bytes(initiator.request().begin(), initiator.request().end()),
            test::load_vector("mpa/x01_request_revision1.hex").bytes);
}

TEST(MpaHandshake, GoldenReply) {
  const auto request = test::load_vector("mpa/x02_request_enhanced.hex").bytes;
  MpaResponder responder({});
  const auto verdict = responder.on_bytes(request);
  ASSERT_EQ(verdict.state, ResponderState::kRequest);
  EXPECT_EQ(verdict.consumed, request.size());
  const auto reply =
      responder.accept(16, 8, bytes_of(std::string_view("\xf6\xab\x0e\x18\x01\x00\x00\xff", 8)));
  EXPECT_EQ(Bytes(reply.bytes.begin(), reply.bytes.end()),
            test::load_vector("mpa/x03_reply_enhanced.hex").bytes);
  EXPECT_TRUE(reply.negotiated.crc && reply.negotiated.peer_to_peer);
  EXPECT_EQ(reply.negotiated.rtr, RtrKind::kWrite);
  EXPECT_EQ(reply.negotiated.ird, 16);
  EXPECT_EQ(reply.negotiated.ord, 8);
}

TEST(MpaHandshake, GoldenReject) {
  MpaResponder responder({});
  responder.on_bytes(test::load_vector("mpa/x01_request_revision1.hex").bytes);
  ASSERT_EQ(responder.state(), ResponderState::kRequest);
  const auto reply = responder.reject(bytes_of("busy"));
  EXPECT_EQ(Bytes(reply.bytes.begin(), reply.bytes.end()),
            test::load_vector("mpa/x04_reply_reject.hex").bytes);
}

// --- Initiator ----------------------------------------------------------------------------------

// 6581-9.2-a: A=1 goes with Write and Read on offer, never with a Send. No markers. 5044-4.3-b.
// Proves: 5044-4.3-b 5044-7.1.1-c 5044-7.1.1-e 6581-9.2-a
TEST(MpaInitiator, RequestOffersWriteAndRead) {
  const MpaStartFrame request = decode(MpaInitiator(initiator_config()).request(), false);
  EXPECT_TRUE(request.enhanced && request.peer_to_peer && request.rtr_write && request.rtr_read);
  EXPECT_FALSE(request.rtr_send || request.markers || request.reject || request.crc);
  EXPECT_EQ(request.revision, 2);
}

// Client-server: the depths are present, the RTR bits are not. 6581-6-a.
// Proves: 6581-6-a
TEST(MpaInitiator, RequestWithoutPeerToPeer) {
  MpaInitiator::Config config = initiator_config();
  config.peer_to_peer = false;
  const MpaStartFrame request = decode(MpaInitiator(config).request(), false);
  EXPECT_TRUE(request.enhanced);
  EXPECT_FALSE(request.peer_to_peer || request.rtr_write || request.rtr_read);
  EXPECT_EQ(request.ird, 16);
}

// Without an RTR kind to offer, peer-to-peer cannot be asked for.
TEST(MpaInitiator, NoRtrKindMeansNoPeerToPeer) {
  MpaInitiator::Config config = initiator_config();
  config.rtr_write = config.rtr_read = false;
  EXPECT_FALSE(decode(MpaInitiator(config).request(), false).peer_to_peer);
}

// Depths beyond 14 bits are sent as the largest; the reserved value is sent only on purpose.
// 6581-9.1-a.
// Proves: 6581-9.1-a
TEST(MpaInitiator, RequestDepthsAreCapped) {
  MpaInitiator::Config config = initiator_config();
  config.ird = 0xFFFF;
  config.ord = kDepthNotNegotiated;
  const MpaStartFrame request = decode(MpaInitiator(config).request(), false);
  EXPECT_EQ(request.ird, 0x3FFE);
  EXPECT_EQ(request.ord, 0x3FFF);
}

// Proves: 5044-7.1.2-d
TEST(MpaInitiator, RequestCarriesPrivateData) {
  const Bytes most(508, std::byte{0x5A});
  for (size_t size : {0u, 1u, 255u, 508u}) {
    MpaInitiator::Config config = initiator_config();
    config.private_data = std::span(most).first(size);
    const MpaStartFrame request = decode(MpaInitiator(config).request(), false);
    EXPECT_EQ(text(request.private_data.bytes()), text(config.private_data));
  }
}

// 5044-4.4-c: CRC is on if either side asks.
// Proves: 5044-4.4-c
TEST(MpaInitiator, CrcIfEitherSideAsks) {
  for (int bits = 0; bits < 4; ++bits) {
    MpaInitiator::Config config = initiator_config();
    config.crc = (bits & 1) != 0;
    MpaStartFrame reply = good_reply();
    reply.crc = (bits & 2) != 0;
    const auto run = run_initiator(config, reply);
    ASSERT_EQ(run.verdict.state, InitiatorState::kAccepted);
    EXPECT_EQ(run.initiator.negotiated().crc, bits != 0);
    EXPECT_EQ(decode(run.initiator.request(), false).crc, config.crc);
  }
}

struct DepthCase {
  const char* what;
  uint16_t ird, ord, ird_limit;  // those of the initiator
  uint16_t reply_ird, reply_ord;
  bool accepted;
  uint16_t result_ird, result_ord;
};

constexpr uint16_t kOpen = kDepthNotNegotiated;
constexpr DepthCase kInitiatorDepths[] = {
    {"reply as asked", 16, 16, 0, 16, 16, true, 16, 16},
    {"peer holds fewer: 6581-9.1-e", 16, 16, 0, 1, 8, true, 16, 1},
    {"peer holds more", 16, 4, 0, 16, 8, true, 16, 4},
    {"peer holds none", 16, 16, 0, 0, 0, true, 16, 0},
    {"peer wants more than we hold: 6581-9.1-f", 16, 16, 0, 16, 17, false, 0, 0},
    {"peer wants the most: 6581-9.1-f", 16, 16, 128, 16, 0x3FFE, false, 0, 0},
    {"peer wants more, we can grow", 16, 16, 128, 16, 128, true, 128, 16},
    {"growing has its limit", 16, 16, 128, 16, 129, false, 0, 0},
    {"peer does not say: 6581-9.1-b", 16, 16, 0, kOpen, kOpen, true, 16, 16},
    {"we do not say, peer does", kOpen, kOpen, 0, 4, 8, true, kOpen, 4},
    {"neither side sets a depth", kOpen, kOpen, 0, kOpen, kOpen, true, kOpen, kOpen},
};

// Proves: 6581-8-a 6581-9.1-b 6581-9.1-e 6581-9.1-f
TEST(MpaInitiator, Depths) {
  for (const DepthCase& row : kInitiatorDepths) {
    SCOPED_TRACE(row.what);
    MpaInitiator::Config config = initiator_config();
    config.ird = row.ird;
    config.ord = row.ord;
    config.ird_limit = row.ird_limit;
    MpaStartFrame reply = good_reply();
    reply.ird = row.reply_ird;
    reply.ord = row.reply_ord;
    const auto run = run_initiator(config, reply);
    if (row.accepted) {
      EXPECT_EQ(run.verdict.state, InitiatorState::kAccepted);
      EXPECT_EQ(run.initiator.negotiated().ird, row.result_ird);
      EXPECT_EQ(run.initiator.negotiated().ord, row.result_ord);
    } else {
      EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
      EXPECT_EQ(run.verdict.failure, MpaFailure::kInsufficientIrd);
      EXPECT_EQ(run.verdict.terminate, TerminateCode::kMpaInsufficientIrd);
      EXPECT_FALSE(run.verdict.retry_revision1);
    }
  }
}

// Revision 1 has no depths, so the application's own values apply.
TEST(MpaInitiator, Revision1KeepsTheApplicationsDepths) {
  MpaInitiator::Config config = initiator_config();
  config.revision = 1;
  config.ord = 3;
  MpaStartFrame reply;
  reply.is_reply = true;
  reply.revision = 1;
  const auto run = run_initiator(config, reply);
  ASSERT_EQ(run.verdict.state, InitiatorState::kAccepted);
  EXPECT_EQ(run.initiator.negotiated().ird, 16);
  EXPECT_EQ(run.initiator.negotiated().ord, 3);
  EXPECT_EQ(run.initiator.negotiated().revision, 1);
  EXPECT_EQ(run.initiator.negotiated().rtr, RtrKind::kNone);
  EXPECT_FALSE(run.initiator.negotiated().enhanced);
}

struct RtrCase {
  const char* what;
  bool ask, offer_write, offer_read;
  bool reply_a, reply_send, reply_write, reply_read;
  bool accepted;
  RtrKind kind;
};

constexpr RtrCase kInitiatorRtr[] = {
    {"Write chosen", true, true, true, true, false, true, false, true, RtrKind::kWrite},
    {"Read chosen", true, true, true, true, false, false, true, true, RtrKind::kRead},
    {"several: Write first, A36", true, true, true, true, true, true, true, true, RtrKind::kWrite},
    {"several, only Read offered", true, false, true, true, true, true, true, true, RtrKind::kRead},
    {"Read, but only Write offered: 6581-9.2-c", true, true, false, true, false, false, true, false,
     RtrKind::kNone},
    {"Send, never offered", true, true, true, true, true, false, false, false, RtrKind::kNone},
    {"A without any kind", true, true, true, true, false, false, false, false, RtrKind::kNone},
    {"peer does without", true, true, true, false, false, false, false, true, RtrKind::kNone},
    {"not asked for", false, true, true, false, false, false, false, true, RtrKind::kNone},
    {"not asked for, peer insists", false, true, true, true, false, true, false, true,
     RtrKind::kNone},
};

// Proves: 6581-8-a 6581-9.2-c
TEST(MpaInitiator, Rtr) {
  for (const RtrCase& row : kInitiatorRtr) {
    SCOPED_TRACE(row.what);
    MpaInitiator::Config config = initiator_config();
    config.peer_to_peer = row.ask;
    config.rtr_write = row.offer_write;
    config.rtr_read = row.offer_read;
    MpaStartFrame reply = good_reply();
    reply.peer_to_peer = row.reply_a;
    reply.rtr_send = row.reply_send;
    reply.rtr_write = row.reply_write;
    reply.rtr_read = row.reply_read;
    const auto run = run_initiator(config, reply);
    if (row.accepted) {
      EXPECT_EQ(run.verdict.state, InitiatorState::kAccepted);
      EXPECT_EQ(run.initiator.negotiated().rtr, row.kind);
      EXPECT_EQ(run.initiator.negotiated().peer_to_peer, row.kind != RtrKind::kNone);
    } else {
      EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
      EXPECT_EQ(run.verdict.failure, MpaFailure::kNoCommonRtr);
      EXPECT_EQ(run.verdict.terminate, TerminateCode::kMpaNoCommonRtr);
    }
  }
}

// 6581-9.2-h: the Read that serves as RTR needs a depth of 1.
// Proves: 6581-9.2-h
TEST(MpaInitiator, RtrReadRaisesOrdToOne) {
  MpaInitiator::Config config = initiator_config();
  config.ord = 0;
  MpaStartFrame reply = good_reply();
  reply.rtr_write = false;
  reply.rtr_read = true;
  reply.ird = 1;
  const auto run = run_initiator(config, reply);
  ASSERT_EQ(run.verdict.state, InitiatorState::kAccepted);
  EXPECT_EQ(run.initiator.negotiated().rtr, RtrKind::kRead);
  EXPECT_EQ(run.initiator.negotiated().ord, 1);
}

// 5044-7.1.1-e: rejected, with the application's private data only. 6581-6-d.
// Proves: 5044-7.1.1-e 6581-6-d
TEST(MpaInitiator, Rejected) {
  MpaStartFrame reply = good_reply();
  reply.reject = true;
  const Bytes why = bytes_of("busy");
  ASSERT_TRUE(reply.private_data.assign(why));
  const auto enhanced = run_initiator(initiator_config(), reply);
  EXPECT_EQ(enhanced.verdict.state, InitiatorState::kRejected);
  EXPECT_EQ(text(enhanced.initiator.private_data()), "busy");

  // An older peer rejects in its own revision.
  const auto revision1 =
      run_initiator(initiator_config(), test::load_vector("mpa/x04_reply_reject.hex").bytes);
  EXPECT_EQ(revision1.verdict.state, InitiatorState::kRejected);
  EXPECT_EQ(text(revision1.initiator.private_data()), "busy");

  // A rejection counts even if the rest of the frame could not be accepted.
  reply.markers = true;
  reply.ord = 0x3FFE;
  EXPECT_EQ(run_initiator(initiator_config(), reply).verdict.state, InitiatorState::kRejected);
}

// 5044-4.3-a: uwarp cannot send markers, so the connection is not used.
// Proves: 5044-4.3-a
TEST(MpaInitiator, MarkersAreRefused) {
  MpaStartFrame reply = good_reply();
  reply.markers = true;
  const auto run = run_initiator(initiator_config(), reply);
  EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
  EXPECT_EQ(run.verdict.failure, MpaFailure::kMarkersDemanded);
  EXPECT_FALSE(run.verdict.terminate || run.verdict.retry_revision1);
}

// 6581-6-b: another revision, or no IRD/ORD word; revision 1 may work.
// Proves: 6581-6-b
TEST(MpaInitiator, ReplyOfAnotherRevision) {
  MpaStartFrame reply = good_reply();
  reply.enhanced = false;
  for (uint8_t revision : {1, 2}) {
    reply.revision = revision;
    const auto run = run_initiator(initiator_config(), reply);
    EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
    EXPECT_EQ(run.verdict.failure, MpaFailure::kRevisionMismatch);
    EXPECT_TRUE(run.verdict.retry_revision1);
  }
  MpaInitiator::Config config = initiator_config();
  config.revision = 1;
  const auto run = run_initiator(config, good_reply());
  EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
  EXPECT_EQ(run.verdict.failure, MpaFailure::kRevisionMismatch);
  EXPECT_FALSE(run.verdict.retry_revision1);
}

TEST(MpaFailures, EachHasATextOfItsOwn) {
  std::set<std::string> texts;
  for (int value = 0; value <= static_cast<int>(MpaFailure::kPeerClosed); ++value)
    texts.insert(describe(static_cast<MpaFailure>(value)));
  EXPECT_EQ(texts.size(), static_cast<size_t>(MpaFailure::kPeerClosed) + 1);
  EXPECT_STREQ(describe(MpaFailure::kNone), "no failure");
}

// Every frame that cannot be a Reply. 5044-7.1.1-a, -b, -d; 6581-6-a.
// Proves: 5044-7.1.1-a 5044-7.1.1-b 5044-7.1.1-d 6581-6-a
TEST(MpaInitiator, InvalidReplies) {
  int tried = 0;
  for (const auto& file : test::load_vectors("mpa/invalid")) {
    if (file.notes.at("frame") != "reply") continue;
    SCOPED_TRACE(file.name);
    const auto run = run_initiator(initiator_config(), file.bytes);
    EXPECT_EQ(run.verdict.state, InitiatorState::kFailed);
    EXPECT_FALSE(run.verdict.terminate || run.verdict.retry_revision1);
    EXPECT_STRNE(describe(run.verdict.failure), "unknown failure");
    ++tried;
  }
  EXPECT_EQ(tried, 4);
  // A Request is not a Reply.
  EXPECT_EQ(run_initiator(initiator_config(), good_request()).verdict.failure, MpaFailure::kBadKey);
}

// 6581-10-a: a peer that closes without an answer may know revision 1 only.
TEST(MpaInitiator, EndOfStream) {
  MpaInitiator silent(initiator_config());
  const auto closed = silent.on_end_of_stream();
  EXPECT_EQ(closed.state, InitiatorState::kFailed);
  EXPECT_EQ(closed.failure, MpaFailure::kPeerClosed);
  EXPECT_TRUE(closed.retry_revision1);

  // The peer did speak MPA, so there is no retry.
  MpaInitiator cut(initiator_config());
  cut.on_bytes(first_of(encode(good_reply()), 10));
  EXPECT_FALSE(cut.on_end_of_stream().retry_revision1);

  MpaInitiator::Config config = initiator_config();
  config.revision = 1;
  MpaInitiator revision1(config);
  EXPECT_FALSE(revision1.on_end_of_stream().retry_revision1);

  // After the Reply, the end of the stream does not concern the start-up.
  MpaInitiator done(initiator_config());
  done.on_bytes(encode(good_reply()));
  EXPECT_EQ(done.on_end_of_stream().state, InitiatorState::kAccepted);
}

// The bytes behind the Reply are left to the next layer, exactly.
// Proves: 5041-6.1-a
TEST(MpaInitiator, LeavesFpdusAlone) {
  Bytes stream = encode(good_reply());
  const size_t size = stream.size();
  stream.resize(size + 20, std::byte{0xC1});
  const auto run = run_initiator(initiator_config(), stream);
  EXPECT_EQ(run.verdict.state, InitiatorState::kAccepted);
  EXPECT_EQ(run.verdict.consumed, size);
  MpaInitiator initiator(initiator_config());
  initiator.on_bytes(encode(good_reply()));
  EXPECT_EQ(initiator.on_bytes(bytes_of("more")).consumed, 0u);
}

// --- Responder ----------------------------------------------------------------------------------

MpaResponder::Verdict give(MpaResponder& responder, const MpaStartFrame& request) {
  return responder.on_bytes(encode(request));
}

// 6581-6-b, 6581-6-c: the Reply has the Request's revision and S bit. 5044-7.1.1-c, 5044-4.3-b.
// Proves: 6581-6-b 6581-6-c 5044-7.1.1-c
TEST(MpaResponder, ReplyHasTheRequestsRevision) {
  for (const auto& [revision, enhanced] :
       {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
    MpaStartFrame request;
    request.revision = static_cast<uint8_t>(revision);
    request.enhanced = enhanced;
    MpaResponder responder({});
    ASSERT_EQ(give(responder, request).state, ResponderState::kRequest);
    const auto made = responder.accept(3, 5, bytes_of("hi"));
    const MpaStartFrame reply = decode(made.bytes, true);
    EXPECT_EQ(reply.revision, revision);
    EXPECT_EQ(reply.enhanced, enhanced);
    EXPECT_FALSE(reply.markers || reply.reject || reply.peer_to_peer || reply.rtr_send ||
                 reply.rtr_write || reply.rtr_read);
    EXPECT_EQ(text(reply.private_data.bytes()), "hi");
    EXPECT_EQ(made.negotiated.rtr, RtrKind::kNone);
    EXPECT_EQ(made.negotiated.revision, revision);
    EXPECT_EQ(responder.state(), ResponderState::kReplied);
  }
}

// 5044-4.4-c: CRC is on if either side asks, and then the Reply says so.
// Proves: 5044-4.4-c
TEST(MpaResponder, CrcIfEitherSideAsks) {
  for (int bits = 0; bits < 4; ++bits) {
    MpaStartFrame request = good_request();
    request.crc = (bits & 1) != 0;
    MpaResponder responder({.crc = (bits & 2) != 0});
    give(responder, request);
    const auto made = responder.accept(1, 1, {});
    EXPECT_EQ(made.negotiated.crc, bits != 0);
    EXPECT_EQ(decode(made.bytes, true).crc, bits != 0);
  }
}

constexpr DepthCase kResponderDepths[] = {
    // what, our ird, our ord, -, Request's ird, ord, -, result ird, ord
    {"both alike", 16, 16, 0, 16, 16, true, 16, 16},
    {"peer holds fewer: 6581-9.1-c", 16, 8, 0, 2, 16, true, 16, 2},
    {"peer holds more", 16, 8, 0, 16, 4, true, 16, 8},
    {"we hold fewer than it wants: 6581-9.1-d", 4, 8, 0, 16, 16, true, 4, 8},
    {"peer holds none", 16, 8, 0, 0, 0, true, 16, 0},
    {"peer does not say: 6581-9.1-b", 16, 8, 0, kOpen, kOpen, true, 16, 8},
    {"ours beyond 14 bits", 0xFFFF, 0xFFFF, 0, kOpen, kOpen, true, 0x3FFE, 0x3FFE},
    {"our ORD is still open: limit known", 16, kOpen, 0, 4, 16, true, 16, 4},
    {"our ORD is still open: no limit", 16, kOpen, 0, kOpen, 16, true, 16, kOpen},
};

// Proves: 6581-9.1-b 6581-9.1-c 6581-9.1-d
TEST(MpaResponder, Depths) {
  for (const DepthCase& row : kResponderDepths) {
    SCOPED_TRACE(row.what);
    MpaStartFrame request = good_request();
    request.ird = row.reply_ird;
    request.ord = row.reply_ord;
    MpaResponder responder({});
    ASSERT_EQ(give(responder, request).state, ResponderState::kRequest);
    const auto made = responder.accept(row.ird, row.ord, {});
    EXPECT_EQ(made.negotiated.ird, row.result_ird);
    EXPECT_EQ(made.negotiated.ord, row.result_ord);
    const MpaStartFrame reply = decode(made.bytes, true);
    EXPECT_EQ(reply.ird, row.result_ird);
    EXPECT_EQ(reply.ord, row.ord == kOpen ? kOpen : row.result_ord);
  }
}

// Revision 1 has no depths, so the application's own values apply.
TEST(MpaResponder, Revision1KeepsTheApplicationsDepths) {
  MpaStartFrame request;
  request.revision = 1;
  MpaResponder responder({});
  give(responder, request);
  const auto made = responder.accept(7, 9, {});
  EXPECT_EQ(made.negotiated.ird, 7);
  EXPECT_EQ(made.negotiated.ord, 9);
  EXPECT_FALSE(made.negotiated.enhanced);
}

struct OfferCase {
  const char* what;
  bool a, send, write, read;
  bool accepted;
  RtrKind kind;
};

// 6581-9.2-b.
constexpr OfferCase kOffers[] = {
    {"Write", true, false, true, false, true, RtrKind::kWrite},
    {"Read", true, false, false, true, true, RtrKind::kRead},
    {"Write and Read", true, false, true, true, true, RtrKind::kWrite},
    {"all", true, true, true, true, true, RtrKind::kWrite},
    {"Send and Read", true, true, false, true, true, RtrKind::kRead},
    {"Send only: A37", true, true, false, false, false, RtrKind::kNone},
    {"nothing", true, false, false, false, false, RtrKind::kNone},
    {"client-server", false, false, false, false, true, RtrKind::kNone},
    {"client-server with stray bits", false, true, true, true, true, RtrKind::kNone},
};

// Proves: 6581-9.2-b
TEST(MpaResponder, Rtr) {
  for (const OfferCase& row : kOffers) {
    SCOPED_TRACE(row.what);
    MpaStartFrame request = good_request();
    request.peer_to_peer = row.a;
    request.rtr_send = row.send;
    request.rtr_write = row.write;
    request.rtr_read = row.read;
    MpaResponder responder({});
    const auto verdict = give(responder, request);
    if (!row.accepted) {
      EXPECT_EQ(verdict.state, ResponderState::kRefused);
      EXPECT_EQ(verdict.failure, MpaFailure::kNoCommonRtr);
      EXPECT_TRUE(decode(responder.refusal(), true).reject);
      continue;
    }
    ASSERT_EQ(verdict.state, ResponderState::kRequest);
    const auto made = responder.accept(4, 4, {});
    EXPECT_EQ(made.negotiated.rtr, row.kind);
    const MpaStartFrame reply = decode(made.bytes, true);
    EXPECT_EQ(reply.peer_to_peer, row.a);
    EXPECT_EQ(reply.rtr_write, row.kind == RtrKind::kWrite);
    EXPECT_EQ(reply.rtr_read, row.kind == RtrKind::kRead);
    EXPECT_FALSE(reply.rtr_send);
  }
}

// 6581-9.2-h: a Read as RTR needs a slot, even if the application wants none.
// Proves: 6581-9.2-h
TEST(MpaResponder, RtrReadRaisesIrdToOne) {
  MpaStartFrame request = good_request();
  request.rtr_write = false;
  MpaResponder responder({});
  give(responder, request);
  const auto made = responder.accept(0, 0, {});
  EXPECT_EQ(made.negotiated.ird, 1);
  EXPECT_EQ(decode(made.bytes, true).ird, 1);
}

TEST(MpaResponder, Reject) {
  MpaResponder responder({});
  give(responder, good_request());
  const MpaStartFrame reply = decode(responder.reject(bytes_of("no")).bytes, true);
  EXPECT_TRUE(reply.reject && reply.enhanced);
  EXPECT_EQ(reply.revision, 2);
  EXPECT_EQ(text(reply.private_data.bytes()), "no");
  EXPECT_EQ(responder.state(), ResponderState::kReplied);
}

// 5044-4.3-a: uwarp cannot send markers; the Reply says so in the peer's own revision.
// Proves: 5044-4.3-a
TEST(MpaResponder, MarkersAreRefusedWithAReply) {
  for (uint8_t revision : {1, 2}) {
    MpaStartFrame request;
    request.revision = revision;
    request.markers = true;
    MpaResponder responder({});
    const auto verdict = give(responder, request);
    EXPECT_EQ(verdict.state, ResponderState::kRefused);
    EXPECT_EQ(verdict.failure, MpaFailure::kMarkersDemanded);
    const MpaStartFrame reply = decode(responder.refusal(), true);
    EXPECT_TRUE(reply.reject);
    EXPECT_FALSE(reply.markers);
    EXPECT_EQ(reply.revision, revision);
  }
}

// Every frame that cannot be a Request: the connection is closed without an answer. 5044-7.1.1-a,
// -b, -d; 6581-6-a.
// Proves: 5044-7.1.1-a 5044-7.1.1-b 5044-7.1.1-d 6581-6-a
TEST(MpaResponder, InvalidRequests) {
  int tried = 0;
  for (const auto& file : test::load_vectors("mpa/invalid")) {
    if (file.notes.at("frame") != "request") continue;
    SCOPED_TRACE(file.name);
    MpaResponder responder({});
    const auto verdict = responder.on_bytes(file.bytes);
    EXPECT_EQ(verdict.state, ResponderState::kRefused);
    EXPECT_TRUE(responder.refusal().empty());
    EXPECT_EQ(responder.bytes_wanted(), 0u);
    ++tried;
  }
  EXPECT_EQ(tried, 9);
}

// Like an old peer, which does not know revision 2.
TEST(MpaResponder, OldPeerClosesOnRevision2) {
  MpaResponder responder({.crc = false, .revision_max = 1});
  EXPECT_EQ(give(responder, good_request()).failure, MpaFailure::kBadRevision);
  EXPECT_TRUE(responder.refusal().empty());
  MpaResponder revision1({.crc = false, .revision_max = 1});
  MpaStartFrame request;
  request.revision = 1;
  EXPECT_EQ(give(revision1, request).state, ResponderState::kRequest);
}

// 5044-7.1.2-g: the initiator must wait for the Reply. The bytes may come in the same piece or a
// later one.
// Proves: 5044-7.1.2-g
TEST(MpaResponder, BytesBehindTheRequest) {
  Bytes stream = encode(good_request());
  const size_t size = stream.size();
  stream.push_back(std::byte{0});
  MpaResponder together({});
  const auto verdict = together.on_bytes(stream);
  EXPECT_EQ(verdict.state, ResponderState::kRefused);
  EXPECT_EQ(verdict.failure, MpaFailure::kBytesBehindRequest);
  EXPECT_EQ(verdict.consumed, size);
  EXPECT_TRUE(together.refusal().empty());

  MpaResponder later({});
  EXPECT_EQ(give(later, good_request()).state, ResponderState::kRequest);
  EXPECT_EQ(later.on_bytes(bytes_of("x")).failure, MpaFailure::kBytesBehindRequest);
  EXPECT_TRUE(later.refusal().empty());
}

// After the Reply the stream belongs to the FPDU layer.
TEST(MpaResponder, LeavesFpdusAlone) {
  MpaResponder responder({});
  give(responder, good_request());
  (void)responder.accept(1, 1, {});
  EXPECT_EQ(responder.on_bytes(bytes_of("fpdu")).consumed, 0u);
  EXPECT_EQ(responder.state(), ResponderState::kReplied);
  EXPECT_EQ(responder.on_end_of_stream().state, ResponderState::kReplied);
}

TEST(MpaResponder, EndOfStream) {
  MpaResponder half({});
  half.on_bytes(first_of(encode(good_request()), 19));
  EXPECT_EQ(half.on_end_of_stream().failure, MpaFailure::kPeerClosed);
  MpaResponder whole({});
  give(whole, good_request());
  EXPECT_EQ(whole.on_end_of_stream().state, ResponderState::kRefused);
}

// 5044-7.1.2-d: as much as fits beside the enhanced word, byte for byte.
// Proves: 5044-7.1.1-d 5044-7.1.2-d
TEST(MpaResponder, PrivateDataMax) {
  const Bytes most(512, std::byte{0x77});
  for (const auto& [enhanced, limit] : {std::pair{true, 508u}, std::pair{false, 512u}}) {
    MpaStartFrame request;
    request.enhanced = enhanced;
    ASSERT_TRUE(request.private_data.assign(std::span(most).first(limit)));
    MpaResponder responder({});
    ASSERT_EQ(give(responder, request).state, ResponderState::kRequest);
    EXPECT_EQ(responder.private_data().size(), limit);
    EXPECT_EQ(responder.private_data_max(), limit);
    const auto made = responder.accept(0, 0, std::span(most).first(limit));
    EXPECT_EQ(decode(made.bytes, true).private_data.size(), limit);
  }
}

// --- Both ---------------------------------------------------------------------------------------

// Cut in two at every offset, and byte by byte: the result is the same as in one piece. Reading
// bytes_wanted() bytes never reads into the FPDUs.
template <typename Machine>
void expect_same_in_pieces(const Bytes& frame, const std::function<Machine()>& make,
                           const std::function<void(const Machine&)>& check) {
  for (size_t cut = 0; cut <= frame.size(); ++cut) {
    Machine machine = make();
    const auto first = machine.on_bytes(std::span(frame).first(cut));
    ASSERT_EQ(first.consumed, cut);
    const auto second = machine.on_bytes(std::span(frame).subspan(cut));
    ASSERT_EQ(second.consumed, frame.size() - cut);
    check(machine);
  }
  Machine bytewise = make();
  for (std::byte byte : frame) {
    ASSERT_GE(bytewise.bytes_wanted(), 1u);
    ASSERT_EQ(bytewise.on_bytes(std::span(&byte, 1)).consumed, 1u);
  }
  check(bytewise);

  Machine exact = make();
  size_t at = 0;
  while (at < frame.size()) {
    const size_t wanted = exact.bytes_wanted();
    ASSERT_LE(wanted, frame.size() - at);
    exact.on_bytes(std::span(frame).subspan(at, wanted));
    at += wanted;
  }
  check(exact);
}

// Proves: 5041-6.1-a
TEST(MpaHandshake, InitiatorInPieces) {
  const auto make = [] { return MpaInitiator(initiator_config()); };
  expect_same_in_pieces<MpaInitiator>(test::load_vector("mpa/x03_reply_enhanced.hex").bytes, make,
                                      [](const MpaInitiator& done) {
                                        ASSERT_EQ(done.state(), InitiatorState::kAccepted);
                                        EXPECT_EQ(done.negotiated().rtr, RtrKind::kWrite);
                                        EXPECT_EQ(done.private_data().size(), 8u);
                                      });
  expect_same_in_pieces<MpaInitiator>(test::load_vector("mpa/x04_reply_reject.hex").bytes, make,
                                      [](const MpaInitiator& done) {
                                        ASSERT_EQ(done.state(), InitiatorState::kRejected);
                                        EXPECT_EQ(text(done.private_data()), "busy");
                                      });
}

// Proves: 5041-6.1-a
TEST(MpaHandshake, ResponderInPieces) {
  for (const char* name : {"mpa/x01_request_revision1.hex", "mpa/x02_request_enhanced.hex"}) {
    expect_same_in_pieces<MpaResponder>(
        test::load_vector(name).bytes, [] { return MpaResponder({}); },
        [&](const MpaResponder& done) { ASSERT_EQ(done.state(), ResponderState::kRequest); });
  }
}

// Invalid frames fail in the same way when they arrive in pieces.
TEST(MpaHandshake, InvalidFramesInPieces) {
  for (const auto& file : test::load_vectors("mpa/invalid")) {
    SCOPED_TRACE(file.name);
    const bool reply = file.notes.at("frame") == "reply";
    MpaInitiator initiator_whole(initiator_config()), initiator_pieces(initiator_config());
    MpaResponder responder_whole({}), responder_pieces({});
    const auto feed = [&](std::span<const std::byte> bytes, bool whole) {
      if (reply) return (whole ? initiator_whole : initiator_pieces).on_bytes(bytes).failure;
      return (whole ? responder_whole : responder_pieces).on_bytes(bytes).failure;
    };
    const MpaFailure expected = feed(file.bytes, true);
    EXPECT_NE(expected, MpaFailure::kNone);
    MpaFailure failure = MpaFailure::kNone;
    for (std::byte byte : file.bytes) failure = feed(std::span(&byte, 1), false);
    EXPECT_EQ(failure, expected);
  }
}

// Every combination of wishes of two uwarps: both come to the same result.
TEST(MpaHandshake, BothSidesAgree) {
  for (int bits = 0; bits < 32; ++bits) {
    SCOPED_TRACE(bits);
    const Bytes hello = bytes_of("hello");
    MpaInitiator::Config config{.revision = static_cast<uint8_t>(bits & 1 ? 2 : 1),
                                .peer_to_peer = (bits & 2) != 0,
                                .crc = (bits & 4) != 0,
                                .rtr_write = (bits & 8) != 0,
                                .ird = 5,
                                .ord = 9,
                                .private_data = hello};
    MpaInitiator initiator(config);
    MpaResponder responder({.crc = (bits & 16) != 0});
    ASSERT_EQ(responder.on_bytes(initiator.request()).state, ResponderState::kRequest);
    EXPECT_EQ(text(responder.private_data()), "hello");
    const auto made = responder.accept(7, 8, bytes_of("welcome"));
    ASSERT_EQ(initiator.on_bytes(made.bytes).state, InitiatorState::kAccepted);
    EXPECT_EQ(text(initiator.private_data()), "welcome");
    const MpaNegotiated& ours = initiator.negotiated();
    EXPECT_EQ(ours.crc, made.negotiated.crc);
    EXPECT_EQ(ours.revision, made.negotiated.revision);
    EXPECT_EQ(ours.enhanced, made.negotiated.enhanced);
    EXPECT_EQ(ours.peer_to_peer, made.negotiated.peer_to_peer);
    EXPECT_EQ(ours.rtr, made.negotiated.rtr);
    if (ours.enhanced) {
      EXPECT_EQ(ours.ord, 7);             // what the responder supports
      EXPECT_EQ(made.negotiated.ord, 5);  // what the initiator uses
    } else {
      EXPECT_EQ(ours.ord, 9);
      EXPECT_EQ(made.negotiated.ord, 8);
    }
  }
}

// The Terminate without headers is the golden one; with CRC off its CRC is zero.
// Proves: 6581-8-a
TEST(MpaHandshake, BareTerminate) {
  Bytes fpdu(kBareTerminateFpduSize);
  EXPECT_EQ(write_bare_terminate_fpdu(fpdu.data(), TerminateCode::kMpaCrc, true), fpdu.size());
  EXPECT_EQ(fpdu, test::load_vector("rdmap/x19_terminate_crc.hex").bytes);
  write_bare_terminate_fpdu(fpdu.data(), TerminateCode::kMpaNoCommonRtr, false);
  EXPECT_EQ(load_be16(&fpdu[20]), 0x2007);
  EXPECT_EQ(load_le32(&fpdu[24]), 0u);
}

}  // namespace
}  // namespace uwarp
