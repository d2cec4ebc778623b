// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The mark behind which a stream leaves TCP for shared memory (docs/wire.md, "Shared memory").
#include <gtest/gtest.h>

#include "protocol/wire/control_writes.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

StreamConfig of_two_uwarps() {
  StreamConfig config;
  config.peer_is_uwarp = true;
  config.may_leave_tcp = true;
  return config;
}

Bytes switch_mark(bool last = true) {
  const CarrierWrite mark{CarrierWrite::Kind::kSwitch};
  return tagged(RdmapOpcode::kWrite, CarrierWrite::kStag, TaggedOffset{mark.offset()}, 0, last);
}

TEST(CarrierWrite, GoldenOffsets) {
  using Kind = CarrierWrite::Kind;
  EXPECT_EQ((CarrierWrite{Kind::kMailbox, 0x123456789abc}.offset()), 0x6f21'1234'5678'9abc);
  EXPECT_EQ((CarrierWrite{Kind::kNumber, 0xffff'ffff'ffff}.offset()), 0x7421'ffff'ffff'ffff);
  EXPECT_EQ(CarrierWrite{Kind::kSwitch}.offset(), 0x7221'0000'0000'0000);
}

// The rest of the mark's FPDU still comes by TCP. A receiver that switches right after the header
// would take the first bytes in shared memory for the FPDU's trailer.
TEST(CarrierWrite, TheSwitchIsDueOnceItsFpduHasComeWhole) {
  const Bytes mark = frame(switch_mark(), false);
  for (size_t cut = 1; cut <= mark.size(); ++cut) {
    RawPeer peer(of_two_uwarps());
    peer.feed(Bytes(mark.begin(), mark.begin() + static_cast<ptrdiff_t>(cut)));
    EXPECT_EQ((peer.dut.outcome & kRxSwitch) != 0, cut == mark.size()) << cut << " bytes";
  }
}

TEST(CarrierWrite, TheSwitchIsReportedOnce) {
  RawPeer peer(of_two_uwarps());
  peer.send(switch_mark());
  EXPECT_NE(peer.dut.outcome & kRxSwitch, 0u);
  peer.dut.outcome = kRxNothing;
  peer.send(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 100));
  EXPECT_EQ(peer.dut.outcome & kRxSwitch, 0u);
}

TEST(CarrierWrite, IsAnEmptyWriteWhereTheStreamMayNotLeaveTcp) {
  StreamConfig stays = of_two_uwarps();
  stays.may_leave_tcp = false;
  StreamConfig of_a_stranger = of_two_uwarps();
  of_a_stranger.peer_is_uwarp = false;
  for (const StreamConfig& config : {stays, of_a_stranger}) {
    RawPeer peer(config);
    peer.send(switch_mark());
    EXPECT_EQ(peer.dut.outcome & kRxSwitch, 0u);
  }
}

TEST(CarrierWrite, IsNoPartOfALongerMessage) {
  RawPeer peer(of_two_uwarps());
  peer.send(switch_mark(false));
  EXPECT_EQ(peer.dut.outcome & kRxSwitch, 0u);
  peer.send(switch_mark());  // the same message's last segment
  EXPECT_EQ(peer.dut.outcome & kRxSwitch, 0u);
  peer.send(switch_mark());
  EXPECT_NE(peer.dut.outcome & kRxSwitch, 0u);
}

}  // namespace
}  // namespace uwarp::sim
