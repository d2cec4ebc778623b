// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The events of an rdma_cm id when its network device is removed, and which calls it still accepts.
#include <cerrno>

#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

class CmRemovalTest : public RdmaCmNodeTest {
 protected:
  /// Tells all ids that no network device is left.
  void remove_all() { tell(NetDeviceTable({})); }
  void tell(const NetDeviceTable& devices) {
    for (const auto& id : ids_.all()) id->netdevs_changed(devices);
  }
  /// Expects DEVICE_REMOVAL as the only event, once, and that the id can only be destroyed.
  void expect_removed(uint32_t id, int events_before) {
    remove_all();  // one table without devices is enough
    EXPECT_EQ(channel_.next_event(), kDeviceRemoval);
    EXPECT_EQ(channel_.next_event(), kNone);
    EXPECT_EQ(channel_.bind(id, 0), ENXIO);
    EXPECT_EQ(channel_.listen(id), ENXIO);
    EXPECT_EQ(channel_.resolve(id), ENXIO);
    EXPECT_EQ(channel_.resolve_route(id), ENXIO);
    EXPECT_EQ(channel_.connect(id), ENXIO);
    EXPECT_EQ(channel_.accept(id, 1), ENXIO);
    EXPECT_EQ(channel_.disconnect(id), ENXIO);
    EXPECT_EQ(channel_.destroy(id), events_before + 1);
    EXPECT_EQ(channel_.destroy(id), -ENOENT);
  }
};

TEST_F(CmRemovalTest, AResolvedId) {
  const uint32_t id = resolved_id();
  remove_all();
  expect_removed(id, 2);
}

TEST_F(CmRemovalTest, AConnectedId) {
  const uint32_t id = established_id();
  remove_all();
  EXPECT_EQ(transport_.connection->end, End::kAborted);
  owner()->connection_ended({});
  expect_removed(id, 3);
}

TEST_F(CmRemovalTest, AConnectionAttempt) {
  const uint32_t id = resolved_id();
  EXPECT_EQ(channel_.connect(id), 0);
  remove_all();
  EXPECT_EQ(transport_.connection->end, End::kAborted);
  owner()->connection_established({}, {}, {});
  expect_removed(id, 2);
}

TEST_F(CmRemovalTest, InsideConnect) {
  const uint32_t id = resolved_id();
  transport_.inside_connect = [&](FakeConnection&) { remove_all(); };
  EXPECT_NE(channel_.connect(id), 0);
  EXPECT_EQ(transport_.connection->end, End::kAborted);
  expect_removed(id, 2);
}

TEST_F(CmRemovalTest, AConnectionThatHasEnded) {
  const uint32_t id = established_id();
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  remove_all();
  EXPECT_EQ(transport_.connection->end, End::kNone);
  expect_removed(id, 4);
}

// The request is aborted. The application has not yet given the new id a uid, so it gets no event.
TEST_F(CmRemovalTest, ARequestThatWaitsForItsAnswer) {
  const uint32_t listener = listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  remove_all();
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(connection->end, End::kAborted);
  EXPECT_EQ(channel_.accept(event.id, 5), ENXIO);
  EXPECT_EQ(channel_.destroy(event.id), 0);
  EXPECT_EQ(channel_.destroy(listener), 1);
}

TEST_F(CmRemovalTest, AnIdThatHasAcceptedIt) {
  const uint32_t listener = listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(channel_.accept(event.id, 5), 0);
  remove_all();
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, uint32_t{kDeviceRemoval});
  EXPECT_EQ(event.uid, 5u);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.destroy(listener), 1);
}

// A listener on a loopback or wildcard address belongs to no device, so it stays open when devices
// are removed.
TEST_F(CmRemovalTest, IdsWithoutADeviceStay) {
  const uint32_t idle = channel_.create();
  const uint32_t listener = listening_id();
  remove_all();
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_FALSE(transport_.listener->closed);
  EXPECT_EQ(channel_.bind(idle, 0), 0);
  EXPECT_EQ(channel_.destroy(listener), 0);
}

TEST_F(CmRemovalTest, ANetdevWithoutAddressesIsStillThere) {
  const uint32_t id = established_id();
  const int loopback = net_devices()->by_address(*IpAddress::from_string("127.0.0.1"))->ifindex;
  tell(NetDeviceTable({}, {loopback}));
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.disconnect(id), 0);
}

}  // namespace
}  // namespace uwarp
