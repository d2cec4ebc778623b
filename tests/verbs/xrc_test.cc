// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Extended reliable connections (roce persona): domains, shared receive queues that peers name,
// queue pairs of one direction, and receiving queue pairs that several processes have opened.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;
using Xrcd = std::unique_ptr<ibv_xrcd, Destroyer<ibv_close_xrcd>>;

Xrcd open_domain(ibv_context* context, int fd = -1, int flags = O_CREAT) {
  ibv_xrcd_init_attr init = {};
  init.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  init.fd = fd;
  init.oflags = flags;
  errno = 0;
  return Xrcd(ibv_open_xrcd(context, &init));
}

Srq make_srq(ibv_xrcd* xrcd, ibv_pd* pd, ibv_cq* cq, uint32_t depth = 64) {
  ibv_srq_init_attr_ex init = {};
  init.attr = {depth, 1, 0};
  init.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD;
  init.srq_type = IBV_SRQT_XRC;
  init.xrcd = xrcd;
  init.pd = pd;
  init.cq = cq;
  errno = 0;
  return Srq(ibv_create_srq_ex(xrcd->context, &init));
}

uint32_t number_of(const Srq& srq) {
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(srq.get(), &number), 0);
  return number;
}

Qp make_receiver(ibv_context* context, ibv_xrcd* xrcd) {
  ibv_qp_init_attr_ex init = {};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  init.xrcd = xrcd;
  errno = 0;
  return Qp(ibv_create_qp_ex(context, &init));
}

Qp open_receiver(ibv_context* context, ibv_xrcd* xrcd, uint32_t number, void* name = nullptr) {
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
                   IBV_QP_OPEN_ATTR_CONTEXT;
  attr.qp_num = number;
  attr.xrcd = xrcd;
  attr.qp_type = IBV_QPT_XRC_RECV;
  attr.qp_context = name;
  errno = 0;
  return Qp(ibv_open_qp(context, &attr));
}

/// A file that names an XRC domain.
struct NamedFile {
  NamedFile() { fd = mkstemp(path); }
  ~NamedFile() {
    close(fd);
    unlink(path);
  }
  char path[32] = "/tmp/uwarp_xrcd_XXXXXX";
  int fd;
};

/// A sending queue pair, and a receiving one with a shared receive queue.
struct Line {
  explicit Line(ibv_context* context, ibv_comp_channel* channel = nullptr)
      : sender(context),
        xrcd(open_domain(context)),
        pd(ibv_alloc_pd(context)),
        cq(ibv_create_cq(context, 256, nullptr, channel, 0)),
        memory(1 << 16),
        mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), kAllAccess)),
        srq(make_srq(xrcd.get(), pd.get(), cq.get())),
        receiver(make_receiver(context, xrcd.get())) {
    ibv_qp_init_attr_ex init = {};
    init.qp_type = IBV_QPT_XRC_SEND;
    init.send_cq = sender.cq.get();
    init.cap = {64, 16, 1, 1, 0};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = sender.pd.get();
    init.send_ops_flags = IBV_QP_EX_WITH_SEND;
    sender.qp.reset(ibv_create_qp_ex(context, &init));
    EXPECT_EQ(to_init(sender.qp.get()), 0);
    EXPECT_EQ(to_init(receiver.get()), 0);
    EXPECT_EQ(to_rtr(receiver.get(), sender.address()), 0);
    EXPECT_EQ(to_rts(receiver.get(), 5), 0);
    Address address = sender.address();
    address.qpn = receiver->qp_num;
    address.psn = 5;
    sender.connect(address);
  }
  int post_receive(const Srq& queue, uint64_t id) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory.data()) + 64 * id, 64, mr->lkey};
    ibv_recv_wr wr = {id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(queue.get(), &wr, &bad);
  }
  int send(uint64_t id, uint32_t number, ibv_wr_opcode opcode = IBV_WR_SEND) {
    return send(id, number, opcode, *mr, memory.data());
  }
  int send(uint64_t id, uint32_t number, ibv_wr_opcode opcode, const ibv_mr& to, void* address) {
    ibv_sge sge = sender.sge();
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(address);
    wr.wr.rdma.rkey = to.rkey;
    wr.qp_type.xrc.remote_srqn = number;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(sender.qp.get(), &wr, &bad);
  }

  End sender;
  Xrcd xrcd;
  Pd pd;
  Cq cq;
  std::vector<uint8_t> memory;
  Mr mr;
  Srq srq;
  Qp receiver;
};

class Xrc : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (!roce()) GTEST_SKIP() << "the iwarp persona has no XRC";
  }
};

TEST_F(Xrc, DeviceReportsTheCapability) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &attr), 0);
  EXPECT_NE(attr.orig_attr.device_cap_flags & IBV_DEVICE_XRC, 0u);
  EXPECT_EQ(attr.xrc_odp_caps, attr.odp_caps.per_transport_caps.rc_odp_caps);
}

// ---- Domains

TEST_F(Xrc, DomainsOfFiles) {
  NamedFile file;
  EXPECT_EQ(open_domain(context(), file.fd, 0), nullptr);
  EXPECT_EQ(errno, EAGAIN) << "there is none yet";
  EXPECT_EQ(open_domain(context(), 9999), nullptr);
  EXPECT_EQ(errno, EBADF);
  const Xrcd first = open_domain(context(), file.fd);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(open_domain(context(), file.fd, O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const int again = open(file.path, O_RDONLY);
  const Context other = open_device();
  const Xrcd second = open_domain(other.get(), again, 0);
  ASSERT_NE(second, nullptr) << "the same file, in another context";
  const Xrcd anonymous = open_domain(context());
  const Qp qp = make_receiver(context(), first.get());
  EXPECT_NE(open_receiver(other.get(), second.get(), qp->qp_num), nullptr);
  EXPECT_EQ(open_receiver(context(), anonymous.get(), qp->qp_num), nullptr);
  EXPECT_EQ(errno, EINVAL);
  close(again);
}

TEST_F(Xrc, DomainIsFreedWithItsLastUser) {
  NamedFile file;
  open_domain(context(), file.fd).reset();
  EXPECT_EQ(open_domain(context(), file.fd, 0), nullptr);
  const Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  Xrcd xrcd = open_domain(context());
  Srq srq = make_srq(xrcd.get(), pd.get(), cq.get());
  Qp qp = make_receiver(context(), xrcd.get());
  EXPECT_EQ(ibv_close_xrcd(xrcd.get()), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(cq.get()), EBUSY) << "the shared queue completes to it";
  srq.reset();
  EXPECT_EQ(ibv_close_xrcd(xrcd.get()), EBUSY);
  qp.reset();
}

TEST_F(Xrc, WhatIsMissing) {
  const Pd pd(ibv_alloc_pd(context()));
  const Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  const Xrcd xrcd = open_domain(context());
  ibv_xrcd_init_attr domain = {};
  EXPECT_EQ(ibv_open_xrcd(context(), &domain), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr_ex init = {};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.pd = pd.get();
  EXPECT_EQ(ibv_create_qp_ex(context(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr plain = init_attributes(cq.get());
  plain.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_EQ(ibv_create_qp(pd.get(), &plain), nullptr);
  EXPECT_EQ(errno, EINVAL);
  plain.qp_type = IBV_QPT_XRC_SEND;
  plain.send_cq = nullptr;
  EXPECT_EQ(ibv_create_qp(pd.get(), &plain), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(open_receiver(context(), xrcd.get(), 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// ---- Traffic

// Each queue has its own receives and completions; a completion names the receiving queue pair.
TEST_F(Xrc, MessagesGoToTheQueueThatTheyName) {
  Line line(context());
  const Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  const Srq other = make_srq(line.xrcd.get(), line.pd.get(), cq.get());
  EXPECT_NE(number_of(other), number_of(line.srq));
  line.sender.memory[0] = 0x5A;
  ASSERT_EQ(line.post_receive(line.srq, 1), 0);
  ASSERT_EQ(line.post_receive(other, 2), 0);
  ASSERT_EQ(line.send(3, number_of(other)), 0);
  ASSERT_EQ(line.send(4, number_of(line.srq)), 0);
  EXPECT_COMPLETION(line.sender.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(line.sender.cq.get(), 4, IBV_WC_SUCCESS);
  const auto found = next_completion(cq.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->wr_id, 2u);
  EXPECT_EQ(found->qp_num, line.receiver->qp_num);
  EXPECT_COMPLETION(line.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(line.memory[64], 0x5A);
  EXPECT_EQ(line.memory[128], 0x5A);
}

TEST_F(Xrc, WaitsForABufferOfItsQueue) {
  Line line(context());
  ASSERT_EQ(line.send(1, number_of(line.srq)), 0);
  EXPECT_FALSE(next_completion(line.sender.cq.get(), milliseconds(20)));
  ASSERT_EQ(line.post_receive(line.srq, 2), 0);
  EXPECT_COMPLETION(line.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(line.sender.cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Xrc, UnknownNumber) {
  Line line(context());
  ASSERT_EQ(line.post_receive(line.srq, 1), 0);
  ASSERT_EQ(line.send(2, number_of(line.srq) + 1000), 0);
  EXPECT_COMPLETION(line.sender.cq.get(), 2, IBV_WC_REM_INV_REQ_ERR);
  for (const ibv_event_type type : {IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}) {
    auto event = next_async_event(context());
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, type);
    EXPECT_EQ(event->element.qp, line.receiver.get());
    ibv_ack_async_event(&*event);
  }
  EXPECT_EQ(state_of(line.receiver.get()), IBV_QPS_ERR);
}

TEST_F(Xrc, RequestsBuiltOneAfterTheOther) {
  Line line(context());
  ASSERT_EQ(line.post_receive(line.srq, 1), 0);
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(line.sender.qp.get());
  ASSERT_NE(qp, nullptr);
  ibv_wr_start(qp);
  qp->wr_id = 2;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_xrc_srqn(qp, number_of(line.srq));
  const ibv_sge sge = line.sender.sge();
  ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_COMPLETION(line.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(line.sender.cq.get(), 2, IBV_WC_SUCCESS);
  ibv_wr_start(qp);
  ibv_wr_set_xrc_srqn(qp, 1);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL) << "of no request";
}

TEST_F(Xrc, WritesAndReads) {
  Line line(context());
  line.sender.memory[0] = 7;
  ASSERT_EQ(line.send(1, number_of(line.srq), IBV_WR_RDMA_WRITE), 0);
  EXPECT_COMPLETION(line.sender.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(line.memory[0], 7);
  line.memory[0] = 9;
  ASSERT_EQ(line.send(2, number_of(line.srq), IBV_WR_RDMA_READ), 0);
  EXPECT_COMPLETION(line.sender.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(line.sender.memory[0], 9);
  ASSERT_EQ(line.post_receive(line.srq, 3), 0);
  ASSERT_EQ(line.send(4, number_of(line.srq), IBV_WR_RDMA_WRITE_WITH_IMM), 0);
  const auto found = next_completion(line.cq.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(found->byte_len, 64u);
  // The peer cannot reach a domain without a shared receive queue here.
  const Pd pd(ibv_alloc_pd(context()));
  uint8_t memory[64] = {};
  const Mr mr(ibv_reg_mr(pd.get(), memory, sizeof memory, kAllAccess));
  EXPECT_COMPLETION(line.sender.cq.get(), 4, IBV_WC_SUCCESS);
  ASSERT_EQ(line.send(5, number_of(line.srq), IBV_WR_RDMA_WRITE, *mr, memory), 0);
  EXPECT_COMPLETION(line.sender.cq.get(), 5, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(memory[0], 0);
}

// A thread that sleeps on the channel of the shared queue's completion queue is woken; no thread
// polls.
TEST_F(Xrc, CompletionEvents) {
  const Channel channel(ibv_create_comp_channel(context()));
  Line line(context(), channel.get());
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(line.post_receive(line.srq, i), 0);
    ASSERT_EQ(ibv_req_notify_cq(line.cq.get(), 0), 0);
    ASSERT_EQ(line.send(i, number_of(line.srq)), 0);
    ASSERT_TRUE(readable(channel->fd));
    ibv_cq* cq = nullptr;
    void* name = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel.get(), &cq, &name), 0);
    EXPECT_EQ(cq, line.cq.get());
    ibv_ack_cq_events(cq, 1);
    EXPECT_COMPLETION(line.cq.get(), i, IBV_WC_SUCCESS);
  }
}

// The answer comes over another connection than the question.
TEST_F(Xrc, SendsCompleteBeforeTheirAnswers) {
  Line asks(context()), answers(context());
  for (Line* line : {&asks, &answers})
    for (uint64_t id = 0; id < 2; ++id) ASSERT_EQ(line->post_receive(line->srq, id), 0);
  std::atomic<bool> over{false};
  std::thread other([&] {
    ibv_wc wc;
    while (!over.load()) {
      while (ibv_poll_cq(answers.sender.cq.get(), 1, &wc) == 1) {
      }
      if (ibv_poll_cq(asks.cq.get(), 1, &wc) != 1) continue;
      EXPECT_EQ(asks.post_receive(asks.srq, wc.wr_id), 0);
      EXPECT_EQ(answers.send(0, number_of(answers.srq)), 0);
    }
  });
  int inversions = 0;
  for (uint64_t round = 0; round < 2000 && !HasFailure(); ++round) {
    ASSERT_EQ(asks.send(round, number_of(asks.srq)), 0);
    const auto answer = next_completion(answers.cq.get());
    EXPECT_TRUE(answer.has_value());
    if (!answer) break;
    EXPECT_EQ(answers.post_receive(answers.srq, answer->wr_id), 0);
    ibv_wc wc;
    if (ibv_poll_cq(asks.sender.cq.get(), 1, &wc) == 1) continue;
    ++inversions;
    EXPECT_TRUE(next_completion(asks.sender.cq.get()).has_value());
  }
  over.store(true);
  other.join();
  EXPECT_EQ(inversions, 0);
}

TEST_F(Xrc, NoSecondDirection) {
  Line line(context());
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(line.receiver.get(), &wr, &bad), ENOMEM);
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(line.receiver.get(), &receive, &bad_receive), ENOMEM);
  EXPECT_EQ(ibv_post_recv(line.sender.qp.get(), &receive, &bad_receive), ENOMEM);
}

// ---- Ends

// Streams that have used the destroyed queue go on with other queues.
TEST_F(Xrc, SharedQueueIsDestroyed) {
  Line line(context());
  {
    Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
    const Srq passing = make_srq(line.xrcd.get(), line.pd.get(), cq.get());
    ASSERT_EQ(line.post_receive(passing, 1), 0);
    ASSERT_EQ(line.send(1, number_of(passing)), 0);
    EXPECT_COMPLETION(cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(line.sender.cq.get(), 1, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(line.post_receive(line.srq, 2), 0);
  ASSERT_EQ(line.send(2, number_of(line.srq)), 0);
  EXPECT_COMPLETION(line.cq.get(), 2, IBV_WC_SUCCESS);
}

TEST_F(Xrc, SharedQueueIsDestroyedUnderAMessage) {
  Line line(context());
  ASSERT_EQ(line.send(1, number_of(line.srq)), 0);
  EXPECT_FALSE(next_completion(line.sender.cq.get(), milliseconds(20)));
  line.srq.reset();
  line.cq.reset();
  EXPECT_COMPLETION(line.sender.cq.get(), 1, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(Xrc, RegionIsDeregisteredUnderTraffic) {
  Line line(context());
  std::vector<uint8_t> memory(1 << 16);
  for (int round = 0; round < 20; ++round) {
    Mr mr(ibv_reg_mr(line.pd.get(), memory.data(), memory.size(), kAllAccess));
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(line.send(1, number_of(line.srq), IBV_WR_RDMA_WRITE, *mr, memory.data()), 0);
    for (int i = 0; i < 4; ++i) EXPECT_COMPLETION(line.sender.cq.get(), 1, IBV_WC_SUCCESS);
    mr.reset();
  }
}

// ---- Receiving queue pairs with several owners

TEST_F(Xrc, OpenedQueuePairLivesUntilItsLastOwner) {
  Line line(context());
  int name = 0;
  Qp opened = open_receiver(context(), line.xrcd.get(), line.receiver->qp_num, &name);
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(opened->qp_num, line.receiver->qp_num);
  EXPECT_EQ(opened->qp_context, &name);
  EXPECT_EQ(state_of(opened.get()), IBV_QPS_RTS);
  const uint32_t number = opened->qp_num;
  line.receiver.reset();
  ASSERT_EQ(line.post_receive(line.srq, 1), 0);
  ASSERT_EQ(line.send(1, number_of(line.srq)), 0);
  EXPECT_COMPLETION(line.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_close_xrcd(line.xrcd.get()), EBUSY);
  opened.reset();
  EXPECT_EQ(open_receiver(context(), line.xrcd.get(), number), nullptr);
}

TEST_F(Xrc, EventsGoToAllOwners) {
  Line line(context());
  Qp opened = open_receiver(context(), line.xrcd.get(), line.receiver->qp_num);
  ASSERT_EQ(to_state(opened.get(), IBV_QPS_ERR), 0);
  std::map<ibv_qp*, ibv_event_type> told;
  for (int i = 0; i < 2; ++i) {
    auto event = next_async_event(context());
    ASSERT_TRUE(event);
    told[event->element.qp] = event->event_type;
    ibv_ack_async_event(&*event);
  }
  EXPECT_EQ(told, (std::map<ibv_qp*, ibv_event_type>{
                      {opened.get(), IBV_EVENT_QP_LAST_WQE_REACHED},
                      {line.receiver.get(), IBV_EVENT_QP_LAST_WQE_REACHED}}));
}

// One owner closes its device without destroying its objects; the other owner's share stays.
TEST_F(Xrc, OwnerClosesItsDevice) {
  NamedFile file;
  const Xrcd xrcd = open_domain(context(), file.fd);
  const Qp qp = make_receiver(context(), xrcd.get());
  {
    const Context other = open_device();
    Xrcd left = open_domain(other.get(), file.fd);
    Qp opened = open_receiver(other.get(), left.get(), qp->qp_num);
    ASSERT_NE(opened, nullptr);
    (void)opened.release();
    (void)left.release();
  }
  EXPECT_EQ(to_init(qp.get()), 0);
}

// ---- The other persona

TEST(XrcOfIwarp, IsRefused) {
  const Context context = open_device();
  ASSERT_NE(context, nullptr);
  if (context->device->node_type == IBV_NODE_CA) GTEST_SKIP() << "not in the roce persona";
  EXPECT_EQ(open_domain(context.get()), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
