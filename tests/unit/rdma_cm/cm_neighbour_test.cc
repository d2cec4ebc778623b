// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An rdma_cm id that waits for a neighbour to be resolved.
#include <cerrno>

#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

class CmNeighbourTest : public RdmaCmNodeTest {
 protected:
  CmNeighbourTest() { transport_.neighbour_is_asked_for = true; }
  void tell(int status) { transport_.neighbour.lock()->neighbour_known(status); }
  void expect_error(int status) {
    rdma_ucm_event_resp event{};
    ASSERT_EQ(channel_.event(event), 0);
    EXPECT_EQ(event.event, uint32_t{kAddressError});
    EXPECT_EQ(static_cast<int>(event.status), status);
  }
};

TEST_F(CmNeighbourTest, TheEventComesWithTheAnswer) {
  const uint32_t id = channel_.create();
  EXPECT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(transport_.neighbour_timeout_ms, 2000u);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.resolve_route(id), EINVAL);
  EXPECT_EQ(channel_.resolve(id), EINVAL) << "one at a time";
  EXPECT_EQ(channel_.listen(id), EINVAL);
  tell(0);
  tell(0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.resolve_route(id), 0);
}

TEST_F(CmNeighbourTest, ItMayComeAtOnce) {
  transport_.inside_wait = [](NeighbourListener& listener) { listener.neighbour_known(0); };
  const uint32_t id = channel_.create();
  EXPECT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_EQ(channel_.next_event(), kNone);
}

TEST_F(CmNeighbourTest, AfterAnErrorTheIdMayTryAgain) {
  const uint32_t id = channel_.create();
  for (const int status : {-ETIMEDOUT, -EHOSTUNREACH}) {
    EXPECT_EQ(channel_.resolve(id), 0);
    tell(status);
    expect_error(status);
    EXPECT_EQ(channel_.query_route(id).num_paths, 0u);
  }
  transport_.neighbour_is_asked_for = false;
  EXPECT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
}

TEST_F(CmNeighbourTest, ABoundIdStaysBound) {
  const uint32_t id = channel_.create();
  EXPECT_EQ(channel_.bind(id, 7300), 0);
  EXPECT_EQ(channel_.resolve(id), 0);
  tell(-ETIMEDOUT);
  expect_error(-ETIMEDOUT);
  EXPECT_EQ(channel_.bind(id, 7301), EINVAL);
  EXPECT_EQ(channel_.listen(id), 0);
}

TEST_F(CmNeighbourTest, ADestroyedIdGetsNoEvent) {
  const uint32_t id = channel_.create();
  EXPECT_EQ(channel_.resolve(id), 0);
  const auto listener = transport_.neighbour.lock();
  EXPECT_EQ(channel_.destroy(id), 0);
  listener->neighbour_known(-ETIMEDOUT);
  EXPECT_EQ(channel_.next_event(), kNone);
}

}  // namespace
}  // namespace uwarp
