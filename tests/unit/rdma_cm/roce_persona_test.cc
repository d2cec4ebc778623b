// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The commands as librdmacm's InfiniBand code uses them: paths, attributes of each state, the three
// steps of a connection, and its last event.
#include <gtest/gtest.h>

#include <cerrno>

#include "connect/qp_attributes.h"
#include "rdma_cm/rdma_cm_node.h"
#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

class RocePersona : public RdmaCmNodeTest {
 protected:
  RocePersona() : RdmaCmNodeTest(Persona::kRoce) {}

  ib_uverbs_qp_attr attributes(uint32_t id, QpState state, int expected = 0) {
    ib_uverbs_qp_attr out{};
    EXPECT_EQ(
        channel_.command(RDMA_USER_CM_CMD_INIT_QP_ATTR,
                         rdma_ucm_init_qp_attr{address_of(out), id, static_cast<uint32_t>(state)},
                         sizeof out),
        expected);
    return out;
  }
  static ibv_qp_attr converted(const ib_uverbs_qp_attr& from) {
    ibv_qp_attr to = initial_attributes();
    to.qp_state = static_cast<ibv_qp_state>(from.qp_state);
    to.ah_attr.port_num = from.ah_attr.port_num;
    to.dest_qp_num = from.dest_qp_num;
    to.port_num = from.port_num;
    to.path_mtu = static_cast<ibv_mtu>(from.path_mtu);
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.min_rnr_timer = from.min_rnr_timer;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    return to;
  }
  /// The third step of the active side. `valid` of ACCEPT distinguishes it from the answer of the
  /// passive side.
  void wait_is_over() {
    ASSERT_NE(transport_.waiting, nullptr);
    std::exchange(transport_.waiting, nullptr)->deadline_passed();
  }
  int ready(uint32_t id) {
    rdma_ucm_accept payload{};
    payload.id = id;
    return channel_.command(RDMA_USER_CM_CMD_ACCEPT, payload);
  }
};

TEST_F(RocePersona, ThePathIsKnownWithTheRoute) {
  const uint32_t id = channel_.create();
  ASSERT_EQ(channel_.resolve(id), 0);
  ASSERT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_EQ(channel_.query_route(id).num_paths, 0u);
  ASSERT_EQ(channel_.resolve_route(id), 0);
  ASSERT_EQ(channel_.next_event(), kRouteResolved);
  const rdma_ucm_query_route_resp route = channel_.query_route(id);
  ASSERT_EQ(route.num_paths, 1u);
  EXPECT_EQ(route.ib_route[0].dgid[12], 127);
  EXPECT_EQ(route.ib_route[0].sgid[12], 127);
  EXPECT_EQ(ntohs(route.ib_route[0].pkey), 0xffff);
  EXPECT_GE(route.ib_route[0].mtu, 1u);
  EXPECT_LE(route.ib_route[0].mtu, 5u);

  PathResponse path{};
  ASSERT_EQ(
      channel_.command(RDMA_USER_CM_CMD_QUERY,
                       rdma_ucm_query{address_of(path), id, RDMA_USER_CM_QUERY_PATH}, sizeof path),
      0);
  EXPECT_EQ(path.head.num_paths, 1u);
  // The service id comes first, then the destination's GID.
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(path.path.path_rec)[8 + 12], 127);
}

TEST_F(RocePersona, TheAttributesAreWhatTheTransitionsWant) {
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  const std::pair<QpState, QpState> steps[] = {{QpState::kReset, QpState::kInit},
                                               {QpState::kInit, QpState::kRtr},
                                               {QpState::kRtr, QpState::kRts}};
  for (const auto& [from, to] : steps) {
    const ib_uverbs_qp_attr given = attributes(id, to);
    const int mask = static_cast<int>(given.qp_attr_mask);
    EXPECT_TRUE(transition_allowed(Transport::kRc, from, to, mask));
    EXPECT_EQ(check_attributes(converted(given), mask), 0);
    EXPECT_FALSE(is_cm_mask(to, mask));
  }
  const ib_uverbs_qp_attr rtr = attributes(id, QpState::kRtr);
  EXPECT_TRUE(names_cm_peer(converted(rtr), static_cast<int>(rtr.qp_attr_mask)));
  EXPECT_TRUE(rtr.ah_attr.is_global);
  EXPECT_EQ(rtr.ah_attr.grh.dgid[12], 127);
  EXPECT_EQ(rtr.max_dest_rd_atomic, 4);
  EXPECT_EQ(attributes(id, QpState::kRts).max_rd_atomic, 5);
  attributes(id, QpState::kSqd, EINVAL);
}

TEST_F(RocePersona, TheCountsOfAConnectionReachTheQueuePair) {
  const uint32_t id = resolved_id();
  rdma_ucm_connect connect{};
  connect.id = id;
  connect.conn_param.valid = 1;
  connect.conn_param.retry_count = 2;
  connect.conn_param.rnr_retry_count = 9;  // the kernel uses the largest value
  ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_CONNECT, connect), 0);
  // Set at once, because the stream may run before librdmacm has moved the queue pair.
  EXPECT_EQ(transport_.wanted.retries.retry_count, 2);
  EXPECT_EQ(transport_.wanted.retries.rnr_retry, 7);
  EXPECT_EQ(transport_.wanted.retries.timeout, 18);
  EXPECT_EQ(attributes(id, QpState::kRts).retry_cnt, 2);
  EXPECT_EQ(attributes(id, QpState::kRts).rnr_retry, 7);

  listening_id();
  request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  // librdmacm moves the accepting queue pair before it says what it accepts.
  EXPECT_EQ(attributes(event.id, QpState::kRts).rnr_retry, 7);
  rdma_ucm_accept accept{};
  accept.id = event.id;
  accept.conn_param.valid = 1;
  accept.conn_param.rnr_retry_count = 1;
  ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  EXPECT_EQ(transport_.wanted.retries.rnr_retry, 1);
  EXPECT_EQ(transport_.wanted.retries.retry_count, std::nullopt)
      << "the peer's retry count, which is not known";
}

TEST_F(RocePersona, TheActiveSideConfirmsWhenItIsReady) {
  const uint32_t id = resolved_id();
  EXPECT_EQ(ready(id), EINVAL);
  ASSERT_EQ(channel_.connect(id), 0);
  ConnectParameters peer;
  peer.responder_resources = 2;
  peer.initiator_depth = 1;
  owner()->connection_established({}, {}, peer);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kConnectResponse);
  EXPECT_EQ(event.param.conn.qp_num, kCmPeerQpn);
  EXPECT_EQ(attributes(id, QpState::kRtr).max_dest_rd_atomic, 1);
  EXPECT_EQ(attributes(id, QpState::kRts).max_rd_atomic, 2);
  EXPECT_EQ(ready(id), 0);
  EXPECT_EQ(channel_.next_event(), kNone);
  ASSERT_EQ(channel_.disconnect(id), 0);
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(channel_.next_event(), kNone);
  wait_is_over();
  EXPECT_EQ(channel_.next_event(), kTimewaitExit);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.destroy(id), 5);
}

TEST_F(RocePersona, AnEndBeforeTheThirdStepIsReportedOnce) {
  const uint32_t id = answered_id();
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kConnectResponse);
  EXPECT_EQ(ready(id), 0);
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(channel_.next_event(), kNone);
}

// As in the kernel: a peer's disconnect is one event, and this side's own disconnect ends the
// connection for good.
TEST_F(RocePersona, TheTimeToWaitBeginsWithTheOwnDisconnect) {
  const uint32_t id = answered_id();
  EXPECT_EQ(channel_.next_event(), kConnectResponse);
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(transport_.waiting, nullptr);
  ASSERT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  EXPECT_EQ(transport_.wait_ms, 1024u) << "of the default timeout";
  EXPECT_EQ(channel_.next_event(), kNone);
  wait_is_over();
  EXPECT_EQ(channel_.next_event(), kTimewaitExit);
  ASSERT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(transport_.waiting, nullptr) << "once";
}

TEST_F(RocePersona, TheTimeToWaitIsThatOfTheAckTimeout) {
  const uint32_t id = resolved_id();
  const uint8_t timeout = 10;
  ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_SET_OPTION,
                             rdma_ucm_set_option{address_of(timeout), id, RDMA_OPTION_ID,
                                                 RDMA_OPTION_ID_ACK_TIMEOUT, sizeof timeout}),
            0);
  ASSERT_EQ(channel_.connect(id), 0);
  owner()->connection_established({}, {}, {});
  ASSERT_EQ(channel_.disconnect(id), 0);
  owner()->connection_ended({});
  EXPECT_EQ(transport_.wait_ms, 4u);
}

TEST_F(RocePersona, NoEventFollowsTheIdThatWaits) {
  const uint32_t id = answered_id();
  ASSERT_EQ(channel_.disconnect(id), 0);
  const auto kept = owner();
  kept->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kConnectResponse);
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  channel_.destroy(id);
  wait_is_over();
  EXPECT_EQ(channel_.next_event(), kNone);
}

TEST_F(RocePersona, AnAnswerMayBeRejected) {
  const uint32_t id = answered_id();
  EXPECT_EQ(channel_.next_event(), kConnectResponse);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, rdma_ucm_reject{id, 0, 0, {}, {}}), 0);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  EXPECT_EQ(channel_.next_event(), kNone);
}

TEST_F(RocePersona, AnAnswerMayBeRejectedInsideConnect) {
  const uint32_t id = resolved_id();
  transport_.inside_connect = [&](FakeConnection& connection) {
    connection.owner.lock()->connection_established({}, {}, {});
    EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, rdma_ucm_reject{id, 0, 0, {}, {}}), 0);
  };
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
}

TEST_F(RocePersona, ThePassiveSideIsEstablishedAtOnce) {
  listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  ASSERT_EQ(event.event, kConnectRequest);
  EXPECT_EQ(event.param.conn.qp_num, kCmPeerQpn);
  const uint32_t id = event.id;
  EXPECT_EQ(channel_.query_route(id).num_paths, 1u);
  EXPECT_TRUE(attributes(id, QpState::kRtr).ah_attr.is_global);
  ASSERT_EQ(channel_.accept(id, 5), 0);
  connection->owner.lock()->connection_established({}, {}, {});
  EXPECT_EQ(channel_.next_event(), kEstablished);
}

TEST_F(RocePersona, ARejectedConnectionHasNoTimewait) {
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  owner()->connection_rejected({}, -ECONNREFUSED, {});
  EXPECT_EQ(channel_.next_event(), kRejected);
  EXPECT_EQ(channel_.next_event(), kNone);
}

}  // namespace
}  // namespace uwarp
