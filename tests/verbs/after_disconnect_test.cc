// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a peer's rdma_disconnect() does to this side: with InfiniBand's rules one event, and nothing
// to the queue pair. With iWARP's the queue pair ends with the connection.
#include "verbs/cm_ends.h"
#include "verbs/verbs_fixture.h"

namespace {

class AfterDisconnect : public VerbsTest {
 protected:
  /// Connected, with two receives posted to the server's queue pair; then the client disconnects.
  bool disconnected() {
    if (!ends_.resolve(cm_address("127.0.0.1", ends_.port())) || !ends_.connect()) return false;
    for (const uint64_t id : {1, 2}) EXPECT_EQ(ends_.post_receive(ends_.server(), id), 0);
    EXPECT_EQ(rdma_disconnect(ends_.client()), 0);
    return expect_event(ends_.server()->channel, RDMA_CM_EVENT_DISCONNECTED) != nullptr;
  }
  ibv_qp_state state() {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(ends_.server()->qp, &attributes, IBV_QP_STATE, &init), 0);
    return attributes.qp_state;
  }
  int poll(ibv_wc& wc) { return ibv_poll_cq(ends_.server()->qp->recv_cq, 1, &wc); }
  rdma_cm_event_type next_event() {
    rdma_cm_event* event = nullptr;
    EXPECT_TRUE(readable(ends_.server()->channel->fd));
    EXPECT_EQ(rdma_get_cm_event(ends_.server()->channel, &event), 0);
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    return type;
  }

  CmEnds ends_;
};

TEST_F(AfterDisconnect, TheQueuePairStaysUntilTheOwnDisconnect) {
  if (!roce()) GTEST_SKIP() << "with iWARP the queue pair ends with the connection";
  ASSERT_TRUE(disconnected());
  ibv_wc wc{};
  EXPECT_EQ(state(), IBV_QPS_RTS);
  EXPECT_EQ(poll(wc), 0) << "no receive is flushed";
  ASSERT_EQ(rdma_disconnect(ends_.server()), 0);
  for (const uint64_t id : {1, 2}) {
    const auto flushed = next_completion(ends_.server()->qp->recv_cq);
    ASSERT_TRUE(flushed.has_value());
    EXPECT_EQ(flushed->wr_id, id);
    EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_EQ(next_event(), RDMA_CM_EVENT_TIMEWAIT_EXIT) << "once, and of this side";
}

TEST_F(AfterDisconnect, ASendThatFollowsFailsWithAReason) {
  if (!roce()) GTEST_SKIP() << "with iWARP the queue pair ends with the connection";
  ASSERT_TRUE(disconnected());
  ASSERT_EQ(ends_.post_send(ends_.server(), 3), 0);
  const auto failed = next_completion(ends_.server()->qp->send_cq);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->status, IBV_WC_RETRY_EXC_ERR);
  const auto flushed = next_completion(ends_.server()->qp->recv_cq);
  ASSERT_TRUE(flushed.has_value());
  EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state(), IBV_QPS_ERR);
}

// The peer's side waits, so that a message of this one that is late meets no new queue pair.
TEST_F(AfterDisconnect, TheSideThatBeginsWaitsToo) {
  if (!roce()) GTEST_SKIP() << "iWARP has no time to wait";
  ASSERT_TRUE(disconnected());
  rdma_event_channel* const channel = ends_.client()->channel;
  ASSERT_NE(expect_event(channel, RDMA_CM_EVENT_DISCONNECTED), nullptr);
  ASSERT_TRUE(readable(channel->fd));
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  rdma_ack_cm_event(event);
}

}  // namespace
