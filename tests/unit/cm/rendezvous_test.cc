// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pairs that connect without rdma_cm, over real sockets on the loopback interface.
#include "cm/rendezvous.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "unit/cm/node.h"

namespace uwarp {
namespace {

using namespace std::chrono_literals;

void expect_traffic(Node& a, Node& b, bool polling = true) {
  std::memset(b.memory.data(), 0, 8192);
  std::memcpy(a.memory.data(), "over the wire", 13);
  ASSERT_EQ(b.post_recv(7, 4096, 64), 0);
  ASSERT_EQ(a.post_send(8, 0, 13), 0);
  const WorkCompletion sent = polling ? a.wait_polling() : a.wait_passive();
  EXPECT_EQ(sent.wr_id, 8u);
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
  const WorkCompletion received = polling ? b.wait_polling() : b.wait_passive();
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(received.byte_len, 13u);
  EXPECT_EQ(std::memcmp(b.memory.data() + 4096, "over the wire", 13), 0);
}

TEST(Rendezvous, BothReadyBeforeTheFirstRequest) {
  Node a, b;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(b.init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(b.rts(), 0);
  expect_traffic(a, b);
  expect_traffic(b, a);
  expect_traffic(a, b, false);
  EXPECT_TRUE(a.events().empty());
  EXPECT_TRUE(b.events().empty());
}

TEST(Rendezvous, OneSideStaysInRtr) {
  for (const bool a_dials : {true, false}) {
    Node first, second;
    Node& a = a_dials ? first : second;
    Node& b = a_dials ? second : first;
    ASSERT_EQ(a.init(), 0);
    ASSERT_EQ(b.init(), 0);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    expect_traffic(a, b);
    EXPECT_EQ(b.state(), QpState::kRtr) << "as far as the application moved it";
    ASSERT_EQ(b.rts(), 0);
    EXPECT_EQ(b.state(), QpState::kRts);
    expect_traffic(b, a);
  }
}

TEST(Rendezvous, CallsAreHeldBelowRtrAndRequestsWait) {
  for (const bool listens_first : {true, false}) {
    Node a, b;
    ASSERT_EQ(a.init(), 0);
    if (listens_first) {
      ASSERT_EQ(b.init(), 0);
    }
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    std::memcpy(a.memory.data(), "early", 5);
    ASSERT_EQ(a.post_send(1, 0, 5), 0);
    std::this_thread::sleep_for(100ms);
    if (!listens_first) {
      ASSERT_EQ(b.init(), 0);
    }
    ASSERT_EQ(b.post_recv(2, 0, 64), 0);
    std::this_thread::sleep_for(20ms);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    EXPECT_EQ(b.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(a.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(b.memory.data(), "early", 5), 0);
  }
}

TEST(Rendezvous, ReadsAndWritesBothWays) {
  Node a, b;
  for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(b.rts(), 0);
  ASSERT_EQ(a.rts(), 0);
  for (size_t i = 0; i < 200'000; ++i) a.memory[i] = static_cast<std::byte>(i * 7);
  ASSERT_EQ(a.post_rdma(SendOpcode::kWrite, 1, 0, 200'000, b, 1000), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  ASSERT_EQ(a.post_rdma(SendOpcode::kRead, 2, 200'000, 50'000, b, 1000), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  // A receive at the target says that the Writes before it are in memory.
  ASSERT_EQ(b.post_recv(3, 0, 0), 0);
  ASSERT_EQ(a.post_send(4, 0, 0), 0);
  EXPECT_EQ(b.wait_polling().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data() + 1000, 200'000), 0);
  EXPECT_EQ(std::memcmp(a.memory.data(), a.memory.data() + 200'000, 50'000), 0);
}

TEST(Rendezvous, BothDialAtTheSameTimeManyTimes) {
  for (int round = 0; round < 50; ++round) {
    Node a, b;
    for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
    const auto connect = [](Node& self, Node& peer) {
      ASSERT_EQ(self.rtr(peer.endpoint->number()), 0);
      ASSERT_EQ(self.rts(), 0);
    };
    std::thread other([&] { connect(b, a); });
    connect(a, b);
    other.join();
    expect_traffic(a, b);
    expect_traffic(b, a);
    if (HasFailure()) FAIL() << "in round " << round;
  }
}

TEST(Rendezvous, ToItself) {
  Node a;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(a.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(a.post_recv(1, 4096, 64), 0);
  std::memcpy(a.memory.data(), "to myself", 9);
  ASSERT_EQ(a.post_send(2, 0, 9), 0);
  bool sent = false, received = false;
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion done = a.wait_polling();
    EXPECT_EQ(done.status, WcStatus::kSuccess);
    (done.wr_id == 1 ? received : sent) = true;
  }
  EXPECT_TRUE(sent && received);
  EXPECT_EQ(std::memcmp(a.memory.data() + 4096, "to myself", 9), 0);
  ASSERT_EQ(a.post_rdma(SendOpcode::kRead, 3, 8192, 9, a, 0), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(a.memory.data() + 8192, "to myself", 9), 0);
}

TEST(Rendezvous, NobodyAnswers) {
  Node a;
  uint32_t nowhere;
  {
    Node gone;
    nowhere = gone.endpoint->number().value;
  }
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(a.rtr(Qpn{nowhere}), 0);
  ASSERT_EQ(a.rts(1), 0);
  EXPECT_EQ(a.state(), QpState::kRts);
  ASSERT_EQ(a.post_recv(1, 0, 8), 0);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  ASSERT_EQ(a.post_send(3, 0, 8), 0);
  // Receives and sends have no order among each other.
  std::map<uint64_t, WcStatus> found;
  for (int i = 0; i < 3; ++i) {
    const WorkCompletion completion = a.wait_passive();
    found[completion.wr_id] = completion.status;
  }
  EXPECT_EQ(a.state(), QpState::kErr);
  const std::map<uint64_t, WcStatus> expected = {
      {1, WcStatus::kWrFlushErr}, {2, WcStatus::kRetryExcErr}, {3, WcStatus::kWrFlushErr}};
  EXPECT_EQ(found, expected);
}

TEST(Rendezvous, WrongPsnIsRefused) {
  Node a, b;
  for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number(), 0x777777), 0);
  ASSERT_EQ(a.rts(1), 0);
  ASSERT_EQ(a.post_send(1, 0, 8), 0);
  EXPECT_EQ(a.wait_passive().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(b.state(), QpState::kRtr);
}

TEST(Rendezvous, AnEndInOrderIsSilent) {
  Node a;
  {
    Node b;
    for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    ASSERT_EQ(b.rts(), 0);
    expect_traffic(a, b);
    ASSERT_EQ(a.post_recv(1, 0, 8), 0);
  }
  std::this_thread::sleep_for(50ms);
  WorkCompletion none;
  EXPECT_FALSE(a.poll(none)) << "no flush";
  EXPECT_TRUE(a.events().empty()) << "no event";
  EXPECT_EQ(a.state(), QpState::kRts);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  const WorkCompletion first = a.wait_polling(), second = a.wait_polling();
  EXPECT_TRUE(first.status == WcStatus::kRetryExcErr || second.status == WcStatus::kRetryExcErr);
  EXPECT_EQ(a.state(), QpState::kErr);
}

TEST(Rendezvous, DestroyInEveryState) {
  for (int depth = 0; depth < 4; ++depth) {
    Node a, b;
    if (depth >= 1) {
      ASSERT_EQ(a.init(), 0);
    }
    if (depth >= 2) {
      ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    }
    if (depth >= 3) {
      ASSERT_EQ(a.rts(), 0);
    }
    a.endpoint->destroy();
    a.endpoint->destroy();
    EXPECT_EQ(a.engine.find(a.endpoint->number()), nullptr);
    EXPECT_EQ(a.init(), EINVAL);
  }
}

TEST(Rendezvous, ResetAndConnectAgain) {
  Node a, b;
  for (int round = 0; round < 3; ++round) {
    for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    ASSERT_EQ(b.rts(), 0);
    expect_traffic(a, b);
    expect_traffic(b, a);
    for (Node* node : {&a, &b}) ASSERT_EQ(node->move(QpState::kReset), 0);
    EXPECT_EQ(a.state(), QpState::kReset);
  }
}

TEST(Rendezvous, ManyQueuePairsOfOneProcess) {
  constexpr int kPairs = 150;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 2 * kPairs; ++i) nodes.push_back(std::make_unique<Node>(4, 4));
  for (auto& node : nodes) ASSERT_EQ(node->init(), 0);
  for (int i = 0; i < kPairs; ++i) {
    ASSERT_EQ(nodes[2 * i]->rtr(nodes[2 * i + 1]->endpoint->number()), 0);
    ASSERT_EQ(nodes[2 * i + 1]->rtr(nodes[2 * i]->endpoint->number()), 0);
  }
  for (auto& node : nodes) ASSERT_EQ(node->rts(), 0);
  for (int i = 0; i < kPairs; ++i) {
    expect_traffic(*nodes[2 * i], *nodes[2 * i + 1]);
    expect_traffic(*nodes[2 * i + 1], *nodes[2 * i]);
    if (HasFailure()) FAIL() << "pair " << i;
  }
}

TEST(RendezvousMessage, RoundTripAndRefusals) {
  RendezvousCall call{.source = Qpn{0x123456}, .target = Qpn{0xABCDEF}, .psn = 0x654321};
  const auto octets = call.encode();
  ASSERT_EQ(octets.size(), RendezvousCall::kWireSize);
  const auto decoded = RendezvousCall::decode(octets);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->source, call.source);
  EXPECT_EQ(decoded->target, call.target);
  EXPECT_EQ(decoded->psn, call.psn);
  for (size_t size = 0; size < octets.size(); ++size)
    EXPECT_FALSE(RendezvousCall::decode(std::span(octets).first(size)).has_value());
  auto longer = octets;
  longer.resize(40);
  EXPECT_TRUE(RendezvousCall::decode(longer).has_value()) << "room for a later version's fields";
  auto newer = octets;
  newer[4] = std::byte{2};
  EXPECT_FALSE(RendezvousCall::decode(newer).has_value());
  RendezvousAnswer answer;
  answer.verdict = RendezvousVerdict::kCollision;
  EXPECT_EQ(RendezvousAnswer::decode(answer.encode())->verdict, RendezvousVerdict::kCollision);
}

}  // namespace
}  // namespace uwarp
