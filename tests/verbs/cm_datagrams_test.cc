// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma_cm ids of datagrams as an application sees them: both ends in this process, over real
// sockets, without queue pairs. Plain librdmacm; nothing of uwarp.
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "verbs/cm_ends.h"

namespace {

/// The contents of an event of a datagram id.
struct Told {
  int status = 0;
  uint32_t qp_number = 0;
  uint32_t qkey = 0;
  ibv_ah_attr address = {};
  std::string data;
};

class CmDatagramsTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (!roce()) GTEST_SKIP() << "iWARP has none";
  }

  static CmId make_id(rdma_event_channel* channel, rdma_port_space space = RDMA_PS_UDP) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(channel, &id, nullptr, space), 0);
    return {id, destroy_cm_id};
  }
  static rdma_cm_id* expect(rdma_event_channel* channel, rdma_cm_event_type type,
                            Told* told = nullptr) {
    if (!readable(channel->fd)) {
      ADD_FAILURE() << rdma_event_str(type) << " does not come";
      return nullptr;
    }
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel, &event), 0) << std::strerror(errno);
    if (event == nullptr) return nullptr;
    EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(type));
    rdma_cm_id* id = event->id;
    if (told != nullptr) {
      const rdma_ud_param& ud = event->param.ud;
      *told = {event->status,
               ud.qp_num,
               ud.qkey,
               ud.ah_attr,
               {static_cast<const char*>(ud.private_data), ud.private_data_len}};
    }
    rdma_ack_cm_event(event);
    return id;
  }
  /// Listens on this address and any port. Returns the port.
  uint16_t listen(const std::string& address, int backlog = 4) {
    listener_ = make_id(channel_.get());
    sockaddr_storage at = cm_address(address);
    EXPECT_EQ(rdma_bind_addr(listener_.get(), generic(at)), 0) << std::strerror(errno);
    EXPECT_EQ(rdma_listen(listener_.get(), backlog), 0) << std::strerror(errno);
    return ntohs(rdma_get_src_port(listener_.get()));
  }
  void resolve(rdma_cm_id* id, const std::string& address, uint16_t port) {
    sockaddr_storage to = cm_address(address, port);
    ASSERT_EQ(rdma_resolve_addr(id, nullptr, generic(to), 2000), 0) << std::strerror(errno);
    ASSERT_EQ(expect(id->channel, RDMA_CM_EVENT_ADDR_RESOLVED), id);
    ASSERT_EQ(rdma_resolve_route(id, 2000), 0);
    ASSERT_EQ(expect(id->channel, RDMA_CM_EVENT_ROUTE_RESOLVED), id);
  }
  static int connect(rdma_cm_id* id, const std::string& data) {
    rdma_conn_param parameters = {};
    parameters.private_data = data.data();
    parameters.private_data_len = static_cast<uint8_t>(data.size());
    return rdma_connect(id, &parameters);
  }
  static int accept(rdma_cm_id* id, uint32_t qp_number, const std::string& data) {
    rdma_conn_param parameters = {};
    parameters.qp_num = qp_number;
    parameters.private_data = data.data();
    parameters.private_data_len = static_cast<uint8_t>(data.size());
    return rdma_accept(id, &parameters);
  }

  CmChannel channel_ = make_cm_channel();  // of the server
  CmChannel clients_ = make_cm_channel();
  CmId listener_{nullptr, destroy_cm_id};
};

TEST_F(CmDatagramsTest, AQuestionAndItsAnswer) {
  for (const std::string address : {"127.0.0.1", "::1"}) {
    const uint16_t port = listen(address);
    const CmId client = make_id(clients_.get());
    resolve(client.get(), address, port);
    ASSERT_EQ(connect(client.get(), "who is there"), 0) << std::strerror(errno);
    Told request;
    const CmId server(expect(channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST, &request),
                      destroy_cm_id);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(request.data, "who is there");
    EXPECT_EQ(text_of(rdma_get_local_addr(server.get())), address);
    EXPECT_EQ(text_of(rdma_get_peer_addr(server.get())), address);
    EXPECT_EQ(rdma_get_dst_port(server.get()), rdma_get_src_port(client.get()));
    EXPECT_EQ(rdma_get_src_port(server.get()), htons(port));
    ASSERT_EQ(accept(server.get(), 0x123456, "me"), 0) << std::strerror(errno);
    Told answer;
    ASSERT_EQ(expect(clients_.get(), RDMA_CM_EVENT_ESTABLISHED, &answer), client.get());
    EXPECT_EQ(answer.data, "me");
    EXPECT_EQ(answer.qp_number, 0x123456u);
    EXPECT_EQ(answer.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
    EXPECT_EQ(answer.address.is_global, 1);
    EXPECT_EQ(answer.address.port_num, 1);
    ibv_gid own;
    ASSERT_EQ(ibv_query_gid(client->verbs, 1, answer.address.grh.sgid_index, &own), 0);
    EXPECT_EQ(std::memcmp(&own, &answer.address.grh.dgid, sizeof own), 0) << "the same host";
  }
}

TEST_F(CmDatagramsTest, ANoComesAsUnreachable) {
  const uint16_t port = listen("127.0.0.1");
  const CmId client = make_id(clients_.get());
  resolve(client.get(), "127.0.0.1", port);
  ASSERT_EQ(connect(client.get(), ""), 0);
  const CmId server(expect(channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST), destroy_cm_id);
  ASSERT_EQ(rdma_reject(server.get(), "busy", 4), 0);
  Told answer;
  ASSERT_EQ(expect(clients_.get(), RDMA_CM_EVENT_UNREACHABLE, &answer), client.get());
  EXPECT_EQ(answer.status, 2) << "IB_SIDR_REJECT";
  EXPECT_EQ(answer.data, "busy");
}

TEST_F(CmDatagramsTest, NoServerListens) {
  const uint16_t port = listen("127.0.0.1");
  listener_.reset();
  const CmId client = make_id(clients_.get());
  resolve(client.get(), "127.0.0.1", port);
  ASSERT_EQ(connect(client.get(), ""), 0);
  Told answer;
  ASSERT_EQ(expect(clients_.get(), RDMA_CM_EVENT_UNREACHABLE, &answer), client.get());
  EXPECT_EQ(answer.status, 1) << "IB_SIDR_UNSUPPORTED";
}

// Datagrams have a port space of their own, shared by all processes and separate from that of TCP.
TEST_F(CmDatagramsTest, PortsAreHeldUntilTheIdsEnd) {
  const uint16_t port = listen("127.0.0.1");
  sockaddr_storage at = cm_address("127.0.0.1", port);
  const CmId other = make_id(channel_.get());
  EXPECT_EQ(rdma_bind_addr(other.get(), generic(at)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  CmId client = make_id(clients_.get());
  resolve(client.get(), "127.0.0.1", port);
  ASSERT_EQ(connect(client.get(), ""), 0);
  CmId server(expect(channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST), destroy_cm_id);
  ASSERT_EQ(accept(server.get(), 1, ""), 0);
  ASSERT_EQ(expect(clients_.get(), RDMA_CM_EVENT_ESTABLISHED), client.get());
  sockaddr_storage own = cm_address("127.0.0.1", ntohs(rdma_get_src_port(client.get())));
  EXPECT_EQ(rdma_bind_addr(other.get(), generic(own)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  client.reset();
  EXPECT_EQ(rdma_bind_addr(other.get(), generic(own)), 0);
  // An id whose request was answered does not keep the listener's port.
  listener_.reset();
  const CmId again = make_id(channel_.get());
  EXPECT_EQ(rdma_bind_addr(again.get(), generic(at)), 0) << std::strerror(errno);
}

TEST_F(CmDatagramsTest, ManyQuestionsToOnePort) {
  constexpr int kMany = 100;
  const uint16_t port = listen("0.0.0.0", kMany);
  std::vector<CmId> clients;
  for (int i = 0; i < kMany; ++i) {
    clients.push_back(make_id(clients_.get()));
    resolve(clients.back().get(), "127.0.0.1", port);
    ASSERT_EQ(connect(clients.back().get(), std::to_string(i)), 0);
  }
  for (int i = 0; i < kMany; ++i) {
    Told request;
    const CmId server(expect(channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST, &request),
                      destroy_cm_id);
    ASSERT_NE(server, nullptr);
    const uint32_t number = static_cast<uint32_t>(std::stoi(request.data)) + 1;
    ASSERT_EQ(accept(server.get(), number, request.data), 0);
  }
  for (int i = 0; i < kMany; ++i) {
    Told answer;
    ASSERT_NE(expect(clients_.get(), RDMA_CM_EVENT_ESTABLISHED, &answer), nullptr);
    EXPECT_EQ(answer.qp_number, static_cast<uint32_t>(std::stoi(answer.data)) + 1);
  }
}

TEST_F(CmDatagramsTest, IpOverInfiniBandIsForOtherLinks) {
  const CmId id = make_id(clients_.get(), RDMA_PS_IPOIB);
  sockaddr_storage to = cm_address("127.0.0.1", 7174);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, generic(to), 2000), 0);
  Told told;
  ASSERT_EQ(expect(clients_.get(), RDMA_CM_EVENT_ADDR_ERROR, &told), id.get());
  EXPECT_EQ(told.status, -EINVAL);
}

TEST_F(VerbsTest, IwarpHasNoDatagramsOfRdmaCm) {
  if (roce()) GTEST_SKIP() << "RoCE has";
  const CmChannel channel = make_cm_channel();
  rdma_cm_id* made = nullptr;
  ASSERT_EQ(rdma_create_id(channel.get(), &made, nullptr, RDMA_PS_UDP), 0);
  const CmId id(made, destroy_cm_id);
  sockaddr_storage at = cm_address("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(id.get(), generic(at)), 0);
  EXPECT_EQ(rdma_listen(id.get(), 1), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
