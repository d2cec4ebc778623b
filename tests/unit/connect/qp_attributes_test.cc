// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The state and mask table of ibv_modify_qp, by itself and through Endpoint::modify().
#include "connect/qp_attributes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "unit/connect/node.h"

namespace uwarp {
namespace {

/// Puts a number into an enum that has no such value, like a faulty program.
template <typename Enum>
void spoil_enum(Enum& target, unsigned value) {
  std::memcpy(&target, &value, sizeof value);
}

constexpr int kInit = Node::kInitMask, kRtr = Node::kRtrMask, kRts = Node::kRtsMask;

TEST(QpAttributes, RequiredBitsAreRequired) {
  const struct {
    QpState from, to;
    int mask;
  } rows[] = {{QpState::kReset, QpState::kInit, kInit},
              {QpState::kInit, QpState::kRtr, kRtr},
              {QpState::kRtr, QpState::kRts, kRts}};
  for (const auto& row : rows) {
    EXPECT_TRUE(transition_allowed(Transport::kRc, row.from, row.to, row.mask));
    for (int bit = 2; bit < 1 << 21; bit <<= 1) {
      if ((row.mask & bit) != 0) {
        EXPECT_FALSE(transition_allowed(Transport::kRc, row.from, row.to, row.mask & ~bit)) << bit;
      }
    }
    EXPECT_FALSE(transition_allowed(Transport::kRc, row.from, row.to, row.mask | IBV_QP_QKEY));
  }
}

// The required attributes of each transport, and a bit that none of its steps accepts.
TEST(QpAttributes, EachTransportHasItsTable) {
  const int peer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  const int retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  const struct {
    Transport transport;
    int init, rtr, rts, never;
  } rows[] = {
      {Transport::kUc, init | IBV_QP_ACCESS_FLAGS, peer, IBV_QP_SQ_PSN, IBV_QP_TIMEOUT},
      {Transport::kUd, init | IBV_QP_QKEY, 0, IBV_QP_SQ_PSN, IBV_QP_ACCESS_FLAGS},
      {Transport::kXrcSend, init | IBV_QP_ACCESS_FLAGS, peer,
       IBV_QP_SQ_PSN | retries | IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC},
      {Transport::kXrcReceive, init | IBV_QP_ACCESS_FLAGS,
       peer | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
       IBV_QP_MAX_QP_RD_ATOMIC},
  };
  for (const auto& row : rows) {
    const struct {
      QpState from, to;
      int mask;
    } steps[] = {{QpState::kReset, QpState::kInit, row.init},
                 {QpState::kInit, QpState::kRtr, row.rtr},
                 {QpState::kRtr, QpState::kRts, row.rts}};
    for (const auto& step : steps) {
      EXPECT_TRUE(transition_allowed(row.transport, step.from, step.to, step.mask));
      EXPECT_FALSE(transition_allowed(row.transport, step.from, step.to, step.mask | row.never));
      for (int bit = 2; bit < 1 << 21; bit <<= 1) {
        if ((step.mask & bit) == 0) continue;
        EXPECT_FALSE(transition_allowed(row.transport, step.from, step.to, step.mask & ~bit))
            << bit;
      }
    }
  }
}

// Like the kernel: perftest gives both halves all attributes of a reliable connection.
TEST(QpAttributes, WhatIsIgnoredOfHalves) {
  const int rtr = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const int rts = IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  const int all = rtr | rts | IBV_QP_TIMEOUT;
  EXPECT_EQ(meaningful_mask(Transport::kXrcSend, all), rts | IBV_QP_TIMEOUT);
  EXPECT_EQ(meaningful_mask(Transport::kXrcReceive, all), rtr | IBV_QP_TIMEOUT);
  EXPECT_EQ(meaningful_mask(Transport::kRc, all), all);
}

TEST(QpAttributes, OnlyForwardSteps) {
  const QpState states[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                            QpState::kSqd,   QpState::kSqe,  QpState::kErr};
  int allowed = 0;
  for (const QpState from : states) {
    for (const QpState to : states)
      if (transition_allowed(Transport::kRc, from, to, IBV_QP_STATE)) ++allowed;
  }
  // INIT to INIT, RTS to RTS, RTS to SQD, SQD to RTS, SQD to SQD, SQE to RTS.
  EXPECT_EQ(allowed, 6);
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kReset, QpState::kRtr, kRtr));
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kInit, QpState::kRts, kRts));
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kErr, QpState::kInit, kInit));
}

ibv_qp_attr valid_attributes() {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_RTR;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = 0xabcdef;
  attr.rq_psn = 0x123456;
  attr.sq_psn = 0x654321;
  attr.max_rd_atomic = kMaxRdAtom;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 31;
  attr.timeout = 31;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.sgid_index = 3;
  attr.ah_attr.grh.traffic_class = 9;
  for (int i = 0; i < 16; ++i) attr.ah_attr.grh.dgid.raw[i] = static_cast<uint8_t>(i);
  return attr;
}

constexpr int kAllBits = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PORT | IBV_QP_PATH_MTU |
                         IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_TIMEOUT |
                         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_ACCESS_FLAGS | IBV_QP_AV |
                         IBV_QP_PKEY_INDEX;

TEST(QpAttributes, WhatIsNamedIsTaken) {
  const ibv_qp_attr attr = valid_attributes();
  EXPECT_EQ(check_attributes(attr, kAllBits), 0);
  ibv_qp_attr back = {};
  merge_attributes(back, attr, kAllBits);
  EXPECT_EQ(back.qp_state, attr.qp_state);
  EXPECT_EQ(back.path_mtu, attr.path_mtu);
  EXPECT_EQ(back.dest_qp_num, attr.dest_qp_num);
  EXPECT_EQ(back.rq_psn, attr.rq_psn);
  EXPECT_EQ(back.sq_psn, attr.sq_psn);
  EXPECT_EQ(back.max_rd_atomic, attr.max_rd_atomic);
  EXPECT_EQ(back.max_dest_rd_atomic, attr.max_dest_rd_atomic);
  EXPECT_EQ(back.min_rnr_timer, attr.min_rnr_timer);
  EXPECT_EQ(back.timeout, attr.timeout);
  EXPECT_EQ(back.retry_cnt, attr.retry_cnt);
  EXPECT_EQ(back.rnr_retry, attr.rnr_retry);
  EXPECT_EQ(back.qp_access_flags, attr.qp_access_flags);
  EXPECT_EQ(back.ah_attr.grh.sgid_index, attr.ah_attr.grh.sgid_index);
  EXPECT_EQ(back.ah_attr.grh.traffic_class, attr.ah_attr.grh.traffic_class);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(back.ah_attr.grh.dgid.raw[i], i);
}

TEST(QpAttributes, OnlyWhatTheMaskNamesIsLookedAt) {
  ibv_qp_attr attr = {};
  attr.port_num = 77;
  attr.timeout = 99;
  attr.dest_qp_num = ~0u;
  attr.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(check_attributes(attr, IBV_QP_STATE), 0);
  ibv_qp_attr taken = {};
  merge_attributes(taken, attr, IBV_QP_STATE);
  EXPECT_EQ(taken.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(taken.dest_qp_num, 0u);
}

TEST(QpAttributes, ValuesOutOfRangeAreRefused) {
  struct Row {
    const char* what;
    int bit;
    std::function<void(ibv_qp_attr&)> spoil;
  };
  const Row rows[] = {
      {"state", IBV_QP_STATE, [](auto& a) { spoil_enum(a.qp_state, 7); }},
      {"port 0", IBV_QP_PORT, [](auto& a) { a.port_num = 0; }},
      {"port 2", IBV_QP_PORT, [](auto& a) { a.port_num = 2; }},
      {"pkey", IBV_QP_PKEY_INDEX, [](auto& a) { a.pkey_index = 1; }},
      {"mtu 0", IBV_QP_PATH_MTU, [](auto& a) { spoil_enum(a.path_mtu, 0); }},
      {"mtu 6", IBV_QP_PATH_MTU, [](auto& a) { spoil_enum(a.path_mtu, 6); }},
      {"migration", IBV_QP_PATH_MIG_STATE, [](auto& a) { a.path_mig_state = IBV_MIG_ARMED; }},
      {"qpn", IBV_QP_DEST_QPN, [](auto& a) { a.dest_qp_num = 1 << 24; }},
      {"ord", IBV_QP_MAX_QP_RD_ATOMIC, [](auto& a) { a.max_rd_atomic = kMaxRdAtom + 1; }},
      {"ird", IBV_QP_MAX_DEST_RD_ATOMIC, [](auto& a) { a.max_dest_rd_atomic = 255; }},
      {"timeout", IBV_QP_TIMEOUT, [](auto& a) { a.timeout = 32; }},
      {"retries", IBV_QP_RETRY_CNT, [](auto& a) { a.retry_cnt = 8; }},
      {"rnr retries", IBV_QP_RNR_RETRY, [](auto& a) { a.rnr_retry = 8; }},
      {"address port", IBV_QP_AV, [](auto& a) { a.ah_attr.port_num = 2; }},
      {"gid index", IBV_QP_AV, [](auto& a) { a.ah_attr.grh.sgid_index = kGidTableEntries; }},
  };
  for (const Row& row : rows) {
    ibv_qp_attr attr = valid_attributes();
    row.spoil(attr);
    EXPECT_EQ(check_attributes(attr, row.bit), EINVAL) << row.what;
    EXPECT_EQ(check_attributes(attr, kAllBits & ~row.bit), 0) << row.what;
  }
}

TEST(QpAttributes, FiveBitsOfTheRnrTimerCount) {
  ibv_qp_attr attr = valid_attributes();
  ibv_qp_attr taken = {};
  for (const auto& [named, counts] : {std::pair{0x20, 0}, {0x3f, 31}, {0xec, 12}}) {
    attr.min_rnr_timer = static_cast<uint8_t>(named);
    EXPECT_EQ(check_attributes(attr, IBV_QP_MIN_RNR_TIMER), 0) << named;
    merge_attributes(taken, attr, IBV_QP_MIN_RNR_TIMER);
    EXPECT_EQ(taken.min_rnr_timer, counts);
  }
}

TEST(QpAttributes, MaskBitsThatDoNotExistHere) {
  const ibv_qp_attr attr = valid_attributes();
  EXPECT_EQ(check_attributes(attr, IBV_QP_STATE | 1 << 30), EOPNOTSUPP);
  EXPECT_EQ(check_attributes(attr, IBV_QP_ALT_PATH), EINVAL);
  EXPECT_EQ(check_attributes(attr, IBV_QP_CAP), EINVAL);
  EXPECT_EQ(check_attributes(attr, IBV_QP_RATE_LIMIT), EOPNOTSUPP);
}

// The kernel has a table for all but RNICs.
TEST(QpAttributes, OnlyRnicsAreToldLittle) {
  const struct {
    QpState from;
    ibv_qp_state to;
    int mask;
  } rows[] = {{QpState::kReset, IBV_QPS_INIT, IBV_QP_ACCESS_FLAGS | IBV_QP_PORT},
              {QpState::kReset, IBV_QPS_ERR, 0},
              {QpState::kRts, IBV_QPS_ERR, IBV_QP_PORT},
              {QpState::kRts, IBV_QPS_RESET, IBV_QP_PORT},
              {QpState::kRtr, IBV_QPS_RTR, kRtr},
              {QpState::kRtr, IBV_QPS_SQD, 0}};
  for (const auto& row : rows) {
    ibv_qp_attr attributes{};
    attributes.qp_state = row.to;
    QpToChange qp{.transport = Transport::kRc, .state = row.from, .may_be_cms = true};
    EXPECT_EQ(change_of(qp, attributes, IBV_QP_STATE | row.mask), QpChange::kRefuse) << row.to;
    qp.is_rnic = true;
    EXPECT_NE(change_of(qp, attributes, IBV_QP_STATE | row.mask), QpChange::kRefuse) << row.to;
  }
}

TEST(EndpointModify, EveryStateAcceptsSqdAndNothingComesOfIt) {
  Node node;
  EXPECT_EQ(node.move(QpState::kSqd), 0);
  EXPECT_EQ(node.state(), QpState::kReset);
  ASSERT_EQ(node.init(), 0);
  EXPECT_EQ(node.move(QpState::kSqd), 0);
  EXPECT_EQ(node.state(), QpState::kInit);
  ASSERT_EQ(node.move(QpState::kErr), 0);
  EXPECT_EQ(node.move(QpState::kSqd), 0);
  EXPECT_EQ(node.state(), QpState::kErr);
}

TEST(EndpointModify, RepeatsAndForbiddenSteps) {
  Node node;
  EXPECT_EQ(node.rtr(Qpn{0x123456}), EINVAL);
  EXPECT_EQ(node.rts(), EINVAL);
  ASSERT_EQ(node.init(), 0);
  EXPECT_EQ(node.init(), 0);
  EXPECT_EQ(node.rts(), EINVAL);
  ASSERT_EQ(node.rtr(Qpn{0x123456}), 0);
  EXPECT_EQ(node.rtr(Qpn{0x123456}), 0);
  EXPECT_EQ(node.init(), EINVAL);
  ASSERT_EQ(node.rts(), 0);
  EXPECT_EQ(node.rtr(Qpn{0x123456}), EINVAL);
  const ibv_qp_attr all = node.endpoint->attributes();
  EXPECT_EQ(all.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(all.dest_qp_num, 0x123456u);
  EXPECT_EQ(all.timeout, 14);
  EXPECT_EQ(all.retry_cnt, 7);
  EXPECT_EQ(all.sq_psn, 0x123456u);
  EXPECT_EQ(all.max_dest_rd_atomic, 4);
}

TEST(EndpointModify, SqdAndBackToRts) {
  Node node;
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.rtr(Qpn{0x123456}), 0);
  ASSERT_EQ(node.rts(), 0);
  ibv_qp_attr attributes = initial_attributes();
  attributes.qp_state = IBV_QPS_SQD;
  attributes.en_sqd_async_notify = 1;
  ASSERT_EQ(node.endpoint->modify(attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  EXPECT_EQ(node.state(), QpState::kSqd);
  EXPECT_EQ(node.events(), std::vector{QpEvent::kSqDrained});
  ASSERT_EQ(node.move(QpState::kRts), 0);
  EXPECT_EQ(node.state(), QpState::kRts);
}

// Only librdmacm goes to INIT without PKEY_INDEX. From then on only rdma_cm may connect the queue
// pair.
TEST(EndpointModify, RdmaCmKnowsNoPeersNumber) {
  constexpr int kCmMask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT;
  ibv_qp_attr attributes = initial_attributes();
  attributes.qp_state = IBV_QPS_INIT;
  Node node;
  ASSERT_EQ(node.endpoint->modify(attributes, kCmMask), 0);
  EXPECT_EQ(node.rtr(Qpn{0x123456}), EINVAL);
  EXPECT_EQ(node.state(), QpState::kInit);
  EXPECT_EQ(node.rtr(Qpn{kCmPeerQpn}), 0) << "the number that librdmacm's InfiniBand code uses";
  EXPECT_EQ(node.rts(), 0);
  ASSERT_EQ(node.move(QpState::kReset), 0);
  ASSERT_EQ(node.init(), 0);
  EXPECT_EQ(node.rtr(Qpn{0x123456}), 0);
}

TEST(EndpointModify, WhatIsRefusedIsNotTakenForRdmaCms) {
  ibv_qp_attr attributes = initial_attributes();
  attributes.qp_state = IBV_QPS_RTR;
  Node node;
  EXPECT_EQ(node.endpoint->modify(attributes, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT),
            EINVAL);
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.rtr(Qpn{0x123456}), 0);
  EXPECT_EQ(node.init(), EINVAL) << "accepted for a queue pair that rdma_cm connects";
}

TEST(EndpointModify, AddressesAreChecked) {
  Node node;
  ASSERT_EQ(node.init(), 0);
  ibv_qp_attr attributes = initial_attributes();
  attributes.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(node.endpoint->modify(attributes, kRtr), EINVAL) << "no address vector";
  attributes.ah_attr.is_global = 1;
  EXPECT_EQ(node.endpoint->modify(attributes, kRtr), EINVAL) << "no GID";
  attributes.ah_attr.grh.dgid.raw[15] = 1;
  attributes.ah_attr.grh.sgid_index = 7;
  EXPECT_EQ(node.endpoint->modify(attributes, kRtr), ENODATA) << "the device has no such GID";
  EXPECT_EQ(node.state(), QpState::kInit);
}

TEST(EndpointModify, ResetForgetsAndErrorFlushes) {
  Node node;
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.post_recv(1, 0, 8), 0);
  ASSERT_EQ(node.move(QpState::kErr), 0);
  EXPECT_EQ(node.wait_polling().status, WcStatus::kWrFlushErr);
  ASSERT_EQ(node.move(QpState::kReset), 0);
  EXPECT_EQ(node.post_recv(1, 0, 8), EINVAL);
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.post_recv(2, 0, 8), 0);
  EXPECT_TRUE(node.events().empty());
}

TEST(EndpointModify, NumbersAreDistinctAndNameThePort) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 20; ++i) nodes.push_back(std::make_unique<Node>(1, 1));
  for (const auto& a : nodes) {
    EXPECT_GE(a->endpoint->number().value >> 8, 1024u);
    EXPECT_LT(a->endpoint->number().value, 1u << 24);
    EXPECT_EQ(a->engine.endpoints().find(a->endpoint->number()), a->endpoint);
    for (const auto& b : nodes) {
      if (a != b) {
        EXPECT_NE(a->endpoint->number(), b->endpoint->number());
      }
    }
  }
}

}  // namespace
}  // namespace uwarp
