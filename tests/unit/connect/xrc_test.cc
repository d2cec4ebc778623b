// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which pollers serve a receiving queue pair of XRC: those of the first shared receive queue that a
// message has named.
#include <gtest/gtest.h>

#include "stream/poller.h"
#include "unit/connect/node.h"

namespace uwarp {
namespace {

/// A shared receive queue of the XRC domain with its own completion queue.
struct SharedQueue {
  SharedQueue(Node& node, XrcDomain& domain, uint32_t number)
      : node(node), domain(domain), entry{number, &receives, &completions, &node.domain} {
    domain.enter(entry);
  }
  ~SharedQueue() { node.engine.remove_xrc_queue(domain, entry); }
  int post(uint64_t id) {
    const Sge sge = node.sge(0, 64);
    return receives.post(id, {&sge, 1});
  }
  /// Polls only the sockets that belong to this completion queue, until it has a completion.
  bool poll_directly() {
    WorkCompletion out;
    return eventually([&] {
      PollGroup* const group = PollGroup::find(completions);
      if (group != nullptr) (void)group->poll();
      return completions.poll(&out, 1) == 1;
    });
  }

  Node& node;
  XrcDomain& domain;
  SharedReceiveQueue receives{16, 1};
  CompletionQueue completions{64, nullptr};
  const XrcQueue entry;
};

struct XrcEndpoints : ::testing::Test {
  void SetUp() override {
    sender.replace([](QpConfig& config) {
      config.transport = Transport::kXrcSend;
      config.max_recv_wr = 0;
    });
    receiver.replace([this](QpConfig& config) {
      config.transport = Transport::kXrcReceive;
      config.xrc = &domain;
      config.domain = &domain.protection_domain();
      config.send_cq = config.recv_cq = &domain.no_completions();
      config.max_recv_wr = config.max_send_wr = 0;
    });
    for (Node* node : {&sender, &receiver}) ASSERT_EQ(node->init(), 0);
    ASSERT_EQ(sender.rtr(receiver.endpoint->number()), 0);
    ASSERT_EQ(receiver.rtr(sender.endpoint->number()), 0);
    ASSERT_EQ(sender.rts(), 0);
    ASSERT_EQ(receiver.rts(), 0);
  }
  void TearDown() override { receiver.endpoint->destroy(); }
  void send(const SharedQueue& to) {
    SendRequest request;
    request.receive_queue = to.entry.number;
    ASSERT_EQ(sender.post(request, 0, 8), 0);
  }
  static bool drives(SharedQueue& queue, Node& node) {
    PollGroup* const group = PollGroup::find(queue.completions);
    return group != nullptr && node.endpoint->stream().member_of(*group);
  }

  XrcDomain domain;
  Node sender, receiver;
};

TEST_F(XrcEndpoints, PollersOfTheFirstQueueDriveTheStream) {
  SharedQueue first(receiver, domain, 16), second(receiver, domain, 17);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(first.post(1), 0);
    send(first);
    EXPECT_TRUE(first.poll_directly());
  }
  EXPECT_TRUE(eventually([&] { return drives(first, receiver); }));
  ASSERT_EQ(second.post(2), 0);
  send(second);
  EXPECT_TRUE(second.poll_directly()) << "by the helper thread";
  EXPECT_EQ(PollGroup::find(second.completions), nullptr);
}

// When its shared queue is destroyed the stream leaves that queue's pollers, and joins those of the
// next queue that is named.
TEST_F(XrcEndpoints, StreamMovesOnWhenTheQueueIsDestroyed) {
  for (uint32_t number = 16; number < 20; ++number) {
    SharedQueue queue(receiver, domain, number);
    ASSERT_EQ(queue.post(1), 0);
    send(queue);
    EXPECT_TRUE(queue.poll_directly());
    EXPECT_TRUE(eventually([&] { return drives(queue, receiver); }));
  }
  EXPECT_TRUE(receiver.endpoint->connected());
}

// Another queue of the domain uses the same completion queue, so the stream stays.
TEST_F(XrcEndpoints, StreamStaysWithACompletionQueueInUse) {
  SharedQueue first(receiver, domain, 16);
  const XrcQueue other{17, &first.receives, &first.completions, &receiver.domain};
  domain.enter(other);
  ASSERT_EQ(first.post(1), 0);
  send(first);
  EXPECT_TRUE(first.poll_directly());
  EXPECT_TRUE(eventually([&] { return drives(first, receiver); }));
  receiver.engine.remove_xrc_queue(domain, other);
  EXPECT_TRUE(drives(first, receiver));
}

}  // namespace
}  // namespace uwarp
