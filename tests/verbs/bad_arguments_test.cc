// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All that an application can get wrong when it makes or changes objects: it gets the errno of the
// manual page, and nothing else happens.
#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

class BadArguments : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 64, nullptr, nullptr, 0));
    ASSERT_NE(cq_, nullptr);
  }
  void TearDown() override {
    cq_.reset();
    pd_.reset();
  }
  int create_qp_result(const std::function<void(ibv_qp_init_attr&)>& spoil) {
    ibv_qp_init_attr init = init_attributes(cq_.get());
    spoil(init);
    errno = 0;
    Qp qp(ibv_create_qp(pd_.get(), &init));
    return qp == nullptr ? errno : 0;
  }
  int create_qp_ex_result(const std::function<void(ibv_qp_init_attr_ex&)>& spoil) {
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = cq_.get();
    init.cap = {16, 16, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    init.pd = pd_.get();
    spoil(init);
    errno = 0;
    Qp qp(ibv_create_qp_ex(context(), &init));
    return qp == nullptr ? errno : 0;
  }
  Qp make_qp() {
    ibv_qp_init_attr init = init_attributes(cq_.get());
    Qp qp(ibv_create_qp(pd_.get(), &init));
    EXPECT_NE(qp, nullptr);
    return qp;
  }
  Pd pd_;
  Cq cq_;
};

// Proves: 5040-8.1.2-5
TEST_F(BadArguments, CreateCq) {
  const auto result = [&](int entries, int vector) {
    errno = 0;
    Cq cq(ibv_create_cq(context(), entries, nullptr, nullptr, vector));
    if (cq != nullptr) {
      EXPECT_GE(cq->cqe, entries);
    }
    return cq == nullptr ? errno : 0;
  };
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(context(), &device), 0);
  EXPECT_EQ(result(1, 0), 0);
  EXPECT_EQ(result(1000, 0), 0);
  EXPECT_EQ(result(0, 0), EINVAL);
  EXPECT_EQ(result(-1, 0), EINVAL);
  EXPECT_EQ(result(device.max_cqe + 1, 0), EINVAL);
  EXPECT_EQ(result(10, -1), EINVAL);
  EXPECT_EQ(result(10, context()->num_comp_vectors), EINVAL);
  EXPECT_EQ(result(10, context()->num_comp_vectors - 1), 0);
}

TEST_F(BadArguments, CreateQp) {
  struct Row {
    const char* what;
    std::function<void(ibv_qp_init_attr&)> spoil;
    int error;
  };
  const int unreliable = roce() ? 0 : EOPNOTSUPP;
  const Row rows[] = {
      {"nothing wrong", [](auto&) {}, 0},
      {"UD", [](auto& i) { i.qp_type = IBV_QPT_UD; }, unreliable},
      {"UC", [](auto& i) { i.qp_type = IBV_QPT_UC; }, unreliable},
      {"raw packet", [](auto& i) { i.qp_type = IBV_QPT_RAW_PACKET; }, EOPNOTSUPP},
      {"XRC", [](auto& i) { i.qp_type = IBV_QPT_XRC_SEND; }, roce() ? 0 : EOPNOTSUPP},
      {"no type", [](auto& i) { std::memset(&i.qp_type, 0, sizeof i.qp_type); }, EINVAL},
      {"unknown type", [](auto& i) { std::memset(&i.qp_type, 0x11, sizeof i.qp_type); }, EINVAL},
      {"no send CQ", [](auto& i) { i.send_cq = nullptr; }, EINVAL},
      {"no receive CQ", [](auto& i) { i.recv_cq = nullptr; }, EINVAL},
      {"limit of sends", [](auto& i) { i.cap.max_send_wr = 16384; }, 0},
      {"beyond it", [](auto& i) { i.cap.max_send_wr = 16385; }, EINVAL},
      {"limit of receives", [](auto& i) { i.cap.max_recv_wr = 16384; }, 0},
      {"beyond it", [](auto& i) { i.cap.max_recv_wr = 16385; }, EINVAL},
      {"limit of send SGEs", [](auto& i) { i.cap.max_send_sge = 32; }, 0},
      {"beyond it", [](auto& i) { i.cap.max_send_sge = 33; }, EINVAL},
      {"limit of receive SGEs", [](auto& i) { i.cap.max_recv_sge = 32; }, 0},
      {"beyond it", [](auto& i) { i.cap.max_recv_sge = 33; }, EINVAL},
      {"limit of inline data", [](auto& i) { i.cap.max_inline_data = 512; }, 0},
      {"beyond it", [](auto& i) { i.cap.max_inline_data = 513; }, EINVAL},
      {"all ones", [](auto& i) { i.cap.max_send_wr = ~0u; }, EINVAL},
      {"no depth at all", [](auto& i) { i.cap = {}; }, 0},
  };
  for (const Row& row : rows) EXPECT_EQ(create_qp_result(row.spoil), row.error) << row.what;
}

TEST_F(BadArguments, CreateQpEx) {
  struct Row {
    const char* what;
    std::function<void(ibv_qp_init_attr_ex&)> spoil;
    int error;
  };
  const Row rows[] = {
      {"nothing wrong", [](auto&) {}, 0},
      {"no PD", [](auto& i) { i.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS; }, EINVAL},
      {"null PD", [](auto& i) { i.pd = nullptr; }, EINVAL},
      {"unknown extension", [](auto& i) { i.comp_mask |= 1u << 30; }, EINVAL},
      {"XRC domain", [](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_XRCD; }, EOPNOTSUPP},
      {"TSO", [](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER; }, EOPNOTSUPP},
      {"RSS", [](auto& i) { i.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH; }, EOPNOTSUPP},
      {"flags", [](auto& i) { i.create_flags = IBV_QP_CREATE_SCATTER_FCS; }, EOPNOTSUPP},
      {"UD", [](auto& i) { i.qp_type = IBV_QPT_UD; }, roce() ? 0 : EOPNOTSUPP},
  };
  for (const Row& row : rows) EXPECT_EQ(create_qp_ex_result(row.spoil), row.error) << row.what;
}

// Proves: 5040-8.1.1-9
TEST_F(BadArguments, ObjectsOfAnotherContext) {
  Context other = open_device();
  Cq foreign(ibv_create_cq(other.get(), 10, nullptr, nullptr, 0));
  EXPECT_EQ(create_qp_result([&](auto& i) { i.send_cq = foreign.get(); }), EINVAL);
  EXPECT_EQ(create_qp_result([&](auto& i) { i.recv_cq = foreign.get(); }), EINVAL);
  EXPECT_EQ(create_qp_ex_result([&](auto& i) { i.recv_cq = foreign.get(); }), EINVAL);
}

TEST_F(BadArguments, CreateSrq) {
  const auto result = [&](uint32_t depth, uint32_t sges) {
    ibv_srq_init_attr init = {nullptr, {depth, sges, 0}};
    errno = 0;
    Srq srq(ibv_create_srq(pd_.get(), &init));
    return srq == nullptr ? errno : 0;
  };
  EXPECT_EQ(result(16384, 1), 0);
  EXPECT_EQ(result(16385, 1), EINVAL);
  EXPECT_EQ(result(0, 1), EINVAL);
  EXPECT_EQ(result(16, 32), 0);
  EXPECT_EQ(result(16, 33), EINVAL);
}

TEST_F(BadArguments, GrantedCapacitiesAreReported) {
  ibv_qp_init_attr init = init_attributes(cq_.get());
  init.cap = {100, 200, 3, 5, 77};
  init.sq_sig_all = 1;
  Qp qp(ibv_create_qp(pd_.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_GE(init.cap.max_send_wr, 100u);
  EXPECT_GE(init.cap.max_recv_wr, 200u);
  EXPECT_GE(init.cap.max_send_sge, 3u);
  EXPECT_GE(init.cap.max_recv_sge, 5u);
  EXPECT_GE(init.cap.max_inline_data, 77u);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr queried = {};
  ASSERT_EQ(ibv_query_qp(qp.get(), &attr, IBV_QP_CAP, &queried), 0);
  EXPECT_EQ(std::memcmp(&attr.cap, &init.cap, sizeof init.cap), 0);
  EXPECT_EQ(std::memcmp(&queried.cap, &init.cap, sizeof init.cap), 0);
  EXPECT_EQ(queried.send_cq, cq_.get());
  EXPECT_EQ(queried.recv_cq, cq_.get());
  EXPECT_EQ(queried.qp_type, IBV_QPT_RC);
  EXPECT_EQ(queried.sq_sig_all, 1);
}

TEST_F(BadArguments, StatesThatCannotFollow) {
  const Address nobody = {};
  {
    Qp qp = make_qp();
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_RTR), EINVAL) << "RESET to RTR";
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_RTS), EINVAL) << "RESET to RTS";
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_INIT), EINVAL) << "nothing that INIT needs";
    EXPECT_EQ(to_rtr(qp.get(), nobody), EINVAL);
    EXPECT_EQ(to_rts(qp.get(), 0), EINVAL);
    EXPECT_EQ(state_of(qp.get()), roce() ? IBV_QPS_RESET : IBV_QPS_INIT) << "RNICs have no RESET";
  }
  {
    Qp qp = make_qp();
    ASSERT_EQ(to_init(qp.get()), 0);
    EXPECT_EQ(to_rts(qp.get(), 0), EINVAL) << "INIT to RTS";
    EXPECT_EQ(to_state(qp.get(), IBV_QPS_RTR), EINVAL) << "no address";
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_INIT);
  }
}

TEST_F(BadArguments, ModifyValues) {
  Qp qp = make_qp();
  const auto init_with = [&](const std::function<void(ibv_qp_attr&)>& spoil, int more = 0) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    spoil(attr);
    return ibv_modify_qp(
        qp.get(), &attr,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | more);
  };
  EXPECT_EQ(init_with([](auto& a) { a.port_num = 0; }), EINVAL);
  EXPECT_EQ(init_with([](auto& a) { a.port_num = 2; }), EINVAL);
  EXPECT_EQ(init_with([](auto& a) { a.pkey_index = 1; }), EINVAL);
  EXPECT_EQ(init_with([](auto& a) { std::memset(&a.qp_state, 0x11, sizeof a.qp_state); }), EINVAL);
  EXPECT_EQ(init_with([](auto&) {}, IBV_QP_QKEY), EINVAL);
  EXPECT_EQ(init_with([](auto&) {}, IBV_QP_ALT_PATH), EINVAL);
  EXPECT_EQ(init_with([](auto&) {}, 1 << 30), EOPNOTSUPP);
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(qp.get(), &receive, &bad), EINVAL) << "still in RESET";
  EXPECT_EQ(init_with([](auto&) {}), 0);
  EXPECT_EQ(state_of(qp.get()), IBV_QPS_INIT);
}

// Drivers of RNICs take what moves nothing; the kernel's table for InfiniBand does not.
TEST_F(BadArguments, WhatModifyTolerates) {
  const int tolerated = roce() ? EINVAL : 0;
  Qp qp = make_qp();
  ASSERT_EQ(to_init(qp.get()), 0);
  EXPECT_EQ(to_init(qp.get()), 0) << "INIT again";
  ibv_qp_attr attr = {};
  attr.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_PORT), 0);
  attr.min_rnr_timer = 10;
  EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_MIN_RNR_TIMER), tolerated);
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_SQD), tolerated) << "SQD in any state";
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_SQD), tolerated);
  EXPECT_EQ(state_of(qp.get()), IBV_QPS_ERR) << "ERR stays ERR";
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0);
  EXPECT_EQ(state_of(qp.get()), IBV_QPS_RESET);
  EXPECT_EQ(to_init(qp.get()), 0) << "and may be used again";
}

TEST_F(BadArguments, QueryReturnsWhatWasSet) {
  End peer(context());
  Qp qp = make_qp();
  ASSERT_EQ(to_init(qp.get(), IBV_ACCESS_REMOTE_READ), 0);
  const Address address = peer.address();
  ASSERT_EQ(to_rtr(qp.get(), address), 0);
  ASSERT_EQ(to_rts(qp.get(), 0x123456, {10, 3}), 0);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(qp.get(), &attr, IBV_QP_RATE_LIMIT - 1, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attr.dest_qp_num, address.qpn);
  EXPECT_EQ(attr.rq_psn, address.psn);
  EXPECT_EQ(attr.sq_psn, 0x123456u);
  EXPECT_EQ(attr.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(attr.port_num, 1);
  EXPECT_EQ(attr.max_rd_atomic, 16);
  EXPECT_EQ(attr.max_dest_rd_atomic, 16);
  EXPECT_EQ(attr.min_rnr_timer, 12);
  EXPECT_EQ(attr.timeout, 10);
  EXPECT_EQ(attr.retry_cnt, 3);
  EXPECT_EQ(attr.rnr_retry, 7);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 1);
  EXPECT_EQ(std::memcmp(&attr.ah_attr.grh.dgid, &address.gid, sizeof address.gid), 0);
}

}  // namespace
