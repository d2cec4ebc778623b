// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The state and mask table of ibv_modify_qp, by itself and through Endpoint::modify().
#include "connect/qp_attributes.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "unit/connect/node.h"

namespace uwarp {
namespace {

constexpr uint32_t kInit = Node::kInitMask, kRtr = Node::kRtrMask, kRts = Node::kRtsMask;

TEST(QpAttributes, RequiredBitsAreRequired) {
  const struct {
    QpState from, to;
    uint32_t mask;
  } rows[] = {{QpState::kReset, QpState::kInit, kInit},
              {QpState::kInit, QpState::kRtr, kRtr},
              {QpState::kRtr, QpState::kRts, kRts}};
  for (const auto& row : rows) {
    EXPECT_TRUE(transition_allowed(Transport::kRc, row.from, row.to, row.mask));
    for (uint32_t bit = 2; bit < 1u << 21; bit <<= 1) {
      if ((row.mask & bit) != 0) {
        EXPECT_FALSE(transition_allowed(Transport::kRc, row.from, row.to, row.mask & ~bit)) << bit;
      }
    }
    EXPECT_FALSE(transition_allowed(Transport::kRc, row.from, row.to, row.mask | kAttrQkey));
  }
}

// The required attributes of each transport, and a bit that none of its steps accepts.
TEST(QpAttributes, EachTransportHasItsTable) {
  const uint32_t peer = kAttrAddress | kAttrPathMtu | kAttrDestQpn | kAttrRqPsn;
  const uint32_t init = kAttrPkeyIndex | kAttrPort;
  const uint32_t retries = kAttrTimeout | kAttrRetryCount | kAttrRnrRetry;
  const struct {
    Transport transport;
    uint32_t init, rtr, rts, never;
  } rows[] = {
      {Transport::kUc, init | kAttrAccess, peer, kAttrSqPsn, kAttrTimeout},
      {Transport::kUd, init | kAttrQkey, 0, kAttrSqPsn, kAttrAccess},
      {Transport::kXrcSend, init | kAttrAccess, peer, kAttrSqPsn | retries | kAttrMaxRdAtomic,
       kAttrMaxDestRdAtomic},
      {Transport::kXrcReceive, init | kAttrAccess, peer | kAttrMaxDestRdAtomic | kAttrMinRnrTimer,
       kAttrSqPsn | kAttrTimeout, kAttrMaxRdAtomic},
  };
  for (const auto& row : rows) {
    const struct {
      QpState from, to;
      uint32_t mask;
    } steps[] = {{QpState::kReset, QpState::kInit, row.init},
                 {QpState::kInit, QpState::kRtr, row.rtr},
                 {QpState::kRtr, QpState::kRts, row.rts}};
    for (const auto& step : steps) {
      EXPECT_TRUE(transition_allowed(row.transport, step.from, step.to, step.mask));
      EXPECT_FALSE(transition_allowed(row.transport, step.from, step.to, step.mask | row.never));
      for (uint32_t bit = 2; bit < 1u << 21; bit <<= 1) {
        if ((step.mask & bit) == 0) continue;
        EXPECT_FALSE(transition_allowed(row.transport, step.from, step.to, step.mask & ~bit))
            << bit;
      }
    }
  }
}

// Like the kernel: perftest gives both halves all attributes of a reliable connection.
TEST(QpAttributes, WhatIsIgnoredOfHalves) {
  const uint32_t rtr = kAttrMaxDestRdAtomic | kAttrMinRnrTimer;
  const uint32_t rts = kAttrMaxRdAtomic | kAttrRetryCount | kAttrRnrRetry;
  const uint32_t all = rtr | rts | kAttrTimeout;
  EXPECT_EQ(meaningful_mask(Transport::kXrcSend, all), rts | kAttrTimeout);
  EXPECT_EQ(meaningful_mask(Transport::kXrcReceive, all), rtr | kAttrTimeout);
  EXPECT_EQ(meaningful_mask(Transport::kRc, all), all);
}

TEST(QpAttributes, OnlyForwardSteps) {
  const QpState states[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                            QpState::kSqd,   QpState::kSqe,  QpState::kErr};
  int allowed = 0;
  for (const QpState from : states) {
    EXPECT_TRUE(transition_allowed(Transport::kRc, from, QpState::kReset, kAttrState));
    EXPECT_TRUE(transition_allowed(Transport::kRc, from, QpState::kErr, kAttrState));
    for (const QpState to : states)
      if (to != QpState::kReset && to != QpState::kErr &&
          transition_allowed(Transport::kRc, from, to, kAttrState))
        ++allowed;
  }
  // INIT to INIT, RTS to RTS, RTS to SQD, SQD to RTS, SQD to SQD, SQE to RTS.
  EXPECT_EQ(allowed, 6);
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kReset, QpState::kRtr, kRtr));
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kInit, QpState::kRts, kRts));
  EXPECT_FALSE(transition_allowed(Transport::kRc, QpState::kErr, QpState::kInit, kInit));
}

TEST(QpAttributes, Ranges) {
  QpAttributes attributes;
  EXPECT_TRUE(attributes_in_range(attributes, kInit | kRtr | kRts));
  attributes.port = 2;
  EXPECT_FALSE(attributes_in_range(attributes, kInit));
  EXPECT_TRUE(attributes_in_range(attributes, kRtr)) << "not in the mask, so not checked";
  attributes = {};
  attributes.max_rd_atomic = 129;
  EXPECT_FALSE(attributes_in_range(attributes, kRts));
  attributes = {};
  attributes.path_mtu = 6;
  EXPECT_FALSE(attributes_in_range(attributes, kRtr));
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
  const QpAttributes all = node.endpoint->attributes();
  EXPECT_EQ(all.state, QpState::kRts);
  EXPECT_EQ(all.dest_qp_num, 0x123456u);
  EXPECT_EQ(all.timeout, 14);
  EXPECT_EQ(all.retry_count, 7);
  EXPECT_EQ(all.sq_psn, 0x123456u);
  EXPECT_EQ(all.max_dest_rd_atomic, 4);
}

TEST(EndpointModify, SqdAndBackToRts) {
  Node node;
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.rtr(Qpn{0x123456}), 0);
  ASSERT_EQ(node.rts(), 0);
  QpAttributes attributes;
  attributes.state = QpState::kSqd;
  attributes.notify_drained = true;
  ASSERT_EQ(node.endpoint->modify(attributes, kAttrState | kAttrNotifyDrained), 0);
  EXPECT_EQ(node.state(), QpState::kSqd);
  EXPECT_EQ(node.events(), std::vector{QpEvent::kSqDrained});
  ASSERT_EQ(node.move(QpState::kRts), 0);
  EXPECT_EQ(node.state(), QpState::kRts);
}

// Only librdmacm goes to INIT without PKEY_INDEX. From then on only rdma_cm may connect the queue
// pair.
TEST(EndpointModify, RdmaCmKnowsNoPeersNumber) {
  constexpr uint32_t kCmMask = kAttrState | kAttrAccess | kAttrPort;
  QpAttributes attributes;
  attributes.state = QpState::kInit;
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
  QpAttributes attributes;
  attributes.state = QpState::kRtr;
  Node node;
  EXPECT_EQ(node.endpoint->modify(attributes, kAttrState | kAttrAccess | kAttrPort), EINVAL);
  ASSERT_EQ(node.init(), 0);
  ASSERT_EQ(node.rtr(Qpn{0x123456}), 0);
  EXPECT_EQ(node.init(), EINVAL) << "accepted for a queue pair that rdma_cm connects";
}

TEST(EndpointModify, AddressesAreChecked) {
  Node node;
  ASSERT_EQ(node.init(), 0);
  QpAttributes attributes;
  attributes.state = QpState::kRtr;
  EXPECT_EQ(node.endpoint->modify(attributes, kRtr), EINVAL) << "no address vector";
  attributes.has_address = true;
  EXPECT_EQ(node.endpoint->modify(attributes, kRtr), EINVAL) << "no GID";
  attributes.dgid[15] = 1;
  attributes.sgid_index = 7;
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
