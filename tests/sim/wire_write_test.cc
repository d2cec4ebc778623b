// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How two uwarps tell each other that what they send is delayed already (docs/wire.md, "Wires to
// order").
#include <gtest/gtest.h>

#include "inject/fault_plan.h"
#include "inject/fault_script.h"
#include "protocol/wire/control_writes.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

Bytes mark_of_a_wire() {
  return tagged(RdmapOpcode::kWrite, WireWrite::kStag, TaggedOffset{WireWrite::kOffset}, 0, true);
}

TEST(WireWrite, GoldenOffset) { EXPECT_EQ(WireWrite::kOffset, 0x6c21'0000'0000'0000); }

TEST(WireWrite, APeerThatDelaysIsKnown) {
  RawPeer peer({.peer_is_uwarp = true});
  EXPECT_FALSE(peer.dut.qp->peer_delays());
  peer.send(mark_of_a_wire());
  EXPECT_TRUE(peer.dut.qp->peer_delays());
}

TEST(WireWrite, AnotherWriteSaysNothing) {
  RawPeer peer({.peer_is_uwarp = true});
  peer.send(
      tagged(RdmapOpcode::kWrite, WireWrite::kStag, TaggedOffset{WireWrite::kOffset + 1}, 0, true));
  EXPECT_FALSE(peer.dut.qp->peer_delays());
}

}  // namespace
}  // namespace uwarp::sim
