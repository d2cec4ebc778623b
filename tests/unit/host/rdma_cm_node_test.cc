// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The rdma_cm commands byte by byte as librdmacm writes them, on a made-up transport: results,
// events with their accounting, readiness of the fd, and wrong input.
#include "host/rdma_cm_node.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "host/cm_id.h"
#include "host/rdma_cm_query.h"
#include "unit/host/fake_transport.h"

namespace uwarp {
namespace {

template <typename Payload>
struct Written {
  rdma_ucm_cmd_hdr header;
  Payload payload;
} __attribute__((packed));

template <typename T>
uint64_t address_of(T& response) {
  return reinterpret_cast<uint64_t>(&response);
}

sockaddr_in6 loopback_address(uint16_t port) {
  sockaddr_storage storage;
  IpAddress::from_string("127.0.0.1")->to_sockaddr(storage, port);
  sockaddr_in6 out{};
  memcpy(&out, &storage, sizeof(sockaddr_in));
  return out;
}

/// One channel with its eventfd.
class Channel {
 public:
  Channel(CmIdTable& ids, CmTransport& transport)
      : fd_(eventfd(0, EFD_CLOEXEC)),
        node_(std::make_shared<RdmaCmNode>(ids, transport, dup(fd_))) {}
  ~Channel() {
    node_->close();
    ::close(fd_);
  }

  template <typename Payload>
  int command(uint32_t code, const Payload& payload, size_t out = 0, bool may_block = false) {
    Written<Payload> written{{code, sizeof(Payload), static_cast<uint16_t>(out)}, payload};
    errno = 0;
    const ssize_t result = node_->write(&written, sizeof written, may_block, find);
    if (result < 0) return errno;
    EXPECT_EQ(result, static_cast<ssize_t>(sizeof written));
    return 0;
  }

  uint32_t create(uint64_t uid = 1, uint16_t port_space = RDMA_PS_TCP) {
    rdma_ucm_create_id_resp response{};
    EXPECT_EQ(
        command(RDMA_USER_CM_CMD_CREATE_ID,
                rdma_ucm_create_id{uid, address_of(response), port_space, 2, {}}, sizeof response),
        0);
    return response.id;
  }
  /// Events reported, or a negative errno.
  int destroy(uint32_t id) {
    rdma_ucm_destroy_id_resp response{};
    const int error = command(RDMA_USER_CM_CMD_DESTROY_ID,
                              rdma_ucm_destroy_id{address_of(response), id, 0}, sizeof response);
    return error != 0 ? -error : static_cast<int>(response.events_reported);
  }
  int bind(uint32_t id, uint16_t port) {
    rdma_ucm_bind_ip payload{};
    payload.addr = loopback_address(port);
    payload.id = id;
    return command(RDMA_USER_CM_CMD_BIND_IP, payload);
  }
  int listen(uint32_t id, uint32_t backlog = 0) {
    return command(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, backlog});
  }
  int resolve(uint32_t id, uint16_t port = 7174) {
    rdma_ucm_resolve_ip payload{};
    payload.dst_addr = loopback_address(port);
    payload.id = id;
    return command(RDMA_USER_CM_CMD_RESOLVE_IP, payload);
  }
  int resolve_route(uint32_t id) {
    return command(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 2000});
  }
  int connect(uint32_t id, const std::string& private_data = "") {
    rdma_ucm_connect payload{};
    payload.conn_param = parameters(private_data);
    payload.id = id;
    return command(RDMA_USER_CM_CMD_CONNECT, payload);
  }
  int accept(uint32_t id, uint64_t uid) {
    rdma_ucm_accept payload{};
    payload.uid = uid;
    payload.conn_param = parameters("yes");
    payload.id = id;
    return command(RDMA_USER_CM_CMD_ACCEPT, payload);
  }
  int disconnect(uint32_t id) {
    return command(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id});
  }
  /// An errno, 0 with the event.
  int event(rdma_ucm_event_resp& out, bool may_block = false, size_t room = sizeof out) {
    return command(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{address_of(out)}, room,
                   may_block);
  }
  /// The type of the next event, -1 if there is none.
  int next_event() {
    rdma_ucm_event_resp out{};
    return event(out) == 0 ? static_cast<int>(out.event) : -1;
  }
  rdma_ucm_query_route_resp query_route(uint32_t id) {
    rdma_ucm_query_route_resp out{};
    EXPECT_EQ(
        command(RDMA_USER_CM_CMD_QUERY_ROUTE, rdma_ucm_query{address_of(out), id, 0}, sizeof out),
        0);
    return out;
  }
  bool readable() const {
    pollfd wait{fd_, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }
  int fd() const { return fd_; }
  const std::shared_ptr<RdmaCmNode>& node() const { return node_; }

  /// What MIGRATE_ID finds by fd.
  static inline std::vector<std::pair<int, std::shared_ptr<RdmaCmNode>>> known;

 private:
  static rdma_ucm_conn_param parameters(const std::string& private_data) {
    rdma_ucm_conn_param out{};
    out.qp_num = 0x123456;
    memcpy(out.private_data, private_data.data(), private_data.size());
    out.private_data_len = static_cast<uint8_t>(private_data.size());
    out.responder_resources = 4;
    out.initiator_depth = 5;
    out.valid = 1;
    return out;
  }
  static std::shared_ptr<RdmaCmNode> find(int fd) {
    for (const auto& [known_fd, node] : known) {
      if (known_fd == fd) return node;
    }
    return nullptr;
  }

  const int fd_;
  const std::shared_ptr<RdmaCmNode> node_;
};

enum Event : int {
  kNone = -1,
  kAddressResolved = 0,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
};

class RdmaCmNodeTest : public ::testing::Test {
 protected:
  void SetUp() override { Channel::known.clear(); }
  void TearDown() override { Channel::known.clear(); }

  /// An id with the route resolved and the events read.
  uint32_t resolved_id() {
    const uint32_t id = channel_.create();
    EXPECT_EQ(channel_.resolve(id), 0);
    EXPECT_EQ(channel_.next_event(), kAddressResolved);
    EXPECT_EQ(channel_.resolve_route(id), 0);
    EXPECT_EQ(channel_.next_event(), kRouteResolved);
    return id;
  }
  uint32_t established_id() {
    const uint32_t id = resolved_id();
    EXPECT_EQ(channel_.connect(id), 0);
    owner()->connection_established({}, {});
    EXPECT_EQ(channel_.next_event(), kEstablished);
    return id;
  }
  uint32_t listening_id(uint32_t backlog = 0) {
    const uint32_t id = channel_.create(77);
    EXPECT_EQ(channel_.bind(id, 0), 0);
    EXPECT_EQ(channel_.listen(id, backlog), 0);
    return id;
  }
  std::shared_ptr<CmConnectionOwner> owner() { return transport_.connection->owner.lock(); }

  /// A peer's request arrives at the listener.
  std::shared_ptr<FakeConnection> request(bool* taken = nullptr) {
    auto connection = std::make_shared<FakeConnection>();
    IpAddress::from_string("127.0.0.1")->to_sockaddr(connection->local, 7174);
    IpAddress::from_string("127.0.0.1")->to_sockaddr(connection->remote, 55555);
    connection->request.responder_resources = 300;
    connection->request.initiator_depth = 3;
    connection->request.private_data = {std::byte{'h'}, std::byte{'i'}};
    const bool result = transport_.listener->owner.lock()->connection_requested(connection);
    if (taken != nullptr) *taken = result;
    return connection;
  }

  CmIdTable ids_;
  FakeTransport transport_;
  Channel channel_{ids_, transport_};
};

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
  EXPECT_EQ(transport_.last_connect.qp_number, 0x123456u);
  EXPECT_EQ(transport_.last_connect.parameters.responder_resources, 4);
  EXPECT_EQ(transport_.last_connect.parameters.initiator_depth, 5);
  EXPECT_EQ(transport_.last_connect.parameters.private_data.size(), 5u);
  EXPECT_EQ(port_of(transport_.last_connect.remote), 7174);
  // No wish for a source, so the kernel is left to choose port and address.
  EXPECT_EQ(transport_.last_connect.local.ss_family, AF_UNSPEC);
  EXPECT_EQ(channel_.next_event(), kNone);
  ConnectParameters peer;
  peer.responder_resources = 2;
  peer.private_data.assign(255, std::byte{0x5a});
  sockaddr_storage local;
  IpAddress::from_string("127.0.0.1")->to_sockaddr(local, 33333);
  owner()->connection_established(local, peer);
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kEstablished);
  EXPECT_EQ(event.param.conn.private_data_len, 255);
  EXPECT_EQ(event.param.conn.private_data[254], 0x5a);
  EXPECT_EQ(event.param.conn.responder_resources, 2);
  EXPECT_EQ(ntohs(channel_.query_route(id).src_addr.sin6_port), 33333);
  ASSERT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(channel_.disconnect(id), 0);
  EXPECT_EQ(transport_.connection->calls, std::vector<std::string>{"disconnect"});
  owner()->connection_ended();
  owner()->connection_ended();
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
  // No family.
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_BIND_IP, payload), EINVAL);
  // Not ours (RFC 5737).
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
  rdma_ucm_resolve_addr resolve{};
  resolve.id = id;
  const sockaddr_in6 to = loopback_address(7174);
  memcpy(&resolve.dst_addr, &to, sizeof(sockaddr_in));
  resolve.dst_size = sizeof(sockaddr_in);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_RESOLVE_ADDR, resolve), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
}

TEST_F(RdmaCmNodeTest, QueryTellsTheDeviceOnlyWhenThereIsOne) {
  const uint32_t wildcard = channel_.create();
  EXPECT_EQ(channel_.listen(wildcard), 0);
  auto answer = channel_.query_route(wildcard);
  EXPECT_EQ(answer.node_guid, 0u);
  EXPECT_EQ(answer.port_num, 0);
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
    owner()->connection_failed(expected.status);
    rdma_ucm_event_resp event{};
    ASSERT_EQ(channel_.event(event), 0);
    EXPECT_EQ(static_cast<int>(event.event), expected.event);
    EXPECT_EQ(static_cast<int>(event.status), expected.status);
    EXPECT_EQ(channel_.destroy(id), 3);
  }
  const uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  const std::byte reason[] = {std::byte{1}, std::byte{2}};
  owner()->connection_rejected(-ECONNREFUSED, reason);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kRejected);
  EXPECT_EQ(event.param.conn.private_data_len, 2);
  EXPECT_EQ(event.param.conn.private_data[1], 2);
  EXPECT_EQ(channel_.disconnect(id), EINVAL);
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
    connection.owner.lock()->connection_established({}, {});
    connection.owner.lock()->connection_ended();
  };
  ASSERT_EQ(channel_.connect(id), 0);
  EXPECT_EQ(channel_.next_event(), kEstablished);
  EXPECT_EQ(channel_.next_event(), kDisconnected);
  EXPECT_EQ(channel_.destroy(id), 4);
}

TEST_F(RdmaCmNodeTest, PassiveSide) {
  const uint32_t listener = listening_id();
  const auto connection = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kConnectRequest);
  // The event is the listener's and names the new id.
  EXPECT_EQ(event.uid, 77u);
  const uint32_t id = event.id;
  EXPECT_NE(id, listener);
  EXPECT_EQ(event.param.conn.private_data_len, 2);
  // Depths are cut to what the library can echo.
  EXPECT_EQ(event.param.conn.responder_resources, 128);
  EXPECT_EQ(event.param.conn.initiator_depth, 3);
  const auto answer = channel_.query_route(id);
  EXPECT_NE(answer.node_guid, 0u);
  EXPECT_EQ(ntohs(answer.dst_addr.sin6_port), 55555);
  ASSERT_EQ(channel_.accept(id, 88), 0);
  EXPECT_EQ(connection->calls, std::vector<std::string>{"accept 1193046"});
  connection->owner.lock()->connection_established({}, {});
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, kEstablished);
  EXPECT_EQ(event.uid, 88u);
  EXPECT_EQ(event.id, id);
  connection->owner.lock()->connection_ended();
  // Not delivered, so not counted; CONNECT_REQUEST counts for the listener.
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
  // A wrong queue pair may be put right.
  connection->accept_result = EINVAL;
  EXPECT_EQ(channel_.accept(event.id, 1), EINVAL);
  // A peer that has gone may not.
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
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, reject), 0);
  ASSERT_EQ(connection->given.private_data.size(), 255u);
  EXPECT_EQ(connection->given.private_data[254], std::byte{7});
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_REJECT, reject), EINVAL);
  EXPECT_EQ(channel_.destroy(event.id), 0);
  EXPECT_EQ(connection->calls, std::vector<std::string>{"reject"});
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

TEST_F(RdmaCmNodeTest, DestroyingAListenerRejectsWhatNobodyHasSeen) {
  const uint32_t listener = listening_id();
  const auto seen = request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  const auto unseen = request();
  EXPECT_EQ(channel_.destroy(listener), 1);
  EXPECT_EQ(unseen->calls, std::vector<std::string>{"reject"});
  EXPECT_TRUE(seen->calls.empty());
  EXPECT_FALSE(channel_.readable());
  EXPECT_EQ(channel_.accept(event.id, 5), 0);
}

TEST_F(RdmaCmNodeTest, DestroyEndsTheConnectionAsItsStateAsks) {
  uint32_t id = resolved_id();
  ASSERT_EQ(channel_.connect(id), 0);
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->calls, std::vector<std::string>{"abort"});
  // What was completed must reach the peer.
  id = established_id();
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->calls, std::vector<std::string>{"disconnect"});
  id = established_id();
  channel_.disconnect(id);
  channel_.destroy(id);
  EXPECT_EQ(transport_.connection->calls, std::vector<std::string>{"disconnect"});
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

TEST_F(RdmaCmNodeTest, MigrationTakesUndeliveredEventsAlong) {
  Channel other(ids_, transport_);
  Channel::known = {{channel_.fd(), channel_.node()}, {other.fd(), other.node()}};
  const uint32_t id = channel_.create();
  ASSERT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  ASSERT_EQ(channel_.resolve_route(id), 0);
  rdma_ucm_migrate_resp response{};
  const auto migrate = [&](Channel& to, int from_fd, uint32_t number) {
    return to.command(
        RDMA_USER_CM_CMD_MIGRATE_ID,
        rdma_ucm_migrate_id{address_of(response), number, static_cast<uint32_t>(from_fd)},
        sizeof response);
  };
  EXPECT_EQ(migrate(other, 9999, id), EINVAL);
  EXPECT_EQ(migrate(other, channel_.fd(), 60000), ENOENT);
  EXPECT_EQ(migrate(other, other.fd(), id), EINVAL);
  ASSERT_EQ(migrate(other, channel_.fd(), id), 0);
  EXPECT_EQ(response.events_reported, 1u);
  EXPECT_FALSE(channel_.readable());
  EXPECT_TRUE(other.readable());
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(other.next_event(), kRouteResolved);
  EXPECT_EQ(channel_.destroy(id), -EINVAL);
  EXPECT_EQ(other.destroy(id), 2);
}

TEST_F(RdmaCmNodeTest, MigratingANewRequestReportsNoEvents) {
  Channel other(ids_, transport_);
  Channel::known = {{channel_.fd(), channel_.node()}};
  listening_id();
  request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  rdma_ucm_migrate_resp response{99};
  ASSERT_EQ(other.command(RDMA_USER_CM_CMD_MIGRATE_ID,
                          rdma_ucm_migrate_id{address_of(response), event.id,
                                              static_cast<uint32_t>(channel_.fd())},
                          sizeof response),
            0);
  EXPECT_EQ(response.events_reported, 0u);
  EXPECT_EQ(other.accept(event.id, 4), 0);
}

TEST_F(RdmaCmNodeTest, ReadinessFollowsTheQueue) {
  const uint32_t first = channel_.create();
  const uint32_t second = channel_.create();
  channel_.resolve(first);
  channel_.resolve(second);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_TRUE(channel_.readable());
  // Purged, not read.
  EXPECT_EQ(channel_.destroy(second), 0);
  EXPECT_FALSE(channel_.readable());
  EXPECT_EQ(channel_.next_event(), kNone);
}

TEST_F(RdmaCmNodeTest, GetEventBlocksUntilThereIsOne) {
  const uint32_t id = channel_.create();
  std::atomic<bool> done{false};
  std::thread reader([&] {
    rdma_ucm_event_resp event{};
    EXPECT_EQ(channel_.event(event, true), 0);
    EXPECT_EQ(event.event, kAddressResolved);
    done = true;
  });
  usleep(20'000);
  EXPECT_FALSE(done);
  channel_.resolve(id);
  reader.join();
  EXPECT_FALSE(channel_.readable());
}

void* block_in_get_event(void* channel) {
  rdma_ucm_event_resp event{};
  static_cast<Channel*>(channel)->event(event, true);
  return nullptr;
}

TEST_F(RdmaCmNodeTest, AThreadInGetEventCanBeCancelled) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan takes the stack of a cancelled thread for poisoned";
#endif
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, block_in_get_event, &channel_), 0);
  usleep(20'000);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  // Nothing was lost with it.
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
}

TEST_F(RdmaCmNodeTest, ManyReadersGetEachEventOnce) {
  constexpr int kIds = 200;
  std::atomic<int> got{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (int n = 0; n < kIds / 4; ++n) {
        rdma_ucm_event_resp event{};
        if (channel_.event(event, true) == 0) ++got;
      }
    });
  }
  std::vector<uint32_t> ids;
  for (int i = 0; i < kIds; ++i) {
    ids.push_back(channel_.create());
    channel_.resolve(ids.back());
  }
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(got, kIds);
  EXPECT_FALSE(channel_.readable());
  for (const uint32_t id : ids) EXPECT_EQ(channel_.destroy(id), 1);
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
  EXPECT_TRUE(transport_.last_options.v6_only);
  EXPECT_EQ(set(0, RDMA_OPTION_ID_AFONLY, &on, 4), EINVAL);
}

TEST_F(RdmaCmNodeTest, DatagramPortSpacesCannotConnect) {
  const uint32_t id = channel_.create(1, RDMA_PS_UDP);
  EXPECT_EQ(channel_.listen(id), EOPNOTSUPP);
}

TEST_F(RdmaCmNodeTest, FormatErrors) {
  const auto write = [&](const void* bytes, size_t length) {
    errno = 0;
    return channel_.node()->write(bytes, length, false, nullptr) < 0 ? errno : 0;
  };
  const uint32_t id = channel_.create();
  Written<rdma_ucm_disconnect> command{{RDMA_USER_CM_CMD_DISCONNECT, 4, 0}, {id}};
  EXPECT_EQ(write(&command, 0), EINVAL);
  EXPECT_EQ(write(&command, 7), EINVAL);
  // More is announced than was written.
  EXPECT_EQ(write(&command, 11), EINVAL);
  EXPECT_EQ(write(nullptr, 12), EFAULT);
  EXPECT_EQ(write(reinterpret_cast<void*>(8), 12), EFAULT);
  for (const uint32_t unknown : {13u, 23u, 24u, 0xffffffffu}) {
    command.header.cmd = unknown;
    EXPECT_EQ(write(&command, sizeof command), ENOSYS);
  }
  // No room for the answer, or nowhere to put it.
  const uint32_t before = channel_.create();
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}, 3), ENOSPC);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}, 4), EFAULT);
  EXPECT_EQ(channel_.create(), before + 2);
}

TEST_F(RdmaCmNodeTest, AnEventThatCannotBeDeliveredStays) {
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{8},
                             sizeof(rdma_ucm_event_resp)),
            EFAULT);
  EXPECT_TRUE(channel_.readable());
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_EQ(channel_.destroy(id), 1);
}

TEST_F(RdmaCmNodeTest, OlderApplicationsHaveShorterStructures) {
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  // Before ECE an event ended with its union.
  struct {
    rdma_ucm_event_resp event;
    uint64_t guard = 0x1122334455667788;
  } room{};
  constexpr size_t kOldSize = offsetof(rdma_ucm_event_resp, reserved);
  memset(reinterpret_cast<char*>(&room) + kOldSize, 0x77, sizeof room.event - kOldSize);
  EXPECT_EQ(channel_.event(room.event, false, kOldSize - 1), ENOSPC);
  EXPECT_EQ(channel_.event(room.event, false, kOldSize), 0);
  EXPECT_EQ(room.event.reserved, 0x77777777u);
  channel_.resolve_route(id);
  // CONNECT without its ECE tail.
  EXPECT_EQ(channel_.next_event(), kRouteResolved);
  struct OldConnect {
    rdma_ucm_conn_param param;
    uint32_t id, reserved;
  } old{};
  old.id = id;
  old.param.valid = 1;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CONNECT, old), 0);
}

TEST_F(RdmaCmNodeTest, RandomCommandsDoNoHarm) {
  std::mt19937 random(20240501);
  std::vector<char> bytes(600);
  std::vector<char> answer(1024);
  for (int round = 0; round < 20000; ++round) {
    for (char& byte : bytes) byte = static_cast<char>(random());
    const rdma_ucm_cmd_hdr header{static_cast<uint32_t>(random() % 24),
                                  static_cast<uint16_t>(random() % 320),
                                  static_cast<uint16_t>(random() % 512)};
    memcpy(bytes.data(), &header, sizeof header);
    // Responses go to a place that exists; ids are small, so that some exist.
    const uint64_t where = address_of(answer[0]);
    for (const size_t offset : {8u, 16u}) {
      if (random() % 2) memcpy(&bytes[offset], &where, sizeof where);
    }
    for (const size_t offset : {8u, 16u, 44u, 64u, 280u, 288u}) {
      const auto id = static_cast<uint32_t>(random() % 8);
      if (random() % 2) memcpy(&bytes[offset], &id, sizeof id);
    }
    // SET_OPTION reads where the command says.
    if (header.cmd == RDMA_USER_CM_CMD_SET_OPTION) memcpy(&bytes[8], &where, sizeof where);
    channel_.node()->write(bytes.data(), random() % bytes.size(), false,
                           [](int) { return std::shared_ptr<RdmaCmNode>(); });
  }
}

}  // namespace
}  // namespace uwarp
