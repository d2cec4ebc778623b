// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Each limit that a device reports is reached, and one more is refused. The limits of device memory
// and windows are in special_memory_test.cc and window_test.cc.
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define UNDER_SANITIZER 1
#else
#define UNDER_SANITIZER 0
#endif

namespace {

class Limits : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &extended_), 0);
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 64, nullptr, nullptr, 0));
  }
  void TearDown() override {
    cq_.reset();
    pd_.reset();
  }
  const ibv_device_attr& device() const { return extended_.orig_attr; }

  /// Makes objects until one is refused; errno is that of the refusal.
  template <typename Object>
  std::vector<Object> as_many_as_possible(int limit, const std::function<Object()>& make) {
    std::vector<Object> all;
    all.reserve(static_cast<size_t>(limit));
    for (int i = 0; i <= limit; ++i) {
      errno = 0;
      Object one = make();
      if (one == nullptr) break;
      all.push_back(std::move(one));
    }
    return all;
  }
  Qp make_qp(const ibv_qp_cap& cap) {
    ibv_qp_init_attr init = init_attributes(cq_.get());
    init.cap = cap;
    return Qp(ibv_create_qp(pd_.get(), &init));
  }
  static int post_receive(ibv_qp* qp, ibv_sge* list = nullptr, int count = 0) {
    ibv_recv_wr wr = {0, nullptr, list, count};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  static int post_send(ibv_qp* qp, ibv_wr_opcode opcode = IBV_WR_SEND, ibv_sge* list = nullptr,
                       int count = 0, const Address& peer = {}) {
    ibv_send_wr wr = {};
    wr.sg_list = list;
    wr.num_sge = count;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = peer.memory;
    wr.wr.rdma.rkey = peer.rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }

  ibv_device_attr_ex extended_ = {};
  Pd pd_;
  Cq cq_;
};

// Proves: 5040-8.1.2-2
TEST_F(Limits, ProtectionDomains) {
  const auto all =
      as_many_as_possible<Pd>(device().max_pd, [&] { return Pd(ibv_alloc_pd(context())); });
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size() + 1, static_cast<size_t>(device().max_pd));
}

// Proves: 5040-8.1.2-2
TEST_F(Limits, CompletionQueues) {
  const auto all = as_many_as_possible<Cq>(
      device().max_cq, [&] { return Cq(ibv_create_cq(context(), 1, nullptr, nullptr, 0)); });
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size() + 1, static_cast<size_t>(device().max_cq));
}

// Proves: 5040-8.1.2-2
TEST_F(Limits, SharedReceiveQueues) {
  const auto all = as_many_as_possible<Srq>(device().max_srq, [&] {
    ibv_srq_init_attr init = {nullptr, {1, 1, 0}};
    return Srq(ibv_create_srq(pd_.get(), &init));
  });
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size(), static_cast<size_t>(device().max_srq));
}

TEST_F(Limits, AddressHandles) {
  using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  ibv_ah_attr attr = {};
  attr.is_global = attr.port_num = 1;
  ASSERT_EQ(ibv_query_gid(context(), 1, 0, &attr.grh.dgid), 0);
  const auto all =
      as_many_as_possible<Ah>(device().max_ah, [&] { return Ah(ibv_create_ah(pd_.get(), &attr)); });
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size(), static_cast<size_t>(device().max_ah));
}

// Proves: 5040-8.1.2-2
TEST_F(Limits, Regions) {
  static char byte;
  const auto all = as_many_as_possible<Mr>(
      device().max_mr, [&] { return Mr(ibv_reg_mr(pd_.get(), &byte, 1, IBV_ACCESS_LOCAL_WRITE)); });
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size(), static_cast<size_t>(device().max_mr));
}

// Each 256 queue pairs hold a port, with a file for each address of the device.
// Proves: 5040-8.1.2-2
TEST_F(Limits, QueuePairs) {
  const auto all = as_many_as_possible<Qp>(device().max_qp, [&] {
    return make_qp({1, 1, 1, 1, 0});
  });
  const int error = errno;
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  if (error == EMFILE) {
    EXPECT_GE(all.size(), files.rlim_cur * 4);
    GTEST_SKIP() << all.size() << " with " << files.rlim_cur << " open files";
  }
  EXPECT_STREQ(std::strerror(error), std::strerror(ENOMEM));
  EXPECT_EQ(all.size(), static_cast<size_t>(device().max_qp));
  // The last queue pair works like the first.
  EXPECT_EQ(to_init(all.back().get()), 0);
}

TEST_F(Limits, WorkRequests) {
  const auto depth = static_cast<uint32_t>(device().max_qp_wr);
  EXPECT_EQ(make_qp({depth + 1, 1, 1, 1, 0}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(make_qp({1, depth + 1, 1, 1, 0}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  End peer(context());
  Qp qp = make_qp({depth, depth, 1, 1, 0});
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp.get()), 0);
  ASSERT_EQ(to_rtr(qp.get(), peer.address()), 0);
  for (uint32_t i = 0; i < depth; ++i) {
    ASSERT_EQ(post_receive(qp.get()), 0) << i;
    ASSERT_EQ(post_send(qp.get()), 0) << i;
  }
  EXPECT_EQ(post_receive(qp.get()), ENOMEM);
  EXPECT_EQ(post_send(qp.get()), ENOMEM);
}

TEST_F(Limits, SharedWorkRequestsAndTheirElements) {
  const auto depth = static_cast<uint32_t>(device().max_srq_wr);
  const auto sges = static_cast<uint32_t>(device().max_srq_sge);
  const auto make = [&](uint32_t wr, uint32_t sge) {
    ibv_srq_init_attr init = {nullptr, {wr, sge, 0}};
    errno = 0;
    return Srq(ibv_create_srq(pd_.get(), &init));
  };
  EXPECT_EQ(make(depth + 1, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(make(1, sges + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  Srq srq = make(depth, sges);
  ASSERT_NE(srq, nullptr);
  std::vector<ibv_sge> list(sges + 1);
  const auto post = [&](uint32_t count) {
    ibv_recv_wr wr = {0, nullptr, list.data(), static_cast<int>(count)};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq.get(), &wr, &bad);
  };
  EXPECT_EQ(post(sges + 1), EINVAL);
  for (uint32_t i = 0; i < depth; ++i) ASSERT_EQ(post(sges), 0) << i;
  EXPECT_EQ(post(sges), ENOMEM);
}

// Proves: 5040-8.1.2-5
TEST_F(Limits, CompletionsInAQueue) {
  Cq most(ibv_create_cq(context(), device().max_cqe, nullptr, nullptr, 0));
  ASSERT_NE(most, nullptr);
  EXPECT_GE(most->cqe, device().max_cqe);  // a power of two
  EXPECT_EQ(ibv_resize_cq(most.get(), device().max_cqe + 1), EINVAL);
  EXPECT_EQ(ibv_create_cq(context(), device().max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

/// Two ends whose queue pairs take the largest number of elements.
struct Scattered {
  Scattered(ibv_context* context, uint32_t sges, size_t bytes)
      : a(context, bytes), b(context, bytes) {
    for (End* end : {&a, &b}) {
      ibv_qp_init_attr init = init_attributes(end->cq.get());
      init.cap.max_send_sge = init.cap.max_recv_sge = sges;
      end->qp.reset(ibv_create_qp(end->pd.get(), &init));
      EXPECT_EQ(to_init(end->qp.get()), 0);
    }
    a.connect(b.address());
    b.connect(a.address());
  }
  End a, b;
};

TEST_F(Limits, ElementsOfARequest) {
  const auto sges = static_cast<uint32_t>(device().max_sge);
  EXPECT_EQ(make_qp({1, 1, sges + 1, 1, 0}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(make_qp({1, 1, 1, sges + 1, 0}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_LE(device().max_sge_rd, device().max_sge);
  Scattered pair(context(), sges, 8192);
  for (size_t i = 0; i < 1024; ++i) pair.a.memory[i] = static_cast<uint8_t>(i * 13 + 5);
  // Elements of 3 bytes, one every 7 bytes at `a` and one every 11 bytes at `b`.
  std::vector<ibv_sge> from, to;
  for (uint32_t i = 0; i <= sges; ++i) {
    from.push_back(pair.a.sge(7 * i, 3));
    to.push_back(pair.b.sge(11 * i, 3));
  }
  const int count = static_cast<int>(sges);
  EXPECT_EQ(post_receive(pair.b.qp.get(), to.data(), count + 1), EINVAL);
  EXPECT_EQ(post_send(pair.a.qp.get(), IBV_WR_SEND, from.data(), count + 1), EINVAL);
  ASSERT_EQ(post_receive(pair.b.qp.get(), to.data(), count), 0);
  ASSERT_EQ(post_send(pair.a.qp.get(), IBV_WR_SEND, from.data(), count), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 0, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(pair.a.cq.get(), 0, IBV_WC_SUCCESS);
  for (uint32_t i = 0; i < sges; ++i)
    EXPECT_EQ(std::memcmp(&pair.b.memory[11 * i], &pair.a.memory[7 * i], 3), 0) << i;
  // A Read scatters too: the peer's memory is one piece, the local memory is in elements.
  std::fill(pair.b.memory.begin(), pair.b.memory.end(), uint8_t{0x6b});
  ASSERT_EQ(post_send(pair.a.qp.get(), IBV_WR_RDMA_READ, from.data(), device().max_sge_rd,
                      pair.b.address()),
            0);
  EXPECT_COMPLETION(pair.a.cq.get(), 0, IBV_WC_SUCCESS);
  for (int i = 0; i < device().max_sge_rd; ++i)
    EXPECT_EQ(pair.a.memory[7 * static_cast<size_t>(i) + 2], 0x6b) << i;
}

// The largest number of Reads under way, and more that wait.
TEST_F(Limits, OutstandingReads) {
  const int depth = device().max_qp_rd_atom;
  ASSERT_EQ(device().max_qp_init_rd_atom, depth);
  End a(context(), 1 << 20, nullptr, 1024), b(context());
  const auto to_rtr_with = [&](End& end, const Address& peer, int ird) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn;
    attr.max_dest_rd_atomic = static_cast<uint8_t>(ird);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    return ibv_modify_qp(end.qp.get(), &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  };
  const auto to_rts_with = [&](End& end, int ord) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.sq_psn = end.psn;
    attr.max_rd_atomic = static_cast<uint8_t>(ord);
    return ibv_modify_qp(end.qp.get(), &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  };
  EXPECT_EQ(to_rtr_with(a, b.address(), depth + 1), EINVAL);
  ASSERT_EQ(to_rtr_with(a, b.address(), depth), 0);
  ASSERT_EQ(to_rtr_with(b, a.address(), depth), 0);
  EXPECT_EQ(to_rts_with(a, depth + 1), EINVAL);
  ASSERT_EQ(to_rts_with(a, depth), 0);
  ASSERT_EQ(to_rts_with(b, depth), 0);
  const Address target = b.address();
  const int requests = 4 * depth;
  for (int i = 0; i < requests; ++i)
    ASSERT_EQ(a.post_rdma(IBV_WR_RDMA_READ, static_cast<uint64_t>(i), target, 0, 1 << 16), 0);
  for (int i = 0; i < requests; ++i) EXPECT_COMPLETION(a.cq.get(), i, IBV_WC_SUCCESS);
}

// One region for the whole address space.
TEST_F(Limits, RegionOfAllMemory) {
  if ((extended_.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) == 0) GTEST_SKIP();
  Mr all(ibv_reg_mr(pd_.get(), nullptr, device().max_mr_size,
                    IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE));
  EXPECT_NE(all, nullptr);
}

// The elements repeat the same 64 MiB, so that the test needs little memory.
TEST_F(Limits, MessageSize) {
  if (UNDER_SANITIZER) GTEST_SKIP() << "takes too long";
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(context(), 1, &port), 0);
  constexpr uint32_t kPart = 1u << 26;
  const int parts = static_cast<int>(port.max_msg_sz / kPart);
  ASSERT_LE(parts, device().max_sge);
  Scattered pair(context(), static_cast<uint32_t>(device().max_sge), kPart);
  std::vector<ibv_sge> from(static_cast<size_t>(parts) + 1, pair.a.sge(0, kPart));
  std::vector<ibv_sge> to(static_cast<size_t>(parts), pair.b.sge(0, kPart));
  from.back().length = 1;
  if (parts < device().max_sge) {
    EXPECT_EQ(post_send(pair.a.qp.get(), IBV_WR_SEND, from.data(), parts + 1), EINVAL);
  } else {
    from[0].length = kPart + 1;
    EXPECT_EQ(post_send(pair.a.qp.get(), IBV_WR_SEND, from.data(), parts), EINVAL);
    from[0].length = kPart;
  }
  ASSERT_EQ(post_receive(pair.b.qp.get(), to.data(), parts), 0);
  ASSERT_EQ(post_send(pair.a.qp.get(), IBV_WR_SEND, from.data(), parts), 0);
  const auto received = next_completion(pair.b.cq.get(), std::chrono::seconds(60));
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->status, IBV_WC_SUCCESS);
  EXPECT_EQ(received->byte_len, port.max_msg_sz);
}

TEST_F(Limits, Moderation) {
  ibv_modify_cq_attr attr = {};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {extended_.cq_mod_caps.max_cq_count, extended_.cq_mod_caps.max_cq_period};
  EXPECT_EQ(ibv_modify_cq(cq_.get(), &attr), 0);
}

TEST_F(Limits, TablesOfThePort) {
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(context(), 1, &port), 0);
  __be16 key = 0;
  EXPECT_EQ(port.pkey_tbl_len, device().max_pkeys);
  EXPECT_EQ(ibv_query_pkey(context(), 1, port.pkey_tbl_len - 1, &key), 0);
  EXPECT_NE(ibv_query_pkey(context(), 1, port.pkey_tbl_len, &key), 0);
  ibv_gid gid = {};
  EXPECT_EQ(ibv_query_gid(context(), 1, port.gid_tbl_len - 1, &gid), 0);
  EXPECT_NE(ibv_query_gid(context(), 1, port.gid_tbl_len, &gid), 0);
  EXPECT_NE(ibv_query_port(context(), static_cast<uint8_t>(device().phys_port_cnt + 1), &port), 0);
}

}  // namespace
