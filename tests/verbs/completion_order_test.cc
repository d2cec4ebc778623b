// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// As soon as the answer to a Send can be polled, so can the completion of the Send: programs use
// its buffer or its place in the queue again when they have the answer.
#include <atomic>
#include <initializer_list>
#include <map>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

struct Shape {
  const char* name;
  bool two_queues;         // one for Sends and one for receives
  bool answers_in_thread;  // if false, the thread that asks also answers
  uint32_t bytes = 64;     // of one message
};

class CompletionOrder : public VerbsTest, public ::testing::WithParamInterface<Shape> {};

/// One end whose Sends may complete on their own completion queue.
struct Talker {
  Talker(ibv_context* context, const Shape& shape)
      : bytes(shape.bytes),
        second(shape.two_queues ? ibv_create_cq(context, 128, nullptr, nullptr, 0) : nullptr),
        end(context),
        sends(shape.two_queues ? second.get() : end.cq.get()) {
    if (!shape.two_queues) return;
    ibv_qp_init_attr init = init_attributes(end.cq.get());
    init.send_cq = sends;
    end.qp.reset(ibv_create_qp(end.pd.get(), &init));
    EXPECT_EQ(to_init(end.qp.get()), 0);
  }
  const uint32_t bytes;
  Cq second;  // destroyed after the queue pair that uses it
  End end;
  ibv_cq* const sends;

  int receive() { return end.post_receive(0, 0, bytes); }
  void answer() {
    ASSERT_EQ(receive(), 0);
    ASSERT_EQ(end.post_send(1, bytes, bytes), 0);
  }
};

/// Answers what `talker` has received, if anything.
void serve(Talker& talker, int& answered) {
  ibv_wc wc;
  while (ibv_poll_cq(talker.end.cq.get(), 1, &wc) == 1) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode != IBV_WC_RECV) continue;
    // Polls in every round: with a quick peer this loop goes on until the send queue is full.
    if (talker.sends != talker.end.cq.get()) {
      ibv_wc sent;
      while (ibv_poll_cq(talker.sends, 1, &sent) == 1) EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    }
    talker.answer();
    ++answered;
  }
}

TEST_P(CompletionOrder, ASendCompletesBeforeItsAnswer) {
  const int rounds = GetParam().bytes > 4096 ? 1000 : 5000;
  Talker a(context(), GetParam()), b(context(), GetParam());
  a.end.connect(b.end.address());
  b.end.connect(a.end.address());
  ASSERT_EQ(b.receive(), 0);
  std::atomic<bool> over{false};
  std::thread other;
  int answered = 0;
  if (GetParam().answers_in_thread)
    other = std::thread([&] {
      while (!over.load()) {
        serve(b, answered);
        std::this_thread::yield();
      }
    });
  int inversions = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    a.answer();
    bool sent = false, received = false;
    const bool came = wait_until([&] {
      if (!other.joinable()) serve(b, answered);
      ibv_wc wc;
      while (!received && ibv_poll_cq(a.end.cq.get(), 1, &wc) == 1) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        (wc.opcode == IBV_WC_RECV ? received : sent) = true;
      }
      return received;
    });
    EXPECT_TRUE(came) << "no answer in round " << round;
    ibv_wc wc;
    if (a.sends != a.end.cq.get()) sent = ibv_poll_cq(a.sends, 1, &wc) == 1;
    if (sent) continue;
    ++inversions;
    EXPECT_TRUE(next_completion(a.sends).has_value());
  }
  over.store(true);
  if (other.joinable()) other.join();
  EXPECT_EQ(inversions, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompletionOrder,
                         ::testing::Values(Shape{"OneQueueOneThread", false, false},
                                           Shape{"OneQueueTwoThreads", false, true},
                                           Shape{"TwoQueuesOneThread", true, false},
                                           Shape{"TwoQueuesTwoThreads", true, true},
                                           Shape{"LargeOneThread", false, false, 64 << 10},
                                           Shape{"LargeTwoThreads", false, true, 64 << 10},
                                           Shape{"LargeTwoQueues", true, true, 64 << 10}),
                         [](const auto& info) { return info.param.name; });

// As after an RNR NAK: a program may post receives only once its peer's Sends have completed.
TEST_F(VerbsTest, SendsThatWereReceivedCompleteWhileALaterOneWaits) {
  Pair pair(context());
  for (int id = 0; id < 2; ++id) ASSERT_EQ(pair.b.post_receive(id), 0);
  ibv_send_wr list[5] = {};
  ibv_sge sge = pair.a.sge(0, 32);
  for (int id = 0; id < 5; ++id) {
    list[id].wr_id = static_cast<uint64_t>(id);
    list[id].next = id < 4 ? &list[id + 1] : nullptr;
    list[id].sg_list = &sge;
    list[id].num_sge = 1;
    list[id].opcode = IBV_WR_SEND;
    list[id].send_flags = IBV_SEND_SIGNALED;
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pair.a.qp.get(), list, &bad), 0);
  const auto statuses = [](std::initializer_list<uint64_t> ids) {
    std::map<uint64_t, ibv_wc_status> all;
    for (const uint64_t id : ids) all[id] = IBV_WC_SUCCESS;
    return all;
  };
  EXPECT_EQ(next_completions(pair.b.cq.get(), 2), statuses({0, 1}));
  EXPECT_EQ(next_completions(pair.a.cq.get(), 2), statuses({0, 1}));
  for (int id = 2; id < 5; ++id) ASSERT_EQ(pair.b.post_receive(id), 0);
  EXPECT_EQ(next_completions(pair.b.cq.get(), 3), statuses({2, 3, 4}));
  EXPECT_EQ(next_completions(pair.a.cq.get(), 3), statuses({2, 3, 4}));
}

}  // namespace
