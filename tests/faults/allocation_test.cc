// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every allocation of the control path fails once: the call returns ENOMEM, nothing leaks, and the
// same call then succeeds.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <functional>
#include <string>
#include <thread>

#include "faults/failing_allocations.h"
#include "verbs/verbs_fixture.h"

namespace {

constexpr int kAllocationsMax = 3000;

class Allocations : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
    ASSERT_TRUE(pd_ != nullptr && cq_ != nullptr);
  }

  /// `attempt` returns true if it has succeeded, and sets errno otherwise. `undo` destroys what it
  /// has made.
  static void try_all(const std::function<bool()>& attempt, const std::function<void()>& undo,
                      bool look_at_memory = true) {
    ASSERT_TRUE(attempt()) << strerror(errno);
    undo();
    // This first attempt makes what later calls keep and use again.
    ASSERT_TRUE(attempt()) << strerror(errno);
    undo();
    const size_t files = open_files();
    const int64_t live = live_allocations();
    for (int n = 1; n < kAllocationsMax; ++n) {
      errno = 0;
      fail_allocation(n);
      const bool done = attempt();
      const int error = errno;
      const bool failed = stop_failing_allocations();
      if (done) {
        undo();
      } else {
        EXPECT_EQ(error, ENOMEM) << "allocation " << n;
      }
      EXPECT_TRUE(wait_until([&] { return open_files() <= files; })) << "allocation " << n;
      EXPECT_TRUE(!look_at_memory || wait_until([&] { return live_allocations() <= live; }))
          << "allocation " << n << " leaks " << live_allocations() - live;
      if (HasFailure()) return;
      if (failed) continue;
      EXPECT_TRUE(done);
      return;
    }
    FAIL() << "more than " << kAllocationsMax << " allocations";
  }
  static bool ok(int error) {
    if (error != 0) errno = error;
    return error == 0;
  }

  Pd pd_;
  Cq cq_;
  uint8_t memory_[4096];
};

TEST_F(Allocations, OfADevice) {
  ibv_context* made = nullptr;
  try_all([&] { return (made = ibv_open_device(context()->device)) != nullptr; },
          [&] { EXPECT_EQ(ibv_close_device(made), 0); });
}

TEST_F(Allocations, OfAListOfDevices) {
  ibv_device** made = nullptr;
  try_all([&] { return (made = ibv_get_device_list(nullptr)) != nullptr; },
          [&] { ibv_free_device_list(made); });
}

TEST_F(Allocations, OfADomain) {
  ibv_pd* made = nullptr;
  try_all([&] { return (made = ibv_alloc_pd(context())) != nullptr; },
          [&] { EXPECT_EQ(ibv_dealloc_pd(made), 0); });
}

TEST_F(Allocations, OfARegion) {
  ibv_mr* made = nullptr;
  try_all(
      [&] {
        return (made = ibv_reg_mr(pd_.get(), memory_, sizeof memory_, kAllAccess)) != nullptr;
      },
      [&] { EXPECT_EQ(ibv_dereg_mr(made), 0); });
}

TEST_F(Allocations, OfAChangedRegion) {
  ibv_mr* mr = ibv_reg_mr(pd_.get(), memory_, sizeof memory_, kAllAccess);
  ASSERT_NE(mr, nullptr);
  try_all(
      [&] {
        const int error = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd_.get(), memory_,
                                       sizeof memory_, IBV_ACCESS_LOCAL_WRITE);
        return error == 0;
      },
      [] {});
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Allocations, OfAWindow) {
  for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    ibv_mw* made = nullptr;
    try_all([&] { return (made = ibv_alloc_mw(pd_.get(), type)) != nullptr; },
            [&] { EXPECT_EQ(ibv_dealloc_mw(made), 0); });
  }
}

TEST_F(Allocations, OfDeviceMemory) {
  ibv_dm* made = nullptr;
  ibv_alloc_dm_attr shape{};
  shape.length = 4096;
  try_all([&] { return (made = ibv_alloc_dm(context(), &shape)) != nullptr; },
          [&] { EXPECT_EQ(ibv_free_dm(made), 0); });
}

TEST_F(Allocations, OfACompletionChannel) {
  ibv_comp_channel* made = nullptr;
  try_all([&] { return (made = ibv_create_comp_channel(context())) != nullptr; },
          [&] { EXPECT_EQ(ibv_destroy_comp_channel(made), 0); });
}

TEST_F(Allocations, OfACompletionQueue) {
  const Channel channel(ibv_create_comp_channel(context()));
  for (ibv_comp_channel* events : {static_cast<ibv_comp_channel*>(nullptr), channel.get()}) {
    ibv_cq* made = nullptr;
    try_all([&] { return (made = ibv_create_cq(context(), 100, nullptr, events, 0)) != nullptr; },
            [&] { EXPECT_EQ(ibv_destroy_cq(made), 0); });
  }
  ibv_cq_init_attr_ex shape{};
  shape.cqe = 100;
  shape.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* made = nullptr;
  try_all([&] { return (made = ibv_create_cq_ex(context(), &shape)) != nullptr; },
          [&] { EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(made)), 0); });
}

TEST_F(Allocations, OfAResizedQueue) {
  int entries = 100;
  try_all([&] { return ok(ibv_resize_cq(cq_.get(), entries)); }, [&] { entries = 300 - entries; });
}

TEST_F(Allocations, OfASharedReceiveQueue) {
  ibv_srq* made = nullptr;
  ibv_srq_init_attr shape{};
  shape.attr.max_wr = 16;
  shape.attr.max_sge = 2;
  try_all([&] { return (made = ibv_create_srq(pd_.get(), &shape)) != nullptr; },
          [&] { EXPECT_EQ(ibv_destroy_srq(made), 0); });
}

TEST_F(Allocations, OfAQueuePair) {
  ibv_qp_init_attr shape = init_attributes(cq_.get());
  ibv_qp* made = nullptr;
  try_all([&] { return (made = ibv_create_qp(pd_.get(), &shape)) != nullptr; },
          [&] { EXPECT_EQ(ibv_destroy_qp(made), 0); });
}

TEST_F(Allocations, OfAnExtendedQueuePair) {
  ibv_qp_init_attr_ex shape{};
  shape.send_cq = shape.recv_cq = cq_.get();
  shape.cap = {16, 16, 2, 2, 64};
  shape.qp_type = IBV_QPT_RC;
  shape.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  shape.pd = pd_.get();
  shape.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
  ibv_qp* made = nullptr;
  try_all([&] { return (made = ibv_create_qp_ex(context(), &shape)) != nullptr; },
          [&] { EXPECT_EQ(ibv_destroy_qp(made), 0); });
}

TEST_F(Allocations, OfTheStatesOfAQueuePair) {
  ibv_qp_init_attr shape = init_attributes(cq_.get());
  Qp target(ibv_create_qp(pd_.get(), &shape));
  Address peer{};
  ASSERT_EQ(ibv_query_gid(context(), 1, 0, &peer.gid), 0);
  peer.qpn = target->qp_num;
  Qp qp(ibv_create_qp(pd_.get(), &shape));
  const auto reset = [&] { EXPECT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0); };
  try_all([&] { return ok(to_init(qp.get())); }, reset, false);
  const auto init = [&] {
    reset();
    EXPECT_EQ(to_init(qp.get()), 0);
  };
  init();
  try_all([&] { return ok(to_rtr(qp.get(), peer)); }, init, false);
  const auto rtr = [&] {
    init();
    EXPECT_EQ(to_rtr(qp.get(), peer), 0);
  };
  rtr();
  // The outgoing connection keeps a little memory until its deadline would have passed, so leaks
  // are not checked here.
  try_all([&] { return ok(to_rts(qp.get(), 1)); }, rtr, false);
}

// Posting and polling allocate nothing, so no failing allocation can affect them.
TEST_F(Allocations, NoneForWork) {
  Pair pair(context());
  const auto round = [&] {
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(pair.a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0);
    EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
  };
  for (int i = 0; i < 200; ++i) round();
  // This thread's first look at a socket makes its staging buffer. In the rounds so far the helper
  // thread may always have been faster, so poll many times.
  ibv_wc none;
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(ibv_poll_cq(pair.b.cq.get(), 1, &none), 0);
  fail_allocation(1);
  for (int i = 0; i < 200; ++i) round();
  EXPECT_FALSE(stop_failing_allocations());
}

// A thread that has never sent has no memory yet to build frames in.
TEST_F(Allocations, OfAThreadThatPostsForTheFirstTime) {
  Pair pair(context());
  const auto post = [&] { EXPECT_EQ(pair.a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0); };
  const auto expect_message = [&] {
    EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
  };
  for (uint64_t i = 0; i < 2; ++i) ASSERT_EQ(pair.b.post_receive(1), 0);
  post();
  expect_message();  // the connection exists now
  std::thread([&] {
    fail_allocation(1);
    post();
    EXPECT_TRUE(stop_failing_allocations());
  }).join();
  expect_message();
}

/// A connection that has carried a message.
struct Connected : Pair {
  explicit Connected(ibv_context* context) : Pair(context) {
    EXPECT_EQ(b.post_receive(1), 0);
    EXPECT_EQ(a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0);
    expect_message();
  }
  void expect_message() {
    EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  }
};

// The memory for Reads and atomics was allocated when the connection began.
TEST_F(Allocations, NoneForTheFirstRead) {
  Connected pair(context());
  ibv_wc none;
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(ibv_poll_cq(pair.b.cq.get(), 1, &none), 0);
  fail_allocation(1);
  EXPECT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 3, pair.b.address()), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_FALSE(stop_failing_allocations());
}

// A thread that has never polled has no staging buffer yet. If the allocation fails, its next poll
// tries again.
TEST_F(Allocations, OfAThreadThatPollsForTheFirstTime) {
  Connected pair(context());
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(pair.a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0);
    std::thread([&] {
      fail_allocation(1);
      EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
      (void)stop_failing_allocations();
    }).join();
    EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
  }
}

// A held message is received by the thread that posts the receive. If that thread has no staging
// buffer, the receive is posted all the same, and the message arrives.
TEST_F(Allocations, OfAThreadThatPostsAReceiveForTheFirstTime) {
  Connected pair(context());
  ASSERT_EQ(pair.a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0);
  ibv_wc none;
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(ibv_poll_cq(pair.b.cq.get(), 1, &none), 0);
  std::thread([&] {
    fail_allocation(1);
    EXPECT_EQ(pair.b.post_receive(1), 0);
    EXPECT_TRUE(stop_failing_allocations());
  }).join();
  pair.expect_message();
}

TEST_F(Allocations, OfAThreadThatPostsASharedReceiveForTheFirstTime) {
  End a(context()), b(context());
  ibv_srq_init_attr shape{};
  shape.attr.max_wr = 16;
  shape.attr.max_sge = 1;
  const Srq srq(ibv_create_srq(b.pd.get(), &shape));
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr init = init_attributes(b.cq.get());
  init.srq = srq.get();
  b.qp.reset(ibv_create_qp(b.pd.get(), &init));
  ASSERT_EQ(to_init(b.qp.get()), 0);
  const Address to_a = a.address(), to_b = b.address();
  a.connect(to_b);
  b.connect(to_a);
  ASSERT_EQ(a.post_send(2, 0, 64, IBV_SEND_SIGNALED), 0);
  if (!roce()) EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  ibv_wc none;
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(ibv_poll_cq(b.cq.get(), 1, &none), 0);
  std::thread([&] {
    ibv_sge sge = b.sge();
    ibv_recv_wr wr{1, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    fail_allocation(1);
    EXPECT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
    EXPECT_TRUE(stop_failing_allocations());
  }).join();
  EXPECT_COMPLETION(b.cq.get(), 1, IBV_WC_SUCCESS);
  if (roce()) EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  b.qp.reset();
}

// Not even the first deregistration allocates.
TEST_F(Allocations, NoneToDeregister) {
  ibv_mr* const mr = ibv_reg_mr(pd_.get(), memory_, sizeof memory_, kAllAccess);
  ASSERT_NE(mr, nullptr);
  for (int n = 1; n < 10; ++n) {
    fail_allocation(n);
    const int error = ibv_dereg_mr(mr);
    const bool failed = stop_failing_allocations();
    if (error == 0) break;
    EXPECT_TRUE(failed);
    EXPECT_EQ(error, ENOMEM);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd_.release()), 0);
}

}  // namespace
