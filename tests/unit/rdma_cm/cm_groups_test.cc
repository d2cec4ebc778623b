// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Multicast groups of rdma_cm ids: which ids may join, which events they get, and how many events
// are counted.
#include <gtest/gtest.h>

#include <cerrno>

#include "connect/qp_attributes.h"
#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

class CmGroups : public RdmaCmNodeTest {
 protected:
  explicit CmGroups(Persona persona = Persona::kRoce) : RdmaCmNodeTest(persona) {
    channel_.usual_port_space = RDMA_PS_UDP;
  }

  uint32_t address_resolved_id() {
    const uint32_t id = channel_.create();
    EXPECT_EQ(channel_.resolve(id), 0);
    EXPECT_EQ(channel_.next_event(), kAddressResolved);
    return id;
  }
  int join(uint32_t id, const char* group, uint32_t& number, uint16_t flags = 0) {
    rdma_ucm_create_id_resp out{};
    rdma_ucm_join_mcast payload{};
    payload.response = address_of(out);
    payload.uid = kUid;
    payload.id = id;
    payload.join_flags = flags;
    sockaddr_storage address{};
    payload.addr_size =
        static_cast<uint16_t>(IpAddress::from_string(group)->to_sockaddr(address, 0));
    memcpy(&payload.addr, &address, sizeof payload.addr);
    const int error = channel_.command(RDMA_USER_CM_CMD_JOIN_MCAST, payload, sizeof out);
    number = out.id;
    return error;
  }
  int join(uint32_t id, const char* group = "239.1.2.3") {
    uint32_t number = 0;
    return join(id, group, number);
  }
  /// The number of events reported, or a negative errno.
  int leave(uint32_t number) {
    rdma_ucm_destroy_id_resp out{};
    const int error = channel_.command(RDMA_USER_CM_CMD_LEAVE_MCAST,
                                       rdma_ucm_destroy_id{address_of(out), number, 0}, sizeof out);
    return error != 0 ? -error : static_cast<int>(out.events_reported);
  }

  static constexpr uint64_t kUid = 0x9999;
  static constexpr int kMulticastJoin = 12;
  static constexpr int kMulticastError = 13;
};

class CmGroupsIwarp : public CmGroups {
 protected:
  CmGroupsIwarp() : CmGroups(Persona::kIwarp) {}
};

TEST_F(CmGroups, TheEventHasTheAddressOfTheGroup) {
  const uint32_t id = address_resolved_id();
  uint32_t number = 0;
  ASSERT_EQ(join(id, "239.1.2.3", number), 0);
  EXPECT_EQ(transport_.last_group.to_string(), "239.1.2.3");
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, static_cast<uint32_t>(kMulticastJoin));
  EXPECT_EQ(event.status, 0u);
  EXPECT_EQ(event.uid, kUid);
  EXPECT_EQ(event.id, number);
  const rdma_ucm_ud_param& ud = event.param.ud;
  EXPECT_EQ(ud.qp_num, 0xffffffu);
  EXPECT_EQ(ud.qkey, kCmQkey);
  const uint8_t gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3};
  EXPECT_EQ(memcmp(ud.ah_attr.grh.dgid, gid, sizeof gid), 0);
  EXPECT_EQ(ud.ah_attr.is_global, 1);
  EXPECT_EQ(ud.ah_attr.port_num, 1);
  EXPECT_EQ(leave(number), 1);
  EXPECT_EQ(leave(number), -ENOENT);
  EXPECT_EQ(channel_.destroy(id), 2);
}

TEST_F(CmGroups, OfIpv6) {
  uint32_t number = 0;
  ASSERT_EQ(join(address_resolved_id(), "ff0e::7", number), 0);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.param.ud.ah_attr.grh.dgid[0], 0xff);
  EXPECT_EQ(event.param.ud.ah_attr.grh.dgid[15], 7);
}

TEST_F(CmGroups, TheOldCommandJoinsToo) {
  rdma_ucm_create_id_resp out{};
  rdma_ucm_join_ip_mcast payload{};
  payload.response = address_of(out);
  sockaddr_storage address{};
  (void)IpAddress::from_string("239.1.2.3")->to_sockaddr(address, 0);
  memcpy(&payload.addr, &address, sizeof(sockaddr_in));
  payload.id = address_resolved_id();
  ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_JOIN_IP_MCAST, payload, sizeof out), 0);
  EXPECT_EQ(channel_.next_event(), kMulticastJoin);
  EXPECT_EQ(leave(out.id), 1);
}

TEST_F(CmGroups, AFailedJoinIsReported) {
  transport_.group_error = ENETUNREACH;
  uint32_t number = 0;
  ASSERT_EQ(join(address_resolved_id(), "239.1.2.3", number), 0);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, static_cast<uint32_t>(kMulticastError));
  EXPECT_EQ(static_cast<int>(event.status), -ENETUNREACH);
  EXPECT_EQ(event.uid, kUid);
  EXPECT_EQ(leave(number), 1);
}

TEST_F(CmGroups, AnUnreadEventIsRemovedWithItsGroup) {
  const uint32_t id = address_resolved_id();
  uint32_t first = 0, second = 0;
  ASSERT_EQ(join(id, "239.1.2.3", first), 0);
  ASSERT_EQ(join(id, "239.1.2.4", second), 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(leave(first), 0);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.id, second);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_FALSE(channel_.readable());
  // Destroying the id leaves its remaining groups.
  EXPECT_EQ(channel_.destroy(id), 2);
  EXPECT_EQ(leave(second), -ENOENT);
}

TEST_F(CmGroups, AnIdNeedsADeviceAndDatagrams) {
  EXPECT_EQ(join(channel_.create()), EINVAL);
  EXPECT_EQ(join(resolved_id()), EINVAL) << "as in the kernel: not once the route is known";
  channel_.usual_port_space = RDMA_PS_TCP;
  EXPECT_EQ(join(address_resolved_id()), EINVAL);
}

TEST_F(CmGroups, WrongArguments) {
  const uint32_t id = address_resolved_id();
  uint32_t number = 0;
  EXPECT_EQ(join(id, "239.1.2.3", number, 1), 0) << "sends only";
  EXPECT_EQ(join(id, "239.1.2.3", number, 2), EINVAL);
  EXPECT_EQ(join(id, "0.0.0.0", number), EINVAL);
  EXPECT_EQ(join(60000, "239.1.2.3", number), ENOENT);
  rdma_ucm_join_mcast payload{};
  payload.id = id;
  payload.addr.ss_family = AF_INET;
  payload.addr_size = 4;
  rdma_ucm_create_id_resp out{};
  payload.response = address_of(out);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_JOIN_MCAST, payload, sizeof out), EINVAL);
  payload.addr_size = sizeof(sockaddr_in);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_JOIN_MCAST, payload, 0), ENOSPC);
}

TEST_F(CmGroupsIwarp, HasNone) { EXPECT_EQ(join(address_resolved_id()), ENOSYS); }

}  // namespace
}  // namespace uwarp
