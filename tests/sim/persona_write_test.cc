// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How two uwarps tell each other their personas (docs/wire.md, "Personas").
#include <gtest/gtest.h>

#include "protocol/wire/control_writes.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using Said = PersonaWrite::Said;

Bytes persona_write(Said persona) {
  return tagged(RdmapOpcode::kWrite, PersonaWrite::kStag, PersonaWrite::offset(persona), 0, true);
}

TEST(PersonaWrite, GoldenOffsets) {
  EXPECT_EQ(PersonaWrite::offset(Said::kIwarp), 0x6e21'0000'0000'0001);
  EXPECT_EQ(PersonaWrite::offset(Said::kRoce), 0x6e21'0000'0000'0002);
}

TEST(PersonaWrite, TheFirstOneOfAPeerCounts) {
  RawPeer peer({.peer_is_uwarp = true});
  EXPECT_EQ(peer.dut.qp->peer_persona(), Said::kNothing);
  peer.send(persona_write(Said::kRoce));
  EXPECT_EQ(peer.dut.qp->peer_persona(), Said::kRoce);
  EXPECT_NE(peer.dut.outcome & kRxPersona, 0u);
  peer.dut.outcome = 0;
  peer.send(persona_write(Said::kIwarp));
  EXPECT_EQ(peer.dut.qp->peer_persona(), Said::kRoce);
  EXPECT_EQ(peer.dut.outcome & kRxPersona, 0u) << "a peer could have a line logged for each";
}

TEST(PersonaWrite, OtherWritesSayNothing) {
  RawPeer peer({.peer_is_uwarp = true});
  const TaggedOffset next = PersonaWrite::offset(Said::kRoce) + 1;
  peer.send(tagged(RdmapOpcode::kWrite, PersonaWrite::kStag, next, 0, true));
  peer.send(tagged(RdmapOpcode::kWrite, PersonaWrite::kStag, PersonaWrite::kOffset, 0, true));
  peer.send(tagged(RdmapOpcode::kWrite, STag{1}, PersonaWrite::offset(Said::kRoce), 0, true));
  EXPECT_EQ(peer.dut.qp->peer_persona(), Said::kNothing);
}

Bytes magic_write() {
  return tagged(RdmapOpcode::kWrite, kPeerMagicStag, kPeerMagicOffset, 0, true);
}

/// Of a responder, as a connection makes it.
StreamConfig responder(Said persona) {
  StreamConfig config;
  config.magic_stag = kPeerMagicStag;
  config.magic_offset = kPeerMagicOffset;
  config.answer_magic = true;
  config.persona = persona;
  return config;
}

TEST(PersonaWrite, RoceSaysSoOnceThePeerIsRecognised) {
  RawPeer peer(responder(Said::kRoce));
  peer.send(tagged(RdmapOpcode::kWrite, STag{1}, 0, 0, true));
  EXPECT_TRUE(peer.ulpdus().empty()) << "a foreign peer notices nothing";
  peer.send(magic_write());
  EXPECT_EQ(peer.ulpdus(), (std::vector<Bytes>{magic_write(), persona_write(Said::kRoce)}));
  peer.send(persona_write(Said::kIwarp));
  EXPECT_TRUE(peer.ulpdus().empty());
}

TEST(PersonaWrite, IwarpAnswersOnceWhenToldRoce) {
  RawPeer peer(responder(Said::kIwarp));
  peer.send(magic_write());
  EXPECT_EQ(peer.ulpdus(), std::vector<Bytes>{magic_write()});
  peer.send(persona_write(Said::kRoce));
  EXPECT_EQ(peer.ulpdus(), std::vector<Bytes>{persona_write(Said::kIwarp)});
  peer.send(persona_write(Said::kRoce));
  EXPECT_TRUE(peer.ulpdus().empty());
}

TEST(PersonaWrite, IwarpSaysNothingToItsLike) {
  RawPeer peer(responder(Said::kIwarp));
  peer.send(magic_write());
  EXPECT_EQ(peer.ulpdus(), std::vector<Bytes>{magic_write()});
  peer.send(persona_write(Said::kIwarp));
  EXPECT_TRUE(peer.ulpdus().empty());
}

// The peer's first message, which comes in one read with its magic, breaks a rule.
TEST(PersonaWrite, GoesInFrontOfATerminate) {
  RawPeer peer(responder(Said::kRoce));
  peer.post_receive(1, 100);
  peer.feed(joined({magic_write(), send_message(1, 101)}));
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], persona_write(Said::kRoce));
  EXPECT_EQ(opcode_of(sent[1]), RdmapOpcode::kTerminate);
}

}  // namespace
}  // namespace uwarp::sim
