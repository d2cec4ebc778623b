// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The limits of the shape of requests, at the limit and one above, whatever the profile is that
// UWARP_PROFILE names: tests/tools/test_profiles.py runs it with each. Needs as little as the
// profile `small` has; how many objects there can be is in limits_test.cc.
#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "verbs/verbs_fixture.h"

namespace {

constexpr uint32_t kMostBytes = 8 << 20;  // of a message that a test really sends

class Profile : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    ASSERT_EQ(ibv_query_device(context(), &most_), 0);
    ASSERT_EQ(ibv_query_port(context(), 1, &port_), 0);
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
    memory_.resize(std::min(port_.max_msg_sz, kMostBytes));
    mr_.reset(ibv_reg_mr(pd_.get(), memory_.data(), memory_.size(), access()));
    ASSERT_NE(mr_, nullptr);
  }
  void TearDown() override {
    mr_.reset();
    cq_.reset();
    pd_.reset();
  }

  /// What is not among the attributes of a device; the default is uwarp's own.
  static uint32_t max_inline() {
    const char* const given = std::getenv("UWARP_TEST_INLINE");
    return given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : 512;
  }
  bool has_atomics() const { return most_.atomic_cap != IBV_ATOMIC_NONE; }
  int access() const {
    return has_atomics() ? kAllAccess : kAllAccess & ~int{IBV_ACCESS_REMOTE_ATOMIC};
  }

  Qp make_qp(const ibv_qp_cap& cap) {
    ibv_qp_init_attr init = init_attributes(cq_.get());
    init.cap = cap;
    errno = 0;
    return Qp(ibv_create_qp(pd_.get(), &init));
  }
  Qp make_qp() {
    const auto sges = static_cast<uint32_t>(most_.max_sge);
    return make_qp({4, 4, sges, sges, 0});
  }

  Address address_of(ibv_qp* qp) {
    Address address = {};
    EXPECT_EQ(ibv_query_gid(context(), 1, 0, &address.gid), 0);
    address.qpn = qp->qp_num;
    return address;
  }
  int to_rtr_with(ibv_qp* qp, const Address& peer, ibv_mtu mtu, int depth) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = mtu;
    attr.dest_qp_num = peer.qpn;
    attr.max_dest_rd_atomic = static_cast<uint8_t>(depth);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  static int to_rts_with(ibv_qp* qp, int depth) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = static_cast<uint8_t>(depth);
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  /// With the largest MTU and all Reads that there can be, and with none of what is beyond.
  void connect(ibv_qp* from, ibv_qp* to) {
    const Address peer = address_of(to);
    const int depth = most_.max_qp_rd_atom, own_depth = most_.max_qp_init_rd_atom;
    ASSERT_EQ(to_init(from, access()), 0);
    EXPECT_EQ(to_rtr_with(from, peer, port_.max_mtu, depth + 1), EINVAL);
    EXPECT_EQ(to_rtr_with(from, peer, static_cast<ibv_mtu>(port_.max_mtu + 1), depth), EINVAL);
    ASSERT_EQ(to_rtr_with(from, peer, port_.max_mtu, depth), 0);
    EXPECT_EQ(to_rts_with(from, own_depth + 1), EINVAL);
    ASSERT_EQ(to_rts_with(from, own_depth), 0);
  }

  int post(ibv_qp* qp, ibv_wr_opcode opcode, std::vector<ibv_sge> list) {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.sg_list = list.data();
    wr.num_sge = static_cast<int>(list.size());
    wr.send_flags = IBV_SEND_SIGNALED;
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
      wr.wr.atomic.remote_addr = (begin + 7) & ~uintptr_t{7};
      wr.wr.atomic.rkey = mr_->rkey;
    } else {
      wr.wr.rdma.remote_addr = begin;
      wr.wr.rdma.rkey = mr_->rkey;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }
  ibv_sge piece(uint32_t bytes) const {
    return {reinterpret_cast<uintptr_t>(memory_.data()), bytes, mr_->lkey};
  }

  ibv_device_attr most_ = {};
  ibv_port_attr port_ = {};
  std::vector<uint8_t> memory_;
  Pd pd_;
  Cq cq_;
  Mr mr_;
};

TEST_F(Profile, ShapesOfQueues) {
  const auto depth = static_cast<uint32_t>(most_.max_qp_wr);
  const auto sges = static_cast<uint32_t>(most_.max_sge);
  const ibv_qp_cap wrong[] = {{depth + 1, 1, 1, 1, 0},
                              {1, depth + 1, 1, 1, 0},
                              {1, 1, sges + 1, 1, 0},
                              {1, 1, 1, sges + 1, 0},
                              {1, 1, 1, 1, max_inline() + 1}};
  for (const ibv_qp_cap& cap : wrong) {
    EXPECT_EQ(make_qp(cap), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_NE(make_qp({depth, 1, 1, 1, max_inline()}), nullptr);
  EXPECT_NE(make_qp({1, depth, sges, sges, 0}), nullptr);
}

TEST_F(Profile, InlineThatIsGrantedStaysBelow) {
  ibv_qp_init_attr init = init_attributes(cq_.get());
  init.cap = {1, 1, 1, 1, 0};
  const Qp qp(ibv_create_qp(pd_.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_LE(init.cap.max_inline_data, max_inline());
}

TEST_F(Profile, RequestsOfAConnection) {
  Qp qp = make_qp();
  ASSERT_NE(qp, nullptr);
  ASSERT_NO_FATAL_FAILURE(connect(qp.get(), qp.get()));
  // Elements of a Read.
  std::vector<ibv_sge> list(static_cast<size_t>(most_.max_sge_rd) + 1, piece(4));
  EXPECT_EQ(post(qp.get(), IBV_WR_RDMA_READ, list), EINVAL);
  list.pop_back();
  ASSERT_EQ(post(qp.get(), IBV_WR_RDMA_READ, list), 0);
  EXPECT_COMPLETION(cq_.get(), 0, IBV_WC_SUCCESS);
  // Bytes of a message.
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ})
    EXPECT_EQ(post(qp.get(), opcode, {piece(port_.max_msg_sz + 1)}), EINVAL);
  if (port_.max_msg_sz > kMostBytes) return;
  ASSERT_EQ(post(qp.get(), IBV_WR_RDMA_WRITE, {piece(port_.max_msg_sz)}), 0);
  EXPECT_COMPLETION(cq_.get(), 0, IBV_WC_SUCCESS);
}

TEST_F(Profile, Atomics) {
  Qp qp = make_qp();
  ASSERT_NE(qp, nullptr);
  ASSERT_NO_FATAL_FAILURE(connect(qp.get(), qp.get()));
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    ASSERT_EQ(post(qp.get(), opcode, {piece(8)}), has_atomics() ? 0 : EOPNOTSUPP);
    if (has_atomics()) {
      EXPECT_COMPLETION(cq_.get(), 0, IBV_WC_SUCCESS);
    }
  }
  ibv_qp_init_attr_ex init = {};
  init.qp_type = IBV_QPT_RC;
  init.send_cq = init.recv_cq = cq_.get();
  init.cap = {1, 1, 1, 1, 0};
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = pd_.get();
  init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  errno = 0;
  const Qp extended(ibv_create_qp_ex(context(), &init));
  EXPECT_EQ(extended != nullptr, has_atomics());
  if (!has_atomics()) {
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

TEST_F(Profile, SizeOfARegion) {
  if (most_.max_mr_size > kMostBytes) GTEST_SKIP() << "more than a test should use";
  std::vector<uint8_t> bytes(most_.max_mr_size + 1);
  const auto make = [&](size_t length) {
    return Mr(ibv_reg_mr(pd_.get(), bytes.data(), length, IBV_ACCESS_LOCAL_WRITE));
  };
  EXPECT_NE(make(most_.max_mr_size), nullptr);
  EXPECT_EQ(make(most_.max_mr_size + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Profile, WhatIsNotThere) {
  if (most_.max_srq == 0) {
    ibv_srq_init_attr init = {nullptr, {1, 1, 0}};
    EXPECT_EQ(ibv_create_srq(pd_.get(), &init), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
  EXPECT_EQ((most_.device_cap_flags & IBV_DEVICE_MEM_WINDOW) != 0, most_.max_mw != 0);
  if (most_.max_mw == 0) {
    EXPECT_EQ(ibv_alloc_mw(pd_.get(), IBV_MW_TYPE_1), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

}  // namespace
