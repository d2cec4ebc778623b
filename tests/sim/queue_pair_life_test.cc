// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Draining in SQD, and traffic before RTS.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

// SQD: what has started drains, an open atomic included; what waits goes on in RTS.
TEST(Sqd, DrainsAndReturns) {
  RawPeer peer;
  const Sge result{peer.base(), 8, peer.memory_region->lkey.load()};
  ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kFetchAdd, 1, result, 8, 2, 1), 0);
  peer.settle();
  peer.dut.qp->to_sqd(true);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_TRUE(peer.dut.events.empty());
  peer.send(atomic_response({0, 1}, 1));
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kSqDrained});
  EXPECT_EQ(peer.dut.sends().size(), 1u);
  EXPECT_TRUE(peer.ulpdus().empty());
  peer.dut.qp->to_rts();
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_EQ(peer.dut.events.size(), 1u);
}

TEST(CommEstablished, FirstFpduBeforeRts) {
  for (const bool early : {true, false}) {
    RegionTable regions;
    End end(regions);
    end.qp->to_rtr();
    StreamConfig config;
    config.silent_fin = true;
    ASSERT_TRUE(end.qp->start_stream(config));
    if (!early) end.qp->to_rts();
    for (int i = 0; i < 2; ++i) {
      const Bytes fpdu = frame(tagged(RdmapOpcode::kWrite, STag{1}, 0, 0), false);
      std::lock_guard lock(end.qp->receive_gate());
      std::memcpy(end.qp->receive_window(end.staging)[0].iov_base, fpdu.data(), fpdu.size());
      end.qp->received(end.staging, fpdu.size());
    }
    EXPECT_EQ(end.events.size(), early ? 1u : 0u);
    if (early) {
      EXPECT_EQ(end.events[0], QpEvent::kCommEstablished);
    }
  }
}

}  // namespace
}  // namespace uwarp::sim
