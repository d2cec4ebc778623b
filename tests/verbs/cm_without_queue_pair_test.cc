// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma_cm ids that connect without a queue pair: the queue pair number that they send belongs to no
// queue pair here. Plain librdmacm; nothing of uwarp.
#include <cerrno>
#include <cstring>

#include "verbs/cm_ends.h"

namespace {

constexpr int kResolveLimitMs = 5000;
// Queue pairs of uwarp have larger numbers.
constexpr uint32_t kClientNumber = 77;
constexpr uint32_t kServerNumber = 78;

class CmWithoutQueuePair : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    auto address = cm_address("127.0.0.1");
    ASSERT_EQ(rdma_bind_addr(listener_.get(), generic(address)), 0);
    ASSERT_EQ(rdma_listen(listener_.get(), 8), 0);
    auto to = cm_address("127.0.0.1", ntohs(rdma_get_src_port(listener_.get())));
    ASSERT_EQ(rdma_resolve_addr(client_.get(), nullptr, generic(to), kResolveLimitMs), 0);
    ASSERT_TRUE(expect_event(client_channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED));
    ASSERT_EQ(rdma_resolve_route(client_.get(), kResolveLimitMs), 0);
    ASSERT_TRUE(expect_event(client_channel_.get(), RDMA_CM_EVENT_ROUTE_RESOLVED));
  }
  static rdma_conn_param naming(uint32_t number, const char* data) {
    rdma_conn_param parameters = {};
    parameters.qp_num = number;
    parameters.private_data = data;
    parameters.private_data_len = static_cast<uint8_t>(strlen(data));
    return parameters;
  }
  /// Both ends are connected, each without a queue pair.
  void connect() {
    auto asked = naming(kClientNumber, "question");
    ASSERT_EQ(rdma_connect(client_.get(), &asked), 0) << strerror(errno);
    server_.reset(expect_event(server_channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST));
    ASSERT_NE(server_, nullptr);
    auto answer = naming(kServerNumber, "answer");
    ASSERT_EQ(rdma_accept(server_.get(), &answer), 0) << strerror(errno);
    ASSERT_TRUE(expect_event(client_channel_.get(), RDMA_CM_EVENT_CONNECT_RESPONSE));
    ASSERT_EQ(rdma_establish(client_.get()), 0) << strerror(errno);
    ASSERT_TRUE(expect_event(server_channel_.get(), RDMA_CM_EVENT_ESTABLISHED));
  }

  CmChannel client_channel_ = make_cm_channel();
  CmChannel server_channel_ = make_cm_channel();
  CmId listener_ = make_cm_id(server_channel_.get());
  CmId client_ = make_cm_id(client_channel_.get());
  CmId server_{nullptr, destroy_cm_id};
};

TEST_F(CmWithoutQueuePair, ConnectsAndEndsInTheRocePersona) {
  if (!roce()) GTEST_SKIP() << "iWARP connects queue pairs only";
  ASSERT_NO_FATAL_FAILURE(connect());
  for (rdma_cm_id* id : {client_.get(), server_.get()}) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    int mask = 0;
    EXPECT_EQ(rdma_init_qp_attr(id, &attributes, &mask), 0);
    EXPECT_TRUE(mask & IBV_QP_DEST_QPN);
  }
  ASSERT_EQ(rdma_disconnect(client_.get()), 0);
  EXPECT_TRUE(expect_event(client_channel_.get(), RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_TRUE(expect_event(server_channel_.get(), RDMA_CM_EVENT_DISCONNECTED));
}

TEST_F(CmWithoutQueuePair, TheEndOfAnIdEndsTheConnection) {
  if (!roce()) GTEST_SKIP() << "iWARP connects queue pairs only";
  ASSERT_NO_FATAL_FAILURE(connect());
  server_.reset();
  EXPECT_TRUE(expect_event(client_channel_.get(), RDMA_CM_EVENT_DISCONNECTED));
}

TEST_F(CmWithoutQueuePair, APeerThatSendsLosesTheConnection) {
  if (!roce()) GTEST_SKIP() << "iWARP connects queue pairs only";
  CmEnds ends("127.0.0.1");
  ASSERT_TRUE(ends.resolve(cm_address("127.0.0.1", port_of(rdma_get_local_addr(listener_.get())))));
  ASSERT_EQ(rdma_connect(ends.client(), &ends.client_parameters), 0);
  server_.reset(expect_event(server_channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST));
  ASSERT_NE(server_, nullptr);
  auto answer = naming(kServerNumber, "");
  ASSERT_EQ(rdma_accept(server_.get(), &answer), 0);
  ASSERT_TRUE(expect_event(ends.client()->channel, RDMA_CM_EVENT_ESTABLISHED));
  ASSERT_TRUE(expect_event(server_channel_.get(), RDMA_CM_EVENT_ESTABLISHED));
  ASSERT_EQ(ends.post_send(ends.client(), 1), 0);
  const auto completion = next_completion(ends.client()->send_cq);
  ASSERT_TRUE(completion.has_value());
  EXPECT_NE(completion->status, IBV_WC_SUCCESS);
  EXPECT_TRUE(expect_event(server_channel_.get(), RDMA_CM_EVENT_DISCONNECTED));
}

TEST_F(CmWithoutQueuePair, IsRefusedByIwarp) {
  if (roce()) GTEST_SKIP() << "InfiniBand's connection manager takes any number";
  auto asked = naming(kClientNumber, "question");
  EXPECT_EQ(rdma_connect(client_.get(), &asked), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
