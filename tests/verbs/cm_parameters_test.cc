// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the parameters of rdma_connect and rdma_accept do to the queue pair.
#include "verbs/cm_ends.h"

namespace {

using std::chrono::milliseconds;

class CmParameters : public VerbsTest {
 protected:
  ibv_qp_attr attributes_of(rdma_cm_id* id) {
    ibv_qp_attr attributes = {};
    ibv_qp_init_attr init = {};
    EXPECT_EQ(ibv_query_qp(id->qp, &attributes, 0, &init), 0);
    return attributes;
  }
  void connect(CmEnds& ends) {
    ASSERT_TRUE(ends.resolve(cm_address("127.0.0.1", ends.port())));
    ASSERT_TRUE(ends.connect());
  }
  /// In the iWARP persona the active side must send first. The order of the two completions does
  /// not matter here.
  void first_message(CmEnds& ends) {
    ASSERT_EQ(ends.post_receive(ends.server(), 1), 0);
    ASSERT_EQ(ends.post_send(ends.client(), 2), 0);
    EXPECT_COMPLETION(ends.server()->recv_cq, 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(ends.client()->send_cq, 2, IBV_WC_SUCCESS);
  }
};

// Each side's count applies to what its peer sends (rdma_connect(3)). The counts differ here, so
// that the test finds a mix-up.
TEST_F(CmParameters, MissingReceiveFailsByTheReceiversCount) {
  if (!roce()) GTEST_SKIP() << "with iWARP there is no such count";
  for (const bool from_client : {true, false}) {
    CmEnds ends;
    ends.client_parameters.rnr_retry_count = from_client ? 7 : 0;
    ends.server_parameters.rnr_retry_count = from_client ? 0 : 7;
    ASSERT_NO_FATAL_FAILURE(connect(ends));
    ASSERT_NO_FATAL_FAILURE(first_message(ends));
    rdma_cm_id* const sender = from_client ? ends.client() : ends.server();
    ASSERT_EQ(ends.post_send(sender, 3), 0);
    EXPECT_COMPLETION(sender->send_cq, 3, IBV_WC_RNR_RETRY_EXC_ERR);
  }
}

TEST_F(CmParameters, SevenWaitsForTheReceiveWithoutEnd) {
  if (!roce()) GTEST_SKIP() << "with iWARP there is no such count";
  for (const bool from_client : {true, false}) {
    CmEnds ends;
    ends.client_parameters.rnr_retry_count = from_client ? 0 : 7;
    ends.server_parameters.rnr_retry_count = from_client ? 7 : 0;
    ASSERT_NO_FATAL_FAILURE(connect(ends));
    ASSERT_NO_FATAL_FAILURE(first_message(ends));
    rdma_cm_id* const sender = from_client ? ends.client() : ends.server();
    rdma_cm_id* const receiver = from_client ? ends.server() : ends.client();
    ASSERT_EQ(ends.post_send(sender, 3), 0);
    // 1000 ms is longer than the RNR timer of a connection by rdma_cm, 655 ms.
    EXPECT_FALSE(next_completion(sender->send_cq, milliseconds(1000)).has_value());
    ASSERT_EQ(ends.post_receive(receiver, 4), 0);
    EXPECT_COMPLETION(receiver->recv_cq, 4, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(sender->send_cq, 3, IBV_WC_SUCCESS);
  }
}

TEST_F(CmParameters, TheCountsAreTheQueuePairs) {
  if (!roce()) GTEST_SKIP() << "with iWARP there are no such counts";
  CmEnds ends;
  ends.client_parameters.retry_count = 3;
  ends.client_parameters.rnr_retry_count = 2;
  ends.server_parameters.retry_count = 1;  // has no effect, as with InfiniBand
  ends.server_parameters.rnr_retry_count = 5;
  ASSERT_NO_FATAL_FAILURE(connect(ends));
  EXPECT_EQ(attributes_of(ends.client()).retry_cnt, 3);
  EXPECT_EQ(attributes_of(ends.client()).rnr_retry, 2);
  EXPECT_EQ(attributes_of(ends.server()).retry_cnt, 7);
  EXPECT_EQ(attributes_of(ends.server()).rnr_retry, 5);
}

TEST_F(CmParameters, TheDepthsAreThoseThatWereNegotiated) {
  if (roce()) GTEST_SKIP() << "librdmacm itself gives them to the queue pair";
  CmEnds ends;
  ends.client_parameters.initiator_depth = 3;
  ends.client_parameters.responder_resources = 5;
  ends.server_parameters.initiator_depth = 4;
  ends.server_parameters.responder_resources = 2;
  ASSERT_NO_FATAL_FAILURE(connect(ends));
  const ibv_qp_attr client = attributes_of(ends.client()), server = attributes_of(ends.server());
  EXPECT_EQ(client.max_rd_atomic, 2);
  EXPECT_EQ(server.max_rd_atomic, 4);
  EXPECT_GE(client.max_dest_rd_atomic, server.max_rd_atomic);
  EXPECT_LE(client.max_dest_rd_atomic, 5);
  EXPECT_GE(server.max_dest_rd_atomic, client.max_rd_atomic);
  EXPECT_EQ(server.max_dest_rd_atomic, 2);
}

}  // namespace
