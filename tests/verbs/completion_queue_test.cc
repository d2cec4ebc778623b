// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completion queues beyond the basics: ibv_cq_ex with its fields and time stamps, resizing during
// traffic, and moderation of events.
#include <arpa/inet.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <numeric>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

uint64_t clock_ns(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

class CompletionQueues : public VerbsTest {
 protected:
  struct Extended {
    ibv_cq_ex* ex = nullptr;
    Cq cq;
  };
  Extended make_extended(uint64_t fields, uint32_t flags = 0, uint32_t entries = 64) {
    ibv_cq_init_attr_ex init = {};
    init.cqe = entries;
    init.wc_flags = fields;
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    init.flags = flags;
    Extended made;
    made.ex = ibv_create_cq_ex(context(), &init);
    if (made.ex != nullptr) made.cq.reset(ibv_cq_ex_to_cq(made.ex));
    return made;
  }
  /// A queue pair on `cq` that is connected to `peer`.
  Qp connected(End& own, ibv_cq* cq, End& peer, uint32_t depth = 64) {
    ibv_qp_init_attr init = init_attributes(cq, depth);
    Qp qp(ibv_create_qp(own.pd.get(), &init));
    EXPECT_NE(qp, nullptr);
    EXPECT_EQ(to_init(qp.get()), 0);
    EXPECT_EQ(to_rtr(qp.get(), peer.address()), 0);
    EXPECT_EQ(to_rts(qp.get(), own.psn), 0);
    Address address = own.address();
    address.qpn = qp->qp_num;
    peer.connect(address);
    return qp;
  }
  int post_receive(ibv_qp* qp, End& end, uint64_t id, uint32_t length = 64) {
    ibv_sge sge = end.sge(0, length);
    ibv_recv_wr wr = {id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  /// Repeats start_poll() until there is a completion.
  int start_patiently(ibv_cq_ex* cq) {
    ibv_poll_cq_attr attr = {};
    int result = ENOENT;
    wait_until([&] { return (result = ibv_start_poll(cq, &attr)) != ENOENT; });
    return result;
  }
};

TEST_F(CompletionQueues, ExtendedFields) {
  const auto cq =
      make_extended(uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
  ASSERT_NE(cq.ex, nullptr);
  EXPECT_GE(cq.cq->cqe, 64);
  End a(context()), b(context());
  Qp qp = connected(b, cq.cq.get(), a);
  ibv_poll_cq_attr attr = {};
  EXPECT_EQ(ibv_start_poll(cq.ex, &attr), ENOENT);
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(cq.ex, &attr), EINVAL);
  const uint64_t raw_before = clock_ns(CLOCK_MONOTONIC), wall_before = clock_ns(CLOCK_REALTIME);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post_receive(qp.get(), b, 10 + i), 0);
  ASSERT_EQ(a.post_send(1, 0, 24), 0);
  // The second message carries immediate data.
  ibv_sge sge = a.sge(0, 16);
  ibv_send_wr wr = {};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htonl(0x1234);
  wr.wr.rdma.remote_addr = b.address().memory;
  wr.wr.rdma.rkey = b.address().rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp.get(), &wr, &bad), 0);

  ASSERT_EQ(start_patiently(cq.ex), 0);
  EXPECT_EQ(cq.ex->wr_id, 10u);
  EXPECT_EQ(cq.ex->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(cq.ex), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(cq.ex), 24u);
  EXPECT_EQ(ibv_wc_read_qp_num(cq.ex), qp->qp_num);
  EXPECT_EQ(ibv_wc_read_wc_flags(cq.ex), 0u);
  EXPECT_EQ(ibv_wc_read_vendor_err(cq.ex), 0u);
  EXPECT_EQ(ibv_wc_read_src_qp(cq.ex), 0u);
  EXPECT_EQ(ibv_wc_read_slid(cq.ex), 0u);
  EXPECT_EQ(ibv_wc_read_sl(cq.ex), 0);
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq.ex), 0);
  const uint64_t first_raw = ibv_wc_read_completion_ts(cq.ex);
  EXPECT_GE(first_raw, raw_before);
  EXPECT_LE(first_raw, clock_ns(CLOCK_MONOTONIC));
  EXPECT_GE(ibv_wc_read_completion_wallclock_ns(cq.ex), wall_before);
  EXPECT_LE(ibv_wc_read_completion_wallclock_ns(cq.ex), clock_ns(CLOCK_REALTIME));
  int next = ibv_next_poll(cq.ex);
  if (next == ENOENT) {  // no completion yet
    ibv_end_poll(cq.ex);
    next = start_patiently(cq.ex);
  }
  ASSERT_EQ(next, 0);
  EXPECT_EQ(cq.ex->wr_id, 11u);
  EXPECT_EQ(ibv_wc_read_opcode(cq.ex), IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(ibv_wc_read_wc_flags(cq.ex), unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(ntohl(ibv_wc_read_imm_data(cq.ex)), 0x1234u);
  EXPECT_GE(ibv_wc_read_completion_ts(cq.ex), first_raw);
  EXPECT_EQ(ibv_next_poll(cq.ex), ENOENT);
  ibv_end_poll(cq.ex);
  // ibv_poll_cq() polls the same queue.
  ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  EXPECT_COMPLETION(cq.cq.get(), 12, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(CompletionQueues, DeviceReportsItsClock) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &attr), 0);
  EXPECT_EQ(attr.hca_core_clock, 1'000'000u) << "nanoseconds, in kHz";
  EXPECT_EQ(attr.completion_timestamp_mask, ~uint64_t{0});
  EXPECT_EQ(attr.cq_mod_caps.max_cq_count, UINT16_MAX);
  EXPECT_EQ(attr.cq_mod_caps.max_cq_period, UINT16_MAX);
}

TEST_F(CompletionQueues, WhatTheExtendedOnesRefuse) {
  const auto result = [&](uint64_t fields, uint32_t flags, uint32_t entries) {
    errno = 0;
    return make_extended(fields, flags, entries).ex == nullptr ? errno : 0;
  };
  EXPECT_EQ(result(0, 0, 1), 0);
  EXPECT_EQ(result(uint64_t{1} << 40, 0, 1), EOPNOTSUPP);
  EXPECT_EQ(result(0, 1u << 20, 1), EINVAL);
  EXPECT_EQ(result(0, 0, 0), EINVAL);
  EXPECT_EQ(result(0, 0, 4194304 + 1), EINVAL);
  EXPECT_EQ(result(0, 0, ~0u), EINVAL);
  EXPECT_EQ(result(0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, 8),
            0);
}

// Programs that were written on mlx5 ask for all fields at once, and have no second try.
TEST_F(CompletionQueues, WhatNoPacketHasReadsAsZero) {
  const auto cq = make_extended(IBV_CREATE_CQ_SUP_WC_FLAGS);
  ASSERT_NE(cq.ex, nullptr);
  End a(context()), b(context());
  Qp qp = connected(b, cq.cq.get(), a);
  ASSERT_EQ(post_receive(qp.get(), b, 1), 0);
  ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  ASSERT_EQ(start_patiently(cq.ex), 0);
  EXPECT_EQ(ibv_wc_read_cvlan(cq.ex), 0);
  EXPECT_EQ(ibv_wc_read_flow_tag(cq.ex), 0u);
  ibv_wc_tm_info info = {1, 2};
  ibv_wc_read_tm_info(cq.ex, &info);
  EXPECT_EQ(info.tag, 0u);
  EXPECT_EQ(info.priv, 0u);
  ibv_end_poll(cq.ex);
}

TEST_F(CompletionQueues, SingleThreadedAndIgnoringOverrun) {
  const auto cq =
      make_extended(IBV_WC_STANDARD_FLAGS,
                    IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, 1);
  ASSERT_NE(cq.ex, nullptr);
  const int entries = cq.cq->cqe;
  End a(context()), b(context());
  Qp qp = connected(b, cq.cq.get(), a);
  for (int i = 0; i < entries + 4; ++i) ASSERT_EQ(post_receive(qp.get(), b, i), 0);
  for (int i = 0; i < entries + 4; ++i) ASSERT_EQ(a.post_send(i), 0);
  for (int i = 0; i < entries + 4; ++i) EXPECT_COMPLETION(a.cq.get(), i, IBV_WC_SUCCESS);
  ASSERT_EQ(start_patiently(cq.ex), 0);
  EXPECT_EQ(cq.ex->wr_id, 0u);
  ibv_end_poll(cq.ex);
  EXPECT_FALSE(next_async_event(context(), milliseconds(50))) << "no IBV_EVENT_CQ_ERR";
  EXPECT_EQ(state_of(qp.get()), IBV_QPS_RTS);
}

// Each completion goes to one thread, complete.
TEST_F(CompletionQueues, SeveralThreadsPoll) {
  constexpr int kMessages = 4000;
  const auto cq = make_extended(IBV_WC_STANDARD_FLAGS, 0, 2048);
  ASSERT_NE(cq.ex, nullptr);
  End a(context(), 1 << 16, nullptr, 1024), b(context());
  Qp qp = connected(b, cq.cq.get(), a, 1024);
  std::vector<std::atomic<int>> seen(kMessages);
  std::atomic<int> total{0};
  std::atomic<bool> failed{false};
  const auto poll = [&] {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    ibv_poll_cq_attr attr = {};
    while (total < kMessages && !failed && std::chrono::steady_clock::now() < end) {
      if (ibv_start_poll(cq.ex, &attr) != 0) {
        std::this_thread::yield();
        continue;
      }
      do {
        const uint64_t id = cq.ex->wr_id;
        std::this_thread::yield();
        if (cq.ex->wr_id != id || cq.ex->status != IBV_WC_SUCCESS || id >= kMessages ||
            ibv_wc_read_byte_len(cq.ex) != id % 64)
          failed = true;
        else
          ++seen[id];
        ++total;
      } while (ibv_next_poll(cq.ex) == 0);
      ibv_end_poll(cq.ex);
    }
  };
  std::thread first(poll), second(poll);
  for (int i = 0; i < kMessages && !failed; ++i) {
    while (i - total > 1000 && !failed) std::this_thread::yield();  // room in both queues
    if (post_receive(qp.get(), b, i) != 0) failed = true;
    if (a.post_send(i, 0, i % 64) != 0) failed = true;
    const auto sent = next_completion(a.cq.get());
    if (!sent || sent->status != IBV_WC_SUCCESS) failed = true;
  }
  first.join();
  second.join();
  EXPECT_FALSE(failed);
  for (int i = 0; i < kMessages; ++i) ASSERT_EQ(seen[i], 1) << i;
}

// Many queue pairs share one completion queue; each has its own peer.
class SharedCompletionQueue : public CompletionQueues {
 protected:
  void SetUp() override {
    CompletionQueues::SetUp();
    own = std::make_unique<End>(context());
    cq.reset(ibv_create_cq(context(), 256, nullptr, nullptr, 0));
  }
  void add() {
    peers.push_back(std::make_unique<End>(context(), 4096));
    qps.push_back(connected(*own, cq.get(), *peers.back()));
  }
  /// These peers send one after the other. The test checks that each message arrives.
  void talk(const std::vector<size_t>& talkers) {
    std::vector<int> sent(qps.size()), heard(qps.size());
    for (const size_t who : talkers) {
      ASSERT_EQ(post_receive(qps[who].get(), *own, who), 0);
      ASSERT_EQ(peers[who]->post_send(who), 0);
      ++sent[who];
    }
    for (size_t i = 0; i < talkers.size(); ++i) {
      const auto found = next_completion(cq.get());
      ASSERT_TRUE(found.has_value()) << i << " of " << talkers.size();
      ASSERT_EQ(found->status, IBV_WC_SUCCESS);
      ++heard.at(found->wr_id);
    }
    EXPECT_EQ(heard, sent);
    for (const size_t who : talkers) EXPECT_COMPLETION(peers[who]->cq.get(), who, IBV_WC_SUCCESS);
  }
  std::unique_ptr<End> own;
  Cq cq;
  std::vector<std::unique_ptr<End>> peers;
  std::vector<Qp> qps;
};

// Pollers read some streams directly and learn about others from epoll. Which ones changes as queue
// pairs come and go, become busy or idle. Messages of all of them arrive.
TEST_F(SharedCompletionQueue, QueuePairsComeAndGoAndAllComplete) {
  constexpr size_t kMost = 40;
  const auto all_send = [&] {
    std::vector<size_t> all(qps.size());
    std::iota(all.begin(), all.end(), size_t{0});
    talk(all);
  };
  const auto all_fall_silent = [&] {
    for (int i = 0; i < 2000; ++i) {
      ibv_wc none;
      ASSERT_EQ(ibv_poll_cq(cq.get(), 1, &none), 0);
    }
  };
  while (qps.size() < kMost) {
    add();
    all_send();
    if (qps.size() % 8 == 0) {
      all_fall_silent();
      all_send();
    }
  }
  while (qps.size() > 2) {
    qps.pop_back();
    if (qps.size() % 6 == 0) all_send();
  }
  all_fall_silent();
  all_send();
}

// A poll that finds something leaves the other streams to the next poll. A busy stream among idle
// ones is still read, in any order.
TEST_F(SharedCompletionQueue, OneBusyAmongIdleQueuePairsIsServed) {
  constexpr size_t kQueuePairs = 9;
  while (qps.size() < kQueuePairs) add();
  for (size_t step = 1; step < kQueuePairs; ++step) {
    std::vector<size_t> talkers;
    for (size_t i = 0; i < kQueuePairs; ++i) {
      talkers.push_back(i * step % kQueuePairs);
      SCOPED_TRACE(testing::Message() << "step " << step);
      ASSERT_NO_FATAL_FAILURE(talk(talkers));
    }
  }
}

TEST_F(CompletionQueues, ResizedWhileBusy) {
  constexpr int kMessages = 3000;
  Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  ASSERT_NE(cq, nullptr);
  End a(context()), b(context());
  Qp qp = connected(b, cq.get(), a);
  std::atomic<bool> done{false};
  std::atomic<int> resized{0};
  std::thread resizer([&] {
    for (int i = 0; !done; ++i) {
      const int entries = i % 2 == 0 ? 1024 : 16;
      const int result = ibv_resize_cq(cq.get(), entries);
      EXPECT_TRUE(result == 0 || result == EINVAL) << result;
      if (result == 0) {
        EXPECT_GE(cq->cqe, entries);
        ++resized;
      }
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(post_receive(qp.get(), b, i), 0);
    ASSERT_EQ(a.post_send(i), 0);
    EXPECT_COMPLETION(cq.get(), i, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(a.cq.get(), i, IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(wait_until([&] { return resized > 1; }));
  done = true;
  resizer.join();
}

TEST_F(CompletionQueues, ResizeRefusesWhatCannotHoldTheCompletions) {
  End end(context());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(end.post_receive(i), 0);
  ASSERT_EQ(to_state(end.qp.get(), IBV_QPS_ERR), 0);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), -1), EINVAL);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 4194304 + 1), EINVAL);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 19), EINVAL) << "20 are there";
  ASSERT_EQ(ibv_resize_cq(end.cq.get(), 20), 0);
  EXPECT_GE(end.cq->cqe, 20);
  for (int i = 0; i < 20; ++i) EXPECT_COMPLETION(end.cq.get(), i, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(ibv_resize_cq(end.cq.get(), 1), 0);
}

TEST_F(CompletionQueues, ModerationWaitsForTheCount) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 16; ++i) ASSERT_EQ(pair.b.post_receive(i), 0);
  ibv_modify_cq_attr attr = {};
  EXPECT_EQ(ibv_modify_cq(pair.b.cq.get(), &attr), EINVAL) << "nothing to change";
  attr.attr_mask = 1u << 20;
  EXPECT_EQ(ibv_modify_cq(pair.b.cq.get(), &attr), EINVAL);
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {4, UINT16_MAX};
  ASSERT_EQ(ibv_modify_cq(pair.b.cq.get(), &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.a.post_send(i), 0);
  ASSERT_TRUE(readable(channel->fd));
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel.get(), &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  // All four completions are in the queue when the event comes. On a very busy machine it may be
  // the event of the period's end.
  for (int i = 0; i < 4; ++i) EXPECT_COMPLETION(cq, i, IBV_WC_SUCCESS);
}

TEST_F(CompletionQueues, ModerationEndsWithThePeriod) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.b.post_receive(i), 0);
  ibv_modify_cq_attr attr = {};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {1000, 30'000};
  ASSERT_EQ(ibv_modify_cq(pair.b.cq.get(), &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  const uint64_t start = clock_ns(CLOCK_MONOTONIC);
  ASSERT_EQ(pair.a.post_send(1), 0);
  ASSERT_TRUE(readable(channel->fd)) << "one completion, and the period is over";
  EXPECT_GE(clock_ns(CLOCK_MONOTONIC) - start, 30'000'000u);
  // Without a period there is no moderation, because events could be held back for ever.
  attr.moderate = {1000, 0};
  ASSERT_EQ(ibv_modify_cq(pair.b.cq.get(), &attr), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel.get(), &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 0), 0);
  ASSERT_EQ(pair.a.post_send(2), 0);
  EXPECT_TRUE(readable(channel->fd));
}

}  // namespace
