// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The other process is killed, or ends orderly: what the surviving process sees, also if it only
// spins on memory and never polls. The peer is this program again, started with a role.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "verbs/crowd.h"
#include "verbs/peer_process.h"
#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The engine promises one second; the limit of ten allows for a loaded machine.
constexpr milliseconds kPromise{10000};

constexpr uint32_t kLarge = 1 << 20;
/// After so many large messages the connection has left TCP for shared memory, as a rule.
constexpr uint64_t kLargeBeforeSwitch = 100;

/// What carries the connection for good does so, after this many large messages. The thread that
/// brings shared memory may come late on a busy machine.
bool has_switched(uint64_t done) {
  if (done < kLargeBeforeSwitch) return false;
  return !shared_memory_is_on() || rings_are_mapped() || done > 100 * kLargeBeforeSwitch;
}

class PeerLoss : public VerbsTest {
 protected:
  void expect_fatal_event(ibv_qp* qp) {
    auto event = next_async_event(context(), kPromise);
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(event->element.qp, qp);
    ibv_ack_async_event(&*event);
  }
  /// An InfiniBand adapter whose request says that the peer is gone has no event for it.
  void expect_end(ibv_qp* qp, bool request_says_so) {
    if (!request_says_so || !roce()) return expect_fatal_event(qp);
    EXPECT_FALSE(next_async_event(context(), milliseconds(20)));
  }
};

TEST_F(PeerLoss, KilledWhileWeSpinOnMemory) {
  End end(context());
  PeerProcess peer(end, "writer");
  for (int i = 0; i < 3; ++i) ASSERT_EQ(end.post_receive(i), 0);
  volatile uint8_t* watched = &end.memory[100];
  const auto limit = steady_clock::now() + kPatience;
  while (*watched == 0) ASSERT_LT(steady_clock::now(), limit) << "the peer writes";
  peer.kill_now();
  // The application does not poll, but the event must come.
  expect_fatal_event(end.qp.get());
  for (int i = 0; i < 3; ++i) EXPECT_COMPLETION(end.cq.get(), i, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(end.qp.get()), IBV_QPS_ERR);
}

TEST_F(PeerLoss, KilledWhileWeReceive) {
  End end(context());
  PeerProcess peer(end, "idle");
  for (int i = 0; i < 3; ++i) ASSERT_EQ(end.post_receive(i), 0);
  peer.kill_now();
  for (int i = 0; i < 3; ++i) EXPECT_COMPLETION(end.cq.get(), i, IBV_WC_WR_FLUSH_ERR);
  expect_fatal_event(end.qp.get());
}

/// The peer is killed in any step of the start-up: later requests fail, and nothing crashes.
TEST_F(PeerLoss, KilledWhileConnecting) {
  for (int round = 0; round < 10; ++round) {
    End end(context());
    PeerProcess peer(end, "idle", false);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    peer.kill_now();
    ASSERT_EQ(end.post_receive(1), 0);
    if (round % 2 == 0) continue;  // destroyed in this state
    ASSERT_EQ(end.post_send(2), 0);
    // A socket still accepts a Send while its end has not been read.
    const auto taken = [&](uint64_t id, ibv_wc_status status) {
      return id == 2 && status == IBV_WC_SUCCESS && !roce();
    };
    for (const auto& [id, status] : next_completions(end.cq.get(), 2))
      EXPECT_TRUE(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ||
                  taken(id, status))
          << id;
    ibv_async_event event = {};
    while (readable(context()->async_fd, milliseconds(0))) {
      ASSERT_EQ(ibv_get_async_event(context(), &event), 0);
      ibv_ack_async_event(&event);
    }
  }
}

// The peer ends while we post. What the socket accepted counts as sent, but the reset that answers
// it ends the queue pair.
TEST_F(PeerLoss, PostedAsThePeerIsKilled) {
  constexpr int kSends = 40;
  for (int round = 0; round < 10; ++round) {
    End end(context());
    PeerProcess peer(end, "idle");
    ASSERT_EQ(end.post_receive(0), 0);
    std::thread killer([&] { peer.kill_now(); });
    for (int i = 1; i <= kSends; ++i) {
      ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, i, peer.address()), 0);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    killer.join();
    auto statuses = next_completions(end.cq.get(), kSends + 1);
    ASSERT_EQ(statuses.size(), kSends + 1u) << "in round " << round;
    EXPECT_STREQ(ibv_wc_status_str(statuses[0]), "Work Request Flushed Error");
    expect_end(end.qp.get(), std::ranges::any_of(statuses, [](const auto& one) {
                 return one.second == IBV_WC_RETRY_EXC_ERR;
               }));
  }
}

TEST_F(PeerLoss, KilledWhileWeSend) {
  End end(context());
  PeerProcess peer(end, "idle");  // posts no receives: the stream fills up
  for (int i = 0; i < 32; ++i) ASSERT_EQ(end.post_send(i, 0, 1 << 20), 0);
  peer.kill_now();
  for (int i = 0; i < 32; ++i) {
    const auto wc = next_completion(end.cq.get());
    ASSERT_TRUE(wc.has_value()) << i;
    EXPECT_EQ(wc->wr_id, static_cast<uint64_t>(i)) << "in order";
    EXPECT_TRUE(wc->status == IBV_WC_SUCCESS || wc->status == IBV_WC_WR_FLUSH_ERR ||
                wc->status == IBV_WC_RETRY_EXC_ERR)
        << ibv_wc_status_str(wc->status);
  }
  EXPECT_FALSE(next_completion(end.cq.get(), milliseconds(20)));
}

// The peer is killed in any step while we copy its messages out of its memory. Messages that
// complete are whole. Once the end is known, no byte changes.
TEST_F(PeerLoss, KilledWhileItsLargeMessagesArrive) {
  constexpr int kSlots = 4;
  std::mt19937 random(23);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    // The first part is for the Read that shows that the connection is established.
    End end(context(), (1 + kSlots) * kLarge);
    const auto place = [](uint64_t id) { return (1 + id % kSlots) * size_t{kLarge}; };
    uint64_t posted = 0, arrived = 0;
    const auto post = [&] {
      ASSERT_EQ(end.post_receive(posted, place(posted), kLarge), 0);
      ++posted;
    };
    const auto take = [&](const ibv_wc& wc) {
      ASSERT_EQ(wc.wr_id, arrived++);
      ASSERT_EQ(wc.byte_len, kLarge);
      const uint8_t* const at = end.memory.data() + place(wc.wr_id);
      ASSERT_EQ(at[0], static_cast<uint8_t>(wc.wr_id));
      ASSERT_EQ(std::memcmp(at, at + 1, kLarge - 1), 0) << "message " << wc.wr_id << " is torn";
    };
    while (posted < kSlots) post();
    PeerProcess peer(end, "flood");
    peer.begin();
    const uint64_t wanted = kLargeBeforeSwitch + random() % 60;
    while (arrived < wanted || !has_switched(arrived)) {
      const auto wc = next_completion(end.cq.get());
      ASSERT_TRUE(wc.has_value());
      ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
      ASSERT_NO_FATAL_FAILURE(take(*wc));
      post();
    }
    EXPECT_EQ(rings_are_mapped(), shared_memory_is_on());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    peer.kill_now();
    while (arrived != posted) {
      const auto wc = next_completion(end.cq.get());
      ASSERT_TRUE(wc.has_value());
      if (wc->status != IBV_WC_SUCCESS) {
        EXPECT_STREQ(ibv_wc_status_str(wc->status), "Work Request Flushed Error");
        ASSERT_EQ(wc->wr_id, arrived++);
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(take(*wc));
    }
    expect_fatal_event(end.qp.get());
    const std::vector<uint8_t> then = end.memory;
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_EQ(then, end.memory);
  }
}

// The same while the peer copies from our memory.
TEST_F(PeerLoss, KilledWhileItTakesOurLargeMessages) {
  constexpr uint64_t kOutstanding = 8;
  std::mt19937 random(29);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    End end(context());
    PeerProcess peer(end, "idle");
    uint64_t posted = 0, done = 0;
    const uint64_t wanted = kLargeBeforeSwitch + random() % 60;
    bool failed = false, retried = false;
    for (bool killed = false; !killed || done != posted;) {
      while (!killed && posted - done < kOutstanding)
        ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, posted++, peer.address(), 0, kLarge), 0);
      const auto wc = next_completion(end.cq.get());
      ASSERT_TRUE(wc.has_value());
      ASSERT_EQ(wc->wr_id, done++);
      ASSERT_TRUE(wc->status == IBV_WC_SUCCESS ? !failed : killed) << ibv_wc_status_str(wc->status);
      failed |= wc->status != IBV_WC_SUCCESS;
      retried |= wc->status == IBV_WC_RETRY_EXC_ERR;
      if (killed || done < wanted || !has_switched(done)) continue;
      EXPECT_EQ(rings_are_mapped(), shared_memory_is_on());
      peer.kill_now();
      killed = true;
    }
    expect_end(end.qp.get(), retried);
    EXPECT_EQ(state_of(end.qp.get()), IBV_QPS_ERR);
  }
}

TEST_F(PeerLoss, KilledWhileWeRead) {
  End end(context(), 64 << 20);
  PeerProcess peer(end, "idle");
  Address target = peer.address();
  for (int i = 0; i < 16; ++i) ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_READ, i, target, 0, 1 << 20), 0);
  peer.kill_now();
  bool failed = false;
  for (int i = 0; i < 16; ++i) {
    const auto wc = next_completion(end.cq.get());
    ASSERT_TRUE(wc.has_value()) << i;
    EXPECT_EQ(wc->wr_id, static_cast<uint64_t>(i));
    if (wc->status == IBV_WC_SUCCESS) continue;
    EXPECT_EQ(wc->status, failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
    failed = true;
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(wait_until([&] { return state_of(end.qp.get()) == IBV_QPS_ERR; }));
}

TEST_F(PeerLoss, CleanEndIsSilent) {
  End end(context());
  PeerProcess peer(end, "idle");
  ASSERT_EQ(end.post_receive(1), 0);
  EXPECT_EQ(peer.finish(), 0);
  EXPECT_FALSE(next_completion(end.cq.get(), milliseconds(200))) << "no flush";
  EXPECT_FALSE(next_async_event(context(), milliseconds(0))) << "no event";
  // A request that is posted later cannot arrive.
  ASSERT_EQ(end.post_send(2), 0);
  const std::map<uint64_t, ibv_wc_status> expected = {{1, IBV_WC_WR_FLUSH_ERR},
                                                      {2, IBV_WC_RETRY_EXC_ERR}};
  EXPECT_EQ(next_completions(end.cq.get(), 2), expected);
}

// All of its bytes are given back at once, as much as a turn sends, and its acknowledgement is
// still to be asked for.
TEST_F(PeerLoss, ALargeWriteCompletesWithoutAnotherRequest) {
  End end(context());
  PeerProcess peer(end, "idle");
  for (uint64_t i = 0; i < 3 * kLargeBeforeSwitch; ++i) {
    ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, i, peer.address(), 0, kLarge), 0);
    EXPECT_COMPLETION(end.cq.get(), i, IBV_WC_SUCCESS);
  }
}

// UCX asks so whether the peer is still there. What the peer did not read is not complete.
TEST_F(PeerLoss, AnEmptyWriteFindsACleanEnd) {
  for (const bool large : {false, true}) {
    for (const bool late : {false, true}) {
      // With iWARP a request that was sent before the end was noticed is complete.
      if (large && !late && !roce()) continue;
      SCOPED_TRACE(testing::Message() << "large " << large << ", late " << late);
      End end(context());
      PeerProcess peer(end, "idle");
      for (uint64_t i = 0; large ? !has_switched(i) : i < 8; ++i) {
        ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, i, peer.address(), 0, large ? kLarge : 0), 0);
        EXPECT_COMPLETION(end.cq.get(), i, IBV_WC_SUCCESS);
      }
      EXPECT_TRUE(!large || !shared_memory_is_on() || rings_are_mapped());
      EXPECT_EQ(peer.finish(), 0);
      if (late) std::this_thread::sleep_for(milliseconds(100));
      const unsigned unsignaled = 0;
      ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, 100, peer.address(), 0, 0, unsignaled), 0);
      EXPECT_COMPLETION(end.cq.get(), 100, IBV_WC_RETRY_EXC_ERR);
    }
  }
}

TEST_F(PeerLoss, SentinelArrivesBeforeACleanEnd) {
  End end(context());
  for (int i = 0; i < 8; ++i) ASSERT_EQ(end.post_receive(i, 0, 64), 0);
  PeerProcess peer(end, "sender");
  EXPECT_EQ(peer.finish(), 0);
  int received = static_cast<int>(peer.early.size());
  for (; received < 8; ++received) EXPECT_COMPLETION(end.cq.get(), received, IBV_WC_SUCCESS);
}

void wait_for_end_of_input(int fd) {
  char byte;
  while (read(fd, &byte, 1) > 0) {
  }
}

/// Sends large messages, each with different bytes, until it is killed.
int flood(End& end) {
  const uint64_t slots = end.memory.size() / kLarge;
  char byte;
  if (read(kControlFd, &byte, 1) != 1) return 6;
  for (uint64_t posted = 0, done = 0;;) {
    for (; posted - done < slots; ++posted) {
      const size_t at = posted % slots * kLarge;
      std::memset(end.memory.data() + at, static_cast<int>(posted), kLarge);
      if (end.post_send(posted, at, kLarge) != 0) return 3;
    }
    const auto wc = next_completion(end.cq.get());
    if (!wc || wc->status != IBV_WC_SUCCESS) return 4;
    ++done;
  }
}

/// Main function of the other process. Returns its exit status.
int play(const std::string& role) {
  Context context = open_device();
  if (context == nullptr) return 2;
  End end(context.get(), role == "flood" ? 4 * kLarge : kLarge);
  const Address ours = end.address();
  const Address theirs = receive_address(kControlFd);
  send_address(kControlFd, ours);
  end.connect(theirs);
  if (role == "writer") {
    std::memset(end.memory.data(), 1, end.memory.size());
    if (end.post_rdma(IBV_WR_RDMA_WRITE, 1, theirs, 0, 4096) != 0) return 3;
  } else if (role == "sender") {
    for (int i = 0; i < 8; ++i)
      if (end.post_send(i) != 0) return 3;
    for (int i = 0; i < 8; ++i) {
      const auto wc = next_completion(end.cq.get());
      if (!wc || wc->status != IBV_WC_SUCCESS) return 4;
    }
  }
  send_address(kControlFd, ours);
  if (role == "flood") return flood(end);
  wait_for_end_of_input(kControlFd);
  return ::testing::Test::HasFailure() ? 5 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr const char kRole[] = "--role=";
  if (argc >= 2 && std::strncmp(argv[1], kRole, sizeof kRole - 1) == 0) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    arguments[0].erase(0, sizeof kRole - 1);
    int status = play_same_status(arguments);
    if (status < 0) status = play_crowd(arguments);
    return status >= 0 ? status : play(arguments[0]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
