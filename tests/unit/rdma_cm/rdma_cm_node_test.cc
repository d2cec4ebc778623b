// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The rdma_cm commands and the states of an id: results, events, and calls to the engine.
#include "rdma_cm/rdma_cm_node.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

TEST_F(RdmaCmNodeTest, ActiveSideFromCreateToDisconnected) {
  const uint32_t id = channel_.create(0xabcdef);
  ASSERT_EQ(channel_.resolve(id), 0);
  EXPECT_TRUE(channel_.readable());
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kAddressResolved);
  EXPECT_EQ(event.uid, 0xabcdefu);
  EXPECT_EQ(event.id, id);
  EXPECT_EQ(event.status, 0u);
  EXPECT_FALSE(channel_.readable());
  ASSERT_EQ(channel_.resolve_route(id), 0);
  EXPECT_EQ(channel_.next_event(), kRouteResolved);
  ASSERT_EQ(channel_.connect(id, "hello"), 0);
  EXPECT_EQ(transport_.wanted.number, 0x123456u);
  EXPECT_EQ(transport_.last_connect.parameters.responder_resources, 4);
  EXPECT_EQ(transport_.last_connect.parameters.initiator_depth, 5);
  EXPECT_EQ(transport_.last_connect.parameters.private_data.size(), 5u);
  EXPECT_EQ(port_of(transport_.last_connect.remote), 7174);
  // Without a source address, that of the route is used, with a port that was reserved when the
  // route was found.
  EXPECT_EQ(port_of(transport_.last_connect.local), transport_.next_port - 1);
  EXPECT_TRUE(transport_.last_connect.bound);
  EXPECT_EQ(channel_.next_event(), kNone);
  ConnectParameters peer;
  peer.responder_resources = 2;
  peer.private_data.assign(255, std::byte{0x5a});
  sockaddr_storage local;
  IpAddress::from_string("127.0.0.1")->to_sockaddr(local, 33333);
  owner()->connection_established({}, local, peer);
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kEstablished);
  EXPECT_EQ(event.param.conn.private_data_len, 255);
  EXPECT_EQ(event.param.conn.private_data[254], 0x5a);
  EXPECT_EQ(event.param.conn.responder_resources, 2);
  EXPECT_EQ(ntohs(channel_.query_route(id).src_addr.sin6_port), 33333);
  ASSERT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  owner()->connection_ended({});
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(channel_.destroy(id), 4);
}

TEST_F(RdmaCmNodeTest, CommandsInWrongStates) {
  const uint32_t id = channel_.create();
  EXPECT_EQ(channel_.resolve_route(id), EINVAL);
  EXPECT_EQ(channel_.connect(id), EINVAL);
  EXPECT_EQ(channel_.accept(id, 1), EINVAL);
  EXPECT_EQ(channel_.disconnect(id), EINVAL);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, rdma_ucm_reject{id, 0, 0, {}, {}}), EINVAL);
  EXPECT_EQ(channel_.bind(id, 0), 0);
  EXPECT_EQ(channel_.bind(id, 0), EINVAL);
  EXPECT_EQ(channel_.listen(id), 0);
  EXPECT_EQ(channel_.listen(id), EINVAL);
  EXPECT_EQ(channel_.resolve(id), EINVAL);
  const uint32_t other = resolved_id();
  EXPECT_EQ(channel_.resolve(other), EINVAL);
  EXPECT_EQ(channel_.listen(other), EINVAL);
}

TEST_F(RdmaCmNodeTest, PortSpacesThatThereAreNot) {
  rdma_ucm_create_id_resp response{};
  for (const uint16_t port_space : {0, 1, 0x107, 0x13e, 0xffff}) {
    const rdma_ucm_create_id create{1, address_of(response), port_space, 2, {}};
    EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, create, sizeof response), EINVAL);
  }
}

// The listener's socket is AF_INET6 and reports IPv4 addresses in mapped form.
TEST_F(RdmaCmNodeTest, AnIpv4PeerOfAnIpv6ListenerIsSeenAsSuch) {
  listening_id();
  auto connection = std::make_shared<FakeConnection>();
  const sockaddr_in6 own = IpAddress::from_string("127.0.0.1")->to_sockaddr_in6(7174);
  const sockaddr_in6 peer = IpAddress::from_string("127.0.0.1")->to_sockaddr_in6(55555);
  memcpy(&connection->local, &own, sizeof own);
  memcpy(&connection->remote, &peer, sizeof peer);
  ASSERT_EQ(connection->local.ss_family, AF_INET6);
  ASSERT_TRUE(transport_.listener->request(connection));
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  const auto families = [&] {
    const auto answer = channel_.query_route(event.id);
    EXPECT_EQ(ntohs(answer.src_addr.sin6_port), 7174);
    EXPECT_EQ(ntohs(answer.dst_addr.sin6_port), 55555);
    return std::pair(answer.src_addr.sin6_family, answer.dst_addr.sin6_family);
  };
  EXPECT_EQ(families(), std::pair(sa_family_t{AF_INET}, sa_family_t{AF_INET}));
  ASSERT_EQ(channel_.accept(event.id, 5), 0);
  connection->owner.lock()->connection_established({}, connection->local, {});
  EXPECT_EQ(families(), std::pair(sa_family_t{AF_INET}, sa_family_t{AF_INET}));
}

TEST_F(RdmaCmNodeTest, UnknownIdsAndIdsOfOtherChannels) {
  Channel other(ids_, transport_);
  const uint32_t id = channel_.create();
  EXPECT_EQ(other.bind(id, 0), EINVAL);
  EXPECT_EQ(other.destroy(id), -EINVAL);
  EXPECT_EQ(channel_.bind(60000, 0), ENOENT);
  EXPECT_EQ(channel_.bind(0, 0), ENOENT);
  EXPECT_EQ(channel_.bind(0xffffffff, 0), ENOENT);
  EXPECT_EQ(channel_.destroy(id), 0);
  EXPECT_EQ(channel_.destroy(id), -ENOENT);
}

TEST_F(RdmaCmNodeTest, PortZeroIsChosenAtBind) {
  const uint32_t id = channel_.create();
  ASSERT_EQ(channel_.bind(id, 0), 0);
  EXPECT_EQ(ntohs(channel_.query_route(id).src_addr.sin6_port), 40000);
}

TEST_F(RdmaCmNodeTest, BindErrors) {
  const uint32_t id = channel_.create();
  rdma_ucm_bind_ip payload{};
  payload.id = id;
  // The address has no family.
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND_IP, payload), EINVAL);
  // An address that this host does not have (RFC 5737).
  sockaddr_storage foreign;
  IpAddress::from_string("203.0.113.1")->to_sockaddr(foreign, 0);
  memcpy(&payload.addr, &foreign, sizeof(sockaddr_in));
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND_IP, payload), EADDRNOTAVAIL);
  transport_.bind_error = EADDRINUSE;
  EXPECT_EQ(channel_.bind(id, 7174), EADDRINUSE);
  transport_.bind_error = 0;
  EXPECT_EQ(channel_.bind(id, 7174), 0);
}

TEST_F(RdmaCmNodeTest, AfIbProbeIsRefused) {
  const uint32_t id = channel_.create(1, RDMA_PS_IB);
  rdma_ucm_bind payload{};
  payload.id = id;
  payload.addr_size = sizeof(SockaddrIb);
  payload.addr.ss_family = kAfIb;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, payload), EAFNOSUPPORT);
}

TEST_F(RdmaCmNodeTest, NewerBindAndResolveCommands) {
  const uint32_t id = channel_.create();
  rdma_ucm_bind bind{};
  bind.id = id;
  bind.addr_size = sizeof(sockaddr_in6);
  sockaddr_storage any{};
  any.ss_family = AF_INET6;
  memcpy(&bind.addr, &any, sizeof any);
  bind.addr_size = 4;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), EINVAL);
  bind.addr_size = 0xffff;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), EINVAL);
  bind.addr_size = sizeof(sockaddr_in6);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), 0);
  const uint32_t other = channel_.create();
  rdma_ucm_resolve_addr resolve{};
  resolve.id = other;
  const sockaddr_in6 to = loopback_in6(7174);
  memcpy(&resolve.dst_addr, &to, sizeof(sockaddr_in));
  resolve.dst_size = sizeof(sockaddr_in);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_RESOLVE_ADDR, resolve), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  // Both addresses of an id must be of one family.
  resolve.id = id;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_RESOLVE_ADDR, resolve), EINVAL);
}

TEST_F(RdmaCmNodeTest, TheSourcePortIsKnownWithTheAddress) {
  const uint32_t id = channel_.create();
  ASSERT_EQ(channel_.resolve(id), 0);
  const auto source_port = [&](uint32_t of) {
    return ntohs(channel_.query_route(of).src_addr.sin6_port);
  };
  EXPECT_EQ(source_port(id), transport_.next_port - 1);
  const uint32_t bound = channel_.create();
  ASSERT_EQ(channel_.bind(bound, 0), 0);
  const uint16_t port = source_port(bound);
  EXPECT_EQ(port, transport_.next_port - 1);
  ASSERT_EQ(channel_.resolve(bound), 0);
  EXPECT_EQ(source_port(bound), port) << "it has one already";
}

TEST_F(RdmaCmNodeTest, WithoutAFreePortItIsKnownFromTheConnectionOn) {
  const uint32_t id = channel_.create();
  transport_.bind_error = EADDRINUSE;
  ASSERT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  ASSERT_EQ(channel_.resolve_route(id), 0);
  EXPECT_EQ(channel_.next_event(), kRouteResolved);
  EXPECT_EQ(channel_.query_route(id).src_addr.sin6_port, 0);
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_FALSE(transport_.last_connect.bound);
  EXPECT_EQ(port_of(transport_.last_connect.local), 0);
  sockaddr_storage local;
  IpAddress::from_string("127.0.0.1")->to_sockaddr(local, 33333);
  owner()->connection_established({}, local, {});
  EXPECT_EQ(ntohs(channel_.query_route(id).src_addr.sin6_port), 33333);
}

TEST_F(RdmaCmNodeTest, TheWildcardIsTheBoundAddressOrLoopback) {
  const struct {
    const char* bound;
    const char* destination;
    const char* expected;
  } cases[] = {{nullptr, "0.0.0.0", "127.0.0.1"},
               {"0.0.0.0", "0.0.0.0", "127.0.0.1"},
               {"127.0.0.9", "0.0.0.0", "127.0.0.9"},
               {nullptr, "::", "::1"},
               {"::", "::", "::1"},
               {"::1", "::", "::1"}};
  for (const auto& expected : cases) {
    const uint32_t id = channel_.create();
    sockaddr_storage address{};
    if (expected.bound != nullptr) {
      rdma_ucm_bind bind{};
      bind.id = id;
      IpAddress::from_string(expected.bound)->to_sockaddr(address, 0);
      bind.addr_size = static_cast<uint16_t>(size_of_address(address));
      memcpy(&bind.addr, &address, bind.addr_size);
      ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), 0);
    }
    rdma_ucm_resolve_addr resolve{};
    resolve.id = id;
    IpAddress::from_string(expected.destination)->to_sockaddr(address, 7174);
    resolve.dst_size = static_cast<uint16_t>(size_of_address(address));
    memcpy(&resolve.dst_addr, &address, resolve.dst_size);
    ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_RESOLVE_ADDR, resolve), 0);
    const auto answer = channel_.query_route(id);
    sockaddr_storage remote{}, local{};
    memcpy(&remote, &answer.dst_addr, sizeof answer.dst_addr);
    memcpy(&local, &answer.src_addr, sizeof answer.src_addr);
    EXPECT_EQ(ip_of(remote).to_string(), expected.expected);
    EXPECT_EQ(ip_of(local).to_string(), expected.expected);
    EXPECT_EQ(port_of(remote), 7174);
    // The destination of RoCE's path and address vector.
    EXPECT_EQ(IpAddress::from_gid(answer.ib_route[0].dgid), ip_of(remote));
  }
}

TEST_F(RdmaCmNodeTest, QueryNamesTheDeviceOnlyWhenThereIsOne) {
  const uint32_t wildcard = channel_.create();
  EXPECT_EQ(channel_.listen(wildcard), 0);
  auto answer = channel_.query_route(wildcard);
  EXPECT_EQ(answer.node_guid, 0u);
  EXPECT_EQ(answer.port_num, 0);
  // Like the kernel: a loopback address has no device until there is a connection.
  for (const char* local : {"127.0.0.1", "127.1.2.3", "::1"}) {
    const uint32_t bound = channel_.create();
    rdma_ucm_bind bind{};
    bind.id = bound;
    sockaddr_storage address{};
    IpAddress::from_string(local)->to_sockaddr(address, 0);
    bind.addr_size = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    memcpy(&bind.addr, &address, bind.addr_size);
    ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), 0) << local;
    answer = channel_.query_route(bound);
    EXPECT_EQ(answer.node_guid, 0u) << local;
    EXPECT_EQ(answer.port_num, 0) << local;
  }
  const uint32_t id = resolved_id();
  answer = channel_.query_route(id);
  EXPECT_EQ(answer.node_guid, net_devices()->by_verbs_name("uwarp_lo")->guid_be);
  EXPECT_EQ(answer.port_num, 1);
  EXPECT_EQ(answer.ibdev_index, 0xffffffffu);
  EXPECT_EQ(answer.num_paths, 0u);
  rdma_ucm_query_addr_resp address{};
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_QUERY,
                             rdma_ucm_query{address_of(address), id, RDMA_USER_CM_QUERY_ADDR},
                             sizeof address),
            0);
  EXPECT_EQ(address.src_size, sizeof(sockaddr_in));
  EXPECT_EQ(address.dst_size, sizeof(sockaddr_in));
  EXPECT_EQ(address.node_guid, answer.node_guid);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_QUERY,
                             rdma_ucm_query{address_of(address), id, RDMA_USER_CM_QUERY_GID},
                             sizeof address),
            0);
  EXPECT_EQ(address.src_size, sizeof(SockaddrIb));
  SockaddrIb gid;
  memcpy(&gid, &address.src_addr, sizeof gid);
  EXPECT_EQ(IpAddress::from_gid(gid.address), *IpAddress::from_string("127.0.0.1"));
  rdma_ucm_query_path_resp paths{9, 9};
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_QUERY,
                             rdma_ucm_query{address_of(paths), id, RDMA_USER_CM_QUERY_PATH},
                             sizeof paths),
            0);
  EXPECT_EQ(paths.num_paths, 0u);
}

TEST_F(RdmaCmNodeTest, QpAttributes) {
  const auto attributes = [&](uint32_t id, uint32_t state, ib_uverbs_qp_attr& out) {
    return channel_.command(RDMA_USER_CM_CMD_INIT_QP_ATTR,
                            rdma_ucm_init_qp_attr{address_of(out), id, state}, sizeof out);
  };
  ib_uverbs_qp_attr out{};
  const uint32_t idle = channel_.create();
  EXPECT_EQ(attributes(idle, 1, out), EINVAL);
  const uint32_t id = resolved_id();
  ASSERT_EQ(attributes(id, 1, out), 0);
  EXPECT_EQ(out.qp_attr_mask, 0x29u);
  EXPECT_EQ(out.qp_access_flags, 0u);
  EXPECT_EQ(out.port_num, 1);
  EXPECT_EQ(out.qp_state, 1u);
  ASSERT_EQ(attributes(id, 3, out), 0);
  EXPECT_EQ(out.qp_attr_mask, 0x20u);
  EXPECT_EQ(attributes(id, 6, out), EINVAL);
  ASSERT_EQ(channel_.connect(id), 0);
  ASSERT_EQ(attributes(id, 2, out), 0);
  EXPECT_EQ(out.qp_attr_mask, 0x29u);
  EXPECT_EQ(out.qp_access_flags, 6u);
}

TEST_F(RdmaCmNodeTest, FailuresOfTheActiveSide) {
  const struct {
    int status;
    int event;
  } cases[] = {{-ETIMEDOUT, kUnreachable}, {-ENETUNREACH, kConnectError}};
  for (const auto& expected : cases) {
    const uint32_t id = resolved_id();
    ASSERT_EQ(channel_.connect(id), 0);
    owner()->connection_failed({}, expected.status);
    rdma_ucm_event_resp event{};
    ASSERT_EQ(channel_.event(event), 0);
    EXPECT_EQ(static_cast<int>(event.event), expected.event);
    EXPECT_EQ(static_cast<int>(event.status), expected.status);
    EXPECT_EQ(channel_.destroy(id), 3);
  }
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  const std::byte reason[] = {std::byte{1}, std::byte{2}};
  owner()->connection_rejected({}, -ECONNREFUSED, reason);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kRejected);
  EXPECT_EQ(event.param.conn.private_data_len, 2);
  EXPECT_EQ(event.param.conn.private_data[1], 2);
  EXPECT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(channel_.connect(id), EINVAL);
}

TEST_F(RdmaCmNodeTest, AConnectThatFailsAtOnceMayBeRepeated) {
  const uint32_t id = resolved_id();
  transport_.connect_error = EINVAL;
  EXPECT_EQ(channel_.connect(id), EINVAL);
  transport_.connect_error = 0;
  EXPECT_EQ(channel_.connect(id), 0);
}

TEST_F(RdmaCmNodeTest, TheOutcomeMayComeInsideConnect) {
  const uint32_t id = resolved_id();
  transport_.inside_connect = [](FakeConnection& connection) {
    connection.owner.lock()->connection_established({}, {}, {});
    connection.owner.lock()->connection_ended({});
  };
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_EQ(channel_.next_event(), kEstablished);
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(channel_.destroy(id), 4);
}

// The thread that reads events may be faster than the thread that connects.
TEST_F(RdmaCmNodeTest, ADisconnectInsideConnectIsNotLost) {
  const uint32_t id = resolved_id();
  transport_.inside_connect = [&](FakeConnection& connection) {
    connection.owner.lock()->connection_established({}, {}, {});
    EXPECT_EQ(channel_.next_event(), kEstablished);
    EXPECT_EQ(channel_.disconnect(id), 0);
  };
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  owner()->connection_ended({});
  EXPECT_EQ(channel_.next_event(), kDisconnected);
}

TEST_F(RdmaCmNodeTest, PassiveSide) {
  const uint32_t listener = listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kConnectRequest);
  // The event belongs to the listener and names the new id.
  EXPECT_EQ(event.uid, 77u);
  const uint32_t id = event.id;
  EXPECT_NE(id, listener);
  EXPECT_EQ(event.param.conn.private_data_len, 2);
  // Depths are limited to what the library can send back.
  EXPECT_EQ(event.param.conn.responder_resources, 128);
  EXPECT_EQ(event.param.conn.initiator_depth, 3);
  const auto answer = channel_.query_route(id);
  EXPECT_NE(answer.node_guid, 0u);
  EXPECT_EQ(ntohs(answer.dst_addr.sin6_port), 55555);
  ASSERT_EQ(channel_.accept(id, 88), 0);
  EXPECT_TRUE(connection->accepted);
  EXPECT_EQ(transport_.wanted.number, 0x123456u);
  EXPECT_EQ(connection->end, End::kNone);
  connection->owner.lock()->connection_established({}, {}, {});
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kEstablished);
  EXPECT_EQ(event.uid, 88u);
  EXPECT_EQ(event.id, id);
  connection->owner.lock()->connection_ended({});
  // The event was not delivered, so it is not counted; CONNECT_REQUEST counts for the listener.
  EXPECT_EQ(channel_.destroy(id), 1);
  EXPECT_EQ(channel_.destroy(listener), 1);
  EXPECT_TRUE(transport_.listener->closed);
  EXPECT_FALSE(channel_.readable());
}

TEST_F(RdmaCmNodeTest, AcceptErrors) {
  listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  // With a wrong queue pair, accept may be tried again.
  connection->accept_result = EINVAL;
  EXPECT_EQ(channel_.accept(event.id, 1), EINVAL);
  // If the peer has gone, it may not.
  connection->accept_result = ECONNRESET;
  EXPECT_EQ(channel_.accept(event.id, 1), ECONNRESET);
  connection->accept_result = 0;
  EXPECT_EQ(channel_.accept(event.id, 1), EINVAL);
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(channel_.destroy(event.id), 0);
}

TEST_F(RdmaCmNodeTest, RejectWithPrivateData) {
  listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  rdma_ucm_reject reject{};
  reject.id = event.id;
  reject.private_data_len = 255;
  reject.private_data[254] = 7;
  for (const uint8_t unknown : {1, 27, 36, 255}) {
    reject.reason = unknown;
    EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, reject), EINVAL) << unknown;
  }
  reject.reason = 35;  // librdmacm says so where it cannot use the peer's options (ECE)
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, reject), 0);
  ASSERT_EQ(connection->given.private_data.size(), 255u);
  EXPECT_EQ(connection->given.private_data[254], std::byte{7});
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, reject), EINVAL);
  EXPECT_EQ(channel_.destroy(event.id), 0);
  EXPECT_EQ(connection->end, End::kRejected);
}

TEST_F(RdmaCmNodeTest, BacklogLimitsUnreadRequests) {
  listening_id(2);
  bool taken;
  request(&taken);
  EXPECT_TRUE(taken);
  request(&taken);
  EXPECT_TRUE(taken);
  request(&taken);
  EXPECT_FALSE(taken);
  EXPECT_EQ(channel_.next_event(), kConnectRequest);
  request(&taken);
  EXPECT_TRUE(taken);
}

TEST_F(RdmaCmNodeTest, RequestsToAnAddressOfNoDeviceAreRefused) {
  listening_id();
  bool taken = true;
  request(&taken, "203.0.113.9");
  EXPECT_FALSE(taken);
  EXPECT_FALSE(channel_.readable());
}

TEST_F(RdmaCmNodeTest, DestroyingAListenerRejectsUnreadRequests) {
  const uint32_t listener = listening_id();
  const auto seen = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  const auto unseen = request();
  EXPECT_EQ(channel_.destroy(listener), 1);
  EXPECT_EQ(unseen->end, End::kRejected);
  EXPECT_EQ(seen->end, End::kNone);
  EXPECT_FALSE(channel_.readable());
  EXPECT_EQ(channel_.accept(event.id, 5), 0);
}

TEST_F(RdmaCmNodeTest, DestroyEndsTheConnectionAsItsStateAsks) {
  uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->end, End::kAborted);
  // Requests that completed must reach the peer, so the connection is not reset.
  id = established_id();
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  id = established_id();
  channel_.disconnect(id);
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->end, End::kDisconnected);
  EXPECT_EQ(owner(), nullptr);
}

TEST_F(RdmaCmNodeTest, ClosingTheChannelDestroysItsIds) {
  auto other = std::make_unique<Channel>(ids_, transport_);
  const uint32_t id = other->create();
  EXPECT_EQ(other->bind(id, 0), 0);
  EXPECT_EQ(other->listen(id), 0);
  other.reset();
  EXPECT_TRUE(transport_.listener->closed);
  EXPECT_EQ(channel_.destroy(id), -ENOENT);
}

TEST_F(RdmaCmNodeTest, IdsAreReusedLate) {
  const uint32_t first = channel_.create();
  channel_.destroy(first);
  EXPECT_NE(channel_.create(), first);
}

TEST_F(RdmaCmNodeTest, IdsRunOutCleanly) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < CmIdTable::kMaxNumber; ++i) ids.push_back(channel_.create());
  EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), CmIdTable::kMaxNumber);
  rdma_ucm_create_id_resp response{};
  const rdma_ucm_create_id create{1, address_of(response), RDMA_PS_TCP, 2, {}};
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, create, sizeof response), ENOMEM);
  channel_.destroy(ids[1000]);
  EXPECT_EQ(channel_.create(), ids[1000]);
}

TEST_F(RdmaCmNodeTest, Options) {
  const uint32_t id = channel_.create();
  const auto set = [&](uint32_t level, uint32_t name, const void* value, uint32_t length) {
    return channel_.command(
        RDMA_USER_CM_CMD_SET_OPTION,
        rdma_ucm_set_option{reinterpret_cast<uint64_t>(value), id, level, name, length});
  };
  const uint8_t tos = 0x20;
  const int on = 1;
  EXPECT_EQ(set(0, RDMA_OPTION_ID_TOS, &tos, 1), 0);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_TOS, &on, 4), EINVAL);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_REUSEADDR, &on, 4), 0);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_AFONLY, &on, 4), 0);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_ACK_TIMEOUT, &tos, 1), 0);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_TOS, nullptr, 1), EFAULT);
  EXPECT_EQ(set(0, 9, &on, 4), ENOSYS);
  EXPECT_EQ(set(1, RDMA_OPTION_IB_PATH, &on, 4), EINVAL);
  EXPECT_EQ(set(0, 0, &on, 0xffffffff), EINVAL);
  ASSERT_EQ(channel_.bind(id, 0), 0);
  EXPECT_EQ(transport_.last_options.tos, 0x20);
  EXPECT_EQ(transport_.last_options.v6_only, true);
  EXPECT_FALSE(transport_.last_options.datagram);
}

// The option applies to a socket from its bind on, so the port is bound again.
TEST_F(RdmaCmNodeTest, AfOnlyAfterBindBindsThePortAgain) {
  const auto set = [&](uint32_t id, int on) {
    return channel_.command(RDMA_USER_CM_CMD_SET_OPTION,
                            rdma_ucm_set_option{reinterpret_cast<uint64_t>(&on), id, RDMA_OPTION_ID,
                                                RDMA_OPTION_ID_AFONLY, sizeof on});
  };
  const uint32_t id = channel_.create();
  rdma_ucm_bind bind{};
  bind.id = id;
  bind.addr.ss_family = AF_INET6;
  bind.addr_size = sizeof(sockaddr_in6);
  ASSERT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND, bind), 0);
  EXPECT_EQ(transport_.last_options.v6_only, std::nullopt);
  ASSERT_EQ(set(id, 1), 0);
  EXPECT_EQ(transport_.last_options.v6_only, true);
  EXPECT_EQ(ntohs(channel_.query_route(id).src_addr.sin6_port), 40000);
  // Another socket has taken the port in between; listening tries again.
  transport_.bind_error = EADDRINUSE;
  EXPECT_EQ(set(id, 0), EADDRINUSE);
  EXPECT_EQ(channel_.listen(id), EADDRINUSE);
  transport_.bind_error = 0;
  EXPECT_EQ(channel_.listen(id), 0);
  EXPECT_EQ(transport_.last_options.v6_only, false);
  EXPECT_EQ(set(id, 1), EINVAL);
}

TEST_F(RdmaCmNodeTest, DatagramsAreNotForIwarp) {
  const uint32_t id = channel_.create(1, RDMA_PS_UDP);
  EXPECT_EQ(channel_.listen(id), EOPNOTSUPP);
  EXPECT_EQ(channel_.bind(id, 7174), 0);
  EXPECT_TRUE(transport_.last_options.datagram);
  channel_.usual_port_space = RDMA_PS_UDP;
  EXPECT_EQ(channel_.connect(resolved_id()), EOPNOTSUPP);
}

}  // namespace
}  // namespace uwarp
