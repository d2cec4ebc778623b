// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An rdma_cm channel for tests: commands as librdmacm writes them, over the fake transport.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel-abi/rdma_cm_abi.h"
#include "rdma_cm/cm_id.h"
#include "rdma_cm/rdma_cm_node.h"
#include "unit/rdma_cm/fake_transport.h"

namespace uwarp {

template <typename Payload>
struct Written {
  rdma_ucm_cmd_hdr header;
  Payload payload;
} __attribute__((packed));

template <typename T>
uint64_t address_of(T& response) {
  return reinterpret_cast<uint64_t>(&response);
}

inline sockaddr_in6 loopback_in6(uint16_t port) {
  sockaddr_storage storage;
  IpAddress::from_string("127.0.0.1")->to_sockaddr(storage, port);
  sockaddr_in6 out{};
  memcpy(&out, &storage, sizeof(sockaddr_in));
  return out;
}

/// One channel with its eventfd.
class Channel {
 public:
  Channel(CmIdTable& ids, CmTransport& transport, Persona persona = Persona::kIwarp)
      : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        node_(std::make_shared<RdmaCmNode>(ids, transport, dup(fd_), persona)) {}
  ~Channel() {
    node_->last_closed();
    ::close(fd_);
  }

  template <typename Payload>
  int command(uint32_t code, const Payload& payload, size_t out = 0) {
    Written<Payload> written{{code, sizeof(Payload), static_cast<uint16_t>(out)}, payload};
    errno = 0;
    const ssize_t result = node_->write(&written, sizeof written, find);
    if (result < 0) return errno;
    EXPECT_EQ(result, static_cast<ssize_t>(sizeof written));
    return 0;
  }

  uint16_t usual_port_space = RDMA_PS_TCP;
  uint32_t create(uint64_t uid = 1) { return create(uid, usual_port_space); }
  /// The queue pair type (RC) matters only in port space IB.
  uint32_t create(uint64_t uid, uint16_t port_space, uint8_t qp_type = 2) {
    rdma_ucm_create_id_resp response{};
    EXPECT_EQ(command(RDMA_USER_CM_CMD_CREATE_ID,
                      rdma_ucm_create_id{uid, address_of(response), port_space, qp_type, {}},
                      sizeof response),
              0);
    return response.id;
  }
  /// The number of events reported, or a negative errno.
  int destroy(uint32_t id) {
    rdma_ucm_destroy_id_resp response{};
    const int error = command(RDMA_USER_CM_CMD_DESTROY_ID,
                              rdma_ucm_destroy_id{address_of(response), id, 0}, sizeof response);
    return error != 0 ? -error : static_cast<int>(response.events_reported);
  }
  int bind(uint32_t id, uint16_t port) {
    rdma_ucm_bind_ip payload{};
    payload.addr = loopback_in6(port);
    payload.id = id;
    return command(RDMA_USER_CM_CMD_BIND_IP, payload);
  }
  int listen(uint32_t id, uint32_t backlog = 0) {
    return command(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, backlog});
  }
  int resolve(uint32_t id, uint16_t port = 7174) {
    rdma_ucm_resolve_ip payload{};
    payload.dst_addr = loopback_in6(port);
    payload.id = id;
    payload.timeout_ms = 2000;
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
  int accept(uint32_t id, uint64_t uid, const std::string& private_data = "yes",
             uint32_t qkey = 0) {
    rdma_ucm_accept payload{};
    payload.uid = uid;
    payload.conn_param = parameters(private_data);
    payload.conn_param.qkey = qkey;
    payload.id = id;
    return command(RDMA_USER_CM_CMD_ACCEPT, payload);
  }
  int reject(uint32_t id, const std::string& private_data = "") {
    rdma_ucm_reject payload{};
    payload.id = id;
    payload.private_data_len = static_cast<uint8_t>(private_data.size());
    memcpy(payload.private_data, private_data.data(), private_data.size());
    return command(RDMA_USER_CM_CMD_REJECT, payload);
  }
  int disconnect(uint32_t id) {
    return command(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id});
  }
  int write_event(uint32_t id, uint32_t event, uint32_t status = 0, uint64_t argument = 0) {
    return command(rdma_cm_abi::kWriteCmEvent,
                   rdma_cm_abi::WriteCmEvent{id, 0, event, status, argument});
  }
  /// 0 with the event, or an errno.
  int event(rdma_ucm_event_resp& out, size_t room = sizeof out) {
    return command(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{address_of(out)}, room);
  }
  /// event() blocks from now on.
  void block() { fcntl(fd_, F_SETFL, 0); }
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

  /// The nodes that MIGRATE_ID finds by fd.
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
  kAddressError = 1,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kTimewaitExit = 15,
  kUser = 18,
  kInternal = 19,
};

class RdmaCmNodeTest : public ::testing::Test {
 protected:
  using End = FakeConnection::End;

  void SetUp() override { Channel::known.clear(); }
  void TearDown() override { Channel::known.clear(); }

  /// An id whose route is resolved and whose events are read.
  uint32_t resolved_id() {
    const uint32_t id = channel_.create();
    EXPECT_EQ(channel_.resolve(id), 0);
    EXPECT_EQ(channel_.next_event(), kAddressResolved);
    EXPECT_EQ(channel_.resolve_route(id), 0);
    EXPECT_EQ(channel_.next_event(), kRouteResolved);
    return id;
  }
  /// An id whose connect the peer has answered; the event is not read.
  uint32_t answered_id() {
    const uint32_t id = resolved_id();
    EXPECT_EQ(channel_.connect(id), 0);
    owner()->connection_established({}, {}, {});
    return id;
  }
  uint32_t established_id() {
    const uint32_t id = answered_id();
    EXPECT_EQ(channel_.next_event(), kEstablished);
    return id;
  }
  uint32_t listening_id(uint32_t backlog = 0) {
    const uint32_t id = channel_.create(77);
    EXPECT_EQ(channel_.bind(id, 0), 0);
    EXPECT_EQ(channel_.listen(id, backlog), 0);
    return id;
  }
  std::shared_ptr<ConnectionOwner> owner() { return transport_.connection->owner.lock(); }

  /// A peer's request arrives at the listener.
  std::shared_ptr<FakeConnection> request(bool* taken = nullptr, const char* to = "127.0.0.1") {
    auto connection = std::make_shared<FakeConnection>();
    IpAddress::from_string(to)->to_sockaddr(connection->local, 7174);
    IpAddress::from_string("127.0.0.1")->to_sockaddr(connection->remote, 55555);
    connection->request.responder_resources = 300;
    connection->request.initiator_depth = 3;
    connection->request.private_data = {std::byte{'h'}, std::byte{'i'}};
    const bool result = transport_.listener->request(connection);
    if (taken != nullptr) *taken = result;
    return connection;
  }

  explicit RdmaCmNodeTest(Persona persona = Persona::kIwarp)
      : channel_(ids_, transport_, persona) {}

  CmIdTable ids_;
  FakeTransport transport_;
  Channel channel_;
};

}  // namespace uwarp
