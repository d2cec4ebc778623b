// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Successful calls leave errno unchanged, and failing calls leave their own reason, also if the
// library makes system calls meanwhile: an adapter's driver makes none to post or to poll.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

/// No errno has the number 12345; 0 is what programs set before a call.
constexpr int kMarks[] = {0, 12345};

class Errno : public VerbsTest {
 protected:
  /// Makes a call and checks errno afterwards.
  template <typename Call>
  auto keeps(const char* name, Call&& call) {
    errno = mark_;
    auto result = call();
    const int left = errno;
    EXPECT_EQ(left, mark_) << name << " leaves " << std::strerror(left);
    return result;
  }
  int mark_ = 0;
};

#define KEEPS(call) keeps(#call, [&] { return call; })

/// The whole life of a queue pair, with traffic.
class VerbsErrno : public Errno {
 protected:
  /// Polls until this many completions have come.
  void poll(ibv_cq* cq, int count) {
    EXPECT_TRUE(wait_until([&] {
      ibv_wc wc = {};
      count -= KEEPS(ibv_poll_cq(cq, 1, &wc));
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);  // also 0 if nothing was found
      return count == 0;
    }));
  }
  void traffic(End& a, End& b) {
    constexpr uint32_t kLarge = 400000;  // more than a socket accepts at once
    ibv_sge place = b.sge(0, kLarge), sge = a.sge(0, kLarge);
    ibv_recv_wr receive = {0, nullptr, &place, 1};
    ibv_recv_wr* bad_receive = nullptr;
    EXPECT_EQ(KEEPS(ibv_post_recv(b.qp.get(), &receive, &bad_receive)), 0);
    const Address there = b.address();
    for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
      ibv_send_wr send = {};
      send.sg_list = &sge;
      send.num_sge = 1;
      send.opcode = opcode;
      send.send_flags = IBV_SEND_SIGNALED;
      send.wr.rdma = {there.memory, there.rkey};
      ibv_send_wr* bad_send = nullptr;
      EXPECT_EQ(KEEPS(ibv_post_send(a.qp.get(), &send, &bad_send)), 0);
    }
    poll(b.cq.get(), 1);
    poll(a.cq.get(), 3);
  }
};

TEST_F(VerbsErrno, StaysInAWholeLife) {
  for (const int mark : kMarks) {
    mark_ = mark;
    Pair pair(context());
    for (int i = 0; i < 4; ++i) traffic(pair.a, pair.b);
    EXPECT_EQ(KEEPS(ibv_destroy_qp(pair.a.qp.release())), 0);
    EXPECT_EQ(KEEPS(ibv_destroy_cq(pair.a.cq.release())), 0);
    EXPECT_EQ(KEEPS(ibv_dereg_mr(pair.a.mr.release())), 0);
    EXPECT_EQ(KEEPS(ibv_dealloc_pd(pair.a.pd.release())), 0);
  }
}

TEST_F(VerbsErrno, StaysWhenObjectsAreMade) {
  std::vector<uint8_t> memory(8192);
  for (const int mark : kMarks) {
    mark_ = mark;
    Pd pd(KEEPS(ibv_alloc_pd(context())));
    Mr mr(KEEPS(ibv_reg_mr(pd.get(), memory.data(), memory.size(), kAllAccess)));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(KEEPS(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr,
                                 memory.data() + 4, 100, 0)),
              0);
    Channel channel(KEEPS(ibv_create_comp_channel(context())));
    ASSERT_NE(channel, nullptr);
    Cq cq(KEEPS(ibv_create_cq(context(), 16, nullptr, channel.get(), 0)));
    ASSERT_NE(cq, nullptr);
    EXPECT_EQ(KEEPS(ibv_resize_cq(cq.get(), 32)), 0);
    EXPECT_EQ(KEEPS(ibv_req_notify_cq(cq.get(), 0)), 0);
    ibv_cq_init_attr_ex extended = {};
    extended.cqe = 16;
    Cq cq_ex(ibv_cq_ex_to_cq(KEEPS(ibv_create_cq_ex(context(), &extended))));
    ASSERT_NE(cq_ex, nullptr);
    ibv_poll_cq_attr poll = {};
    EXPECT_EQ(KEEPS(ibv_start_poll(reinterpret_cast<ibv_cq_ex*>(cq_ex.get()), &poll)), ENOENT);
    ibv_srq_init_attr srq_init = {};
    srq_init.attr = {16, 1, 0};
    Srq srq(KEEPS(ibv_create_srq(pd.get(), &srq_init)));
    ASSERT_NE(srq, nullptr);
    ibv_qp_init_attr init = init_attributes(cq.get());
    Qp qp(KEEPS(ibv_create_qp(pd.get(), &init)));
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(KEEPS(to_init(qp.get())), 0);
    EXPECT_EQ(KEEPS(to_state(qp.get(), IBV_QPS_ERR)), 0);
    EXPECT_EQ(KEEPS(ibv_destroy_qp(qp.release())), 0);
    EXPECT_EQ(KEEPS(ibv_destroy_srq(srq.release())), 0);
    EXPECT_EQ(KEEPS(ibv_destroy_cq(cq.release())), 0);
    EXPECT_EQ(KEEPS(ibv_destroy_comp_channel(channel.release())), 0);
  }
}

TEST_F(VerbsErrno, StaysWhenDevicesAreOpened) {
  for (const int mark : kMarks) {
    mark_ = mark;
    Context another(KEEPS(ibv_open_device(context()->device)));
    ASSERT_NE(another, nullptr);
    ibv_device_attr device = {};
    EXPECT_EQ(KEEPS(ibv_query_device(another.get(), &device)), 0);
    ibv_port_attr port = {};
    EXPECT_EQ(KEEPS(ibv_query_port(another.get(), 1, &port)), 0);
    EXPECT_EQ(KEEPS(ibv_close_device(another.release())), 0);
  }
}

TEST_F(VerbsErrno, StaysWhenAnEventIsAwaited) {
  for (const int mark : kMarks) {
    mark_ = mark;
    Channel channel(ibv_create_comp_channel(context()));
    Pair pair(context(), 4096, channel.get());
    ASSERT_EQ(KEEPS(ibv_req_notify_cq(pair.b.cq.get(), 0)), 0);
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(pair.a.post_send(2), 0);
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    ASSERT_EQ(KEEPS(ibv_get_cq_event(channel.get(), &cq, &cq_context)), 0);
    ibv_ack_cq_events(cq, 1);
  }
}

// Programs print perror() after any call of verbs that fails.
TEST_F(VerbsErrno, OfACallThatFailsIsItsReason) {
  Pair pair(context(), 4096);
  ibv_sge sge = pair.a.sge();
  ibv_send_wr wrong = {};
  wrong.sg_list = &sge;
  wrong.num_sge = 1;
  wrong.send_flags = 1u << 30;
  ibv_send_wr* bad = nullptr;
  errno = 0;
  EXPECT_EQ(ibv_post_send(pair.a.qp.get(), &wrong, &bad), EINVAL);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(ibv_destroy_cq(pair.a.cq.get()), EBUSY);
  EXPECT_EQ(errno, EBUSY);
  errno = 0;
  EXPECT_EQ(ibv_reg_mr(pair.a.pd.get(), nullptr, 4096, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
}

// ---- librdmacm

class CmErrno : public Errno {
 protected:
  void SetUp() override {
    Errno::SetUp();
    // In the first call of a process librdmacm tries AF_IB, which not every kernel has.
    rdma_destroy_event_channel(rdma_create_event_channel());
  }
  rdma_cm_id* expect(rdma_event_channel* channel, rdma_cm_event_type type) {
    for (;;) {
      rdma_cm_event* event = nullptr;
      EXPECT_TRUE(readable(channel->fd));
      // Before ESTABLISHED librdmacm asks a RoCE adapter for options (ECE), which few adapters
      // have.
      const bool asks = roce() && type == RDMA_CM_EVENT_ESTABLISHED;
      if ((asks ? rdma_get_cm_event(channel, &event) : KEEPS(rdma_get_cm_event(channel, &event))) !=
          0)
        return nullptr;
      const rdma_cm_event_type found = event->event;
      rdma_cm_id* id = event->id;
      EXPECT_EQ(KEEPS(rdma_ack_cm_event(event)), 0);
      if (found == RDMA_CM_EVENT_TIMEWAIT_EXIT) continue;  // only in the RoCE persona
      EXPECT_STREQ(rdma_event_str(found), rdma_event_str(type));
      return id;
    }
  }
  void make_queue_pair(rdma_cm_id* id) {
    ibv_qp_init_attr init = init_attributes(nullptr, 16);
    EXPECT_EQ(KEEPS(rdma_create_qp(id, nullptr, &init)), 0) << std::strerror(errno);
  }
};

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

TEST_F(CmErrno, StaysInAWholeConnection) {
  for (const int mark : kMarks) {
    mark_ = mark;
    rdma_event_channel* channel = KEEPS(rdma_create_event_channel());
    rdma_cm_id *listener = nullptr, *client = nullptr;
    ASSERT_EQ(KEEPS(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP)), 0);
    sockaddr_in address = loopback(0);
    ASSERT_EQ(KEEPS(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&address))), 0);
    ASSERT_EQ(KEEPS(rdma_listen(listener, 4)), 0);
    address.sin_port = KEEPS(rdma_get_src_port(listener));
    ASSERT_EQ(KEEPS(rdma_create_id(channel, &client, nullptr, RDMA_PS_TCP)), 0);
    ASSERT_EQ(
        KEEPS(rdma_resolve_addr(client, nullptr, reinterpret_cast<sockaddr*>(&address), 2000)), 0);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED), nullptr);
    // For InfiniBand librdmacm first asks a service (ibacm), which does not run here.
    ASSERT_EQ(roce() ? rdma_resolve_route(client, 2000) : KEEPS(rdma_resolve_route(client, 2000)),
              0);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED), nullptr);
    make_queue_pair(client);
    rdma_conn_param parameters = {};
    parameters.retry_count = parameters.rnr_retry_count = 7;
    ASSERT_EQ(KEEPS(rdma_connect(client, &parameters)), 0);
    rdma_cm_id* server = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_NE(server, nullptr);
    make_queue_pair(server);
    ASSERT_EQ(KEEPS(rdma_accept(server, &parameters)), 0);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_ESTABLISHED), nullptr);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_ESTABLISHED), nullptr);
    ASSERT_EQ(KEEPS(rdma_disconnect(client)), 0);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_DISCONNECTED), nullptr);
    ASSERT_NE(expect(channel, RDMA_CM_EVENT_DISCONNECTED), nullptr);
    for (rdma_cm_id* id : {client, server}) {
      keeps("rdma_destroy_qp", [&] { return rdma_destroy_qp(id), 0; });
      EXPECT_EQ(KEEPS(rdma_destroy_id(id)), 0);
    }
    EXPECT_EQ(KEEPS(rdma_destroy_id(listener)), 0);
    keeps("rdma_destroy_event_channel", [&] { return rdma_destroy_event_channel(channel), 0; });
  }
}

// When librdmacm cleans up after a failure, it must not overwrite the reason.
TEST_F(CmErrno, OfACallThatFailsIsItsReason) {
  rdma_addrinfo hints = {}, *found = nullptr;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = RAI_PASSIVE;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "0", &hints, &found), 0);
  rdma_cm_id* bound = nullptr;
  ASSERT_EQ(rdma_create_ep(&bound, found, nullptr, nullptr), 0);
  ASSERT_EQ(rdma_listen(bound, 1), 0);
  rdma_freeaddrinfo(found);

  hints.ai_flags = 0;
  const std::string port = std::to_string(ntohs(rdma_get_src_port(bound)));
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", port.c_str(), &hints, &found), 0);
  ibv_qp_init_attr init = init_attributes(nullptr, 16);
  init.cap.max_send_wr = 1u << 30;
  rdma_cm_id* id = nullptr;
  errno = 0;
  EXPECT_EQ(rdma_create_ep(&id, found, nullptr, &init), -1);
  EXPECT_EQ(errno, EINVAL);

  ASSERT_EQ(rdma_create_ep(&id, found, nullptr, nullptr), 0);
  errno = 0;
  EXPECT_EQ(rdma_create_qp(id, nullptr, &init), -1);
  EXPECT_EQ(errno, EINVAL);
  init = init_attributes(nullptr, 16);
  init.qp_type = IBV_QPT_RAW_PACKET;
  errno = 0;
  EXPECT_EQ(rdma_create_qp(id, nullptr, &init), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  rdma_freeaddrinfo(found);
  rdma_destroy_ep(id);
  rdma_destroy_ep(bound);
}

}  // namespace
