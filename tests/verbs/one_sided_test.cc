// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads and Writes between processes of one host that need no thread of the target: what they do
// while it is stopped, what they find wrong, in which order they come, and that memory which is
// taken away stays as it is.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "verbs/peer_process.h"
#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

/// The longest list of small requests that is copied by the thread that posts it: one less than
/// tuning::kShortList.
constexpr int kShort = 3;

class OneSided : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    const char* const copies = getenv("UWARP_SHM_COPIES");
    if (!shared_memory_is_on() || (copies != nullptr && std::string(copies) == "two"))
      GTEST_SKIP() << "each byte goes through a thread of the target";
  }
  void write(End& end, const Address& to, uint64_t id, size_t offset, uint32_t length,
             unsigned flags = IBV_SEND_SIGNALED) {
    ASSERT_EQ(end.post_rdma(IBV_WR_RDMA_WRITE, id, to, offset, length, flags), 0);
  }
  uint64_t direct() { return hw_counter(context(), "direct_requests"); }
  /// Makes the connection busy, so that it leaves TCP, until a Write needs no thread of the peer.
  /// No other request is under way then.
  void approach(End& end, const Address& peer) {
    ASSERT_TRUE(wait_until([&] {
      for (int i = 0; i < 32; ++i) write(end, peer, static_cast<uint64_t>(i), 0, 64);
      EXPECT_EQ(next_completions(end.cq.get(), 32).size(), 32u);
      std::this_thread::sleep_for(milliseconds(1));
      const uint64_t before = direct();
      write(end, peer, 1, 0, 64);
      EXPECT_EQ(next_completions(end.cq.get(), 1).size(), 1u);
      return direct() != before || HasFailure();
    })) << "no way to the peer's memory";
  }
};

/// Posts a list in one call: pieces that lie side by side here, and there as well if not `same`.
int post_list(End& end, const Address& to, ibv_wr_opcode opcode, int count, uint32_t length,
              bool same = false) {
  std::vector<ibv_sge> sges;
  for (int i = 0; i < count; ++i) sges.push_back(end.sge(static_cast<size_t>(i) * length, length));
  std::vector<ibv_send_wr> list(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ibv_send_wr& wr = list[static_cast<size_t>(i)];
    wr.wr_id = static_cast<uint64_t>(i);
    wr.next = i + 1 < count ? &wr + 1 : nullptr;
    wr.sg_list = &sges[static_cast<size_t>(i)];
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
    wr.wr.rdma.remote_addr = to.memory + (same ? 0 : static_cast<uint64_t>(i) * length);
    wr.wr.rdma.rkey = to.rkey;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp.get(), list.data(), &bad);
}

TEST_F(OneSided, AStoppedTargetIsWrittenAndRead) {
  End end(context());
  PeerProcess peer(end, "idle");
  const Address target = peer.address();
  approach(end, target);
  if (HasFatalFailure()) return;
  // A list does not either, once no thread of the peer looks at the ring any more.
  ASSERT_TRUE(wait_until([&] {
    std::this_thread::sleep_for(milliseconds(1));
    const uint64_t before = direct();
    EXPECT_EQ(post_list(end, target, IBV_WR_RDMA_WRITE, kShort, 64), 0);
    EXPECT_EQ(next_completions(end.cq.get(), 1).size(), 1u);
    return direct() == before + kShort || HasFailure();
  }));
  peer.stop();
  std::mt19937 random(7);
  const auto fill = [&] {
    for (uint8_t& byte : end.memory) byte = static_cast<uint8_t>(random());
  };
  const auto size = static_cast<uint32_t>(end.memory.size());
  for (const uint32_t length : {1u, 7u, 8u, 9u, 64u, 4096u, 16384u, 65537u, size - 3, size}) {
    SCOPED_TRACE(length);
    fill();
    const std::vector<uint8_t> sent = end.memory;
    write(end, target, 1, 0, length);
    EXPECT_COMPLETION(end.cq.get(), 1, IBV_WC_SUCCESS);
    std::fill(end.memory.begin(), end.memory.end(), uint8_t{0});
    ASSERT_EQ(
        end.post_rdma(IBV_WR_RDMA_READ, 2, target, 0, length, IBV_SEND_SIGNALED | IBV_SEND_FENCE),
        0);
    EXPECT_COMPLETION(end.cq.get(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(sent.data(), end.memory.data(), length), 0);
  }
  fill();
  const std::vector<uint8_t> sent = end.memory;
  for (const auto& [list, each] : {std::pair{int{kShort}, 1000u}, {16, 65536u}}) {
    SCOPED_TRACE(list);
    const auto last = static_cast<uint64_t>(list - 1);
    ASSERT_EQ(post_list(end, target, IBV_WR_RDMA_WRITE, list, each), 0);
    EXPECT_COMPLETION(end.cq.get(), last, IBV_WC_SUCCESS);
    std::fill(end.memory.begin(), end.memory.end(), uint8_t{0});
    ASSERT_EQ(post_list(end, target, IBV_WR_RDMA_READ, list, each), 0);
    EXPECT_COMPLETION(end.cq.get(), last, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(sent.data(), end.memory.data(), static_cast<size_t>(list) * each), 0);
    end.memory = sent;
  }
  // What needs the target waits for it, and what comes behind that waits with it.
  const uint64_t before = direct();
  ASSERT_EQ(end.post_send(3), 0);
  write(end, target, 4, 0, 64);
  EXPECT_FALSE(roce() && next_completion(end.cq.get(), milliseconds(50)));
  EXPECT_EQ(direct(), before);
  peer.go_on();
}

// An application that posts more before it polls what is complete has many requests: two threads
// get through them sooner than the one that posts.
TEST_F(OneSided, AListBehindWhatHasNotBeenPolledGoesOverTheRing) {
  End end(context());
  PeerProcess peer(end, "idle");
  const Address target = peer.address();
  approach(end, target);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(wait_until([&] {
    std::this_thread::sleep_for(milliseconds(1));
    const uint64_t before = direct();
    for (int list = 0; list < 2; ++list)
      EXPECT_EQ(post_list(end, target, IBV_WR_RDMA_WRITE, kShort, 64), 0);
    for (int list = 0; list < 2; ++list)
      EXPECT_EQ(next_completions(end.cq.get(), 1).count(kShort - 1), 1u);
    EXPECT_NE(direct(), before + 2 * kShort);
    return direct() == before + kShort || HasFailure();
  }));
}

TEST_F(OneSided, ALongListOfSmallRequestsGoesOverTheRing) {
  End end(context());
  PeerProcess peer(end, "idle");
  const Address target = peer.address();
  approach(end, target);
  if (HasFatalFailure()) return;
  std::this_thread::sleep_for(milliseconds(1));
  const uint64_t before = direct();
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    EXPECT_EQ(post_list(end, target, opcode, kShort + 1, 64), 0);
    EXPECT_EQ(next_completions(end.cq.get(), 1).count(kShort), 1u);
  }
  EXPECT_EQ(direct(), before);
}

// Longer ones are copied in parts, between which other things happen.
TEST_F(OneSided, LargeListsArriveWhole) {
  constexpr int kList = 4;
  for (const uint32_t length : {(1u << 20) + 4096, 3u << 19, 5u << 19}) {
    SCOPED_TRACE(length);
    Pair pair(context(), kList * size_t{length});
    const Address target = pair.b.address();
    approach(pair.a, target);
    if (HasFatalFailure()) return;
    std::mt19937_64 random(length);
    const auto fill = [&](std::vector<uint8_t>& bytes) {
      for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + at, &word, sizeof word);
      }
    };
    fill(pair.a.memory);
    ASSERT_EQ(post_list(pair.a, target, IBV_WR_RDMA_WRITE, kList, length), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), kList - 1, IBV_WC_SUCCESS);
    EXPECT_TRUE(wait_until([&] { return pair.a.memory == pair.b.memory; }, milliseconds(1000)));
    fill(pair.b.memory);
    ASSERT_EQ(post_list(pair.a, target, IBV_WR_RDMA_READ, kList, length), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), kList - 1, IBV_WC_SUCCESS);
    EXPECT_TRUE(pair.a.memory == pair.b.memory);
  }
}

// The target asks something in between, and the answer makes what is left go another way.
TEST_F(OneSided, LargeRequestsAreWholeBesideAnswers) {
  constexpr uint32_t kLength = 3 << 20;
  Pair pair(context(), kLength + 4096);
  const Address target = pair.b.address();
  Address cell = pair.a.address();
  cell.memory += kLength;
  approach(pair.a, target);
  if (HasFatalFailure()) return;
  std::atomic<bool> over{false};
  std::thread asks([&] {
    while (!over) {
      const ibv_sge result = pair.b.sge(kLength, 8);
      if (pair.b.post_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, result, cell, 1) != 0 ||
          !next_completion(pair.b.cq.get()))
        return;
    }
  });
  for (uint64_t round = 1; round <= 60 && !HasFailure(); ++round) {
    std::memset(pair.a.memory.data(), static_cast<int>(round), kLength);
    EXPECT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, round, target, 0, kLength), 0);
    const auto wc = next_completion(pair.a.cq.get());
    EXPECT_TRUE(wc && wc->status == IBV_WC_SUCCESS);
    EXPECT_TRUE(wait_until(
        [&] { return std::memcmp(pair.a.memory.data(), pair.b.memory.data(), kLength) == 0; },
        milliseconds(1000)))
        << "round " << round;
  }
  over = true;
  asks.join();
}

/// A mistake, and what completes.
struct Mistake {
  const char* name;
  std::function<ibv_wc_status(Pair&)> make;
};

ibv_wc_status status_of(Pair& pair, ibv_wr_opcode opcode, uint64_t address, uint32_t rkey,
                        ibv_sge sge) {
  EXPECT_EQ(pair.a.post_rdma(opcode, 77, sge, address, rkey), 0);
  // Without acknowledgements a Write may complete before its target refuses it; then the next does
  // not, or is flushed if the refusal came before it was posted.
  for (int i = 0;; ++i) {
    const auto wc = next_completion(pair.a.cq.get());
    if (!wc) return IBV_WC_GENERAL_ERR;
    if (i != 0 && wc->status == IBV_WC_WR_FLUSH_ERR) return IBV_WC_REM_ACCESS_ERR;
    if (wc->status != IBV_WC_SUCCESS || opcode != IBV_WR_RDMA_WRITE || i == 100) return wc->status;
    std::this_thread::sleep_for(milliseconds(1));
    if (pair.a.post_rdma(IBV_WR_RDMA_WRITE, 78, pair.b.address()) != 0) return IBV_WC_FATAL_ERR;
  }
}

/// Memory of the peer's domain at fresh pages.
struct Pages {
  static constexpr size_t kBytes = 1 << 16;
  explicit Pages(End& owner, unsigned access) {
    mr.reset(ibv_reg_mr(owner.pd.get(), at, kBytes, static_cast<int>(access)));
  }
  ~Pages() {
    mr.reset();
    munmap(at, kBytes);
  }
  void* const at =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Mr mr;
};
constexpr unsigned kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

std::vector<Mistake> mistakes() {
  std::vector<Mistake> all;
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    const auto with = [opcode](unsigned access, const std::function<void(Pages&)>& spoil,
                               uint64_t offset, bool remote) {
      return [=](Pair& pair) {
        Pages pages(remote ? pair.b : pair.a, access);
        const uint32_t key = remote ? pages.mr->rkey : pages.mr->lkey;
        spoil(pages);
        const auto at = reinterpret_cast<uint64_t>(pages.at) + offset;
        const ibv_sge there = {at, 64, key};
        return remote
                   ? status_of(pair, opcode, at, key, pair.a.sge())
                   : status_of(pair, opcode, pair.b.address().memory, pair.b.address().rkey, there);
      };
    };
    const auto nothing = [](Pages&) {};
    const bool read = opcode == IBV_WR_RDMA_READ;
    all.push_back({"a key that never was", [opcode](Pair& pair) {
                     const Address b = pair.b.address();
                     return status_of(pair, opcode, b.memory, b.rkey ^ 0x5500, pair.a.sge());
                   }});
    all.push_back({"an older key", [opcode](Pair& pair) {
                     const Address b = pair.b.address();
                     return status_of(pair, opcode, b.memory, b.rkey ^ 1, pair.a.sge());
                   }});
    all.push_back(
        {"a region that is gone", with(
                                      kAll, [](Pages& pages) { pages.mr.reset(); }, 0, true)});
    all.push_back({"no right", with(IBV_ACCESS_LOCAL_WRITE |
                                        (read ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ),
                                    nothing, 0, true)});
    all.push_back({"before the region", with(kAll, nothing, ~uint64_t{0}, true)});
    all.push_back({"over its end", with(kAll, nothing, Pages::kBytes - 63, true)});
    all.push_back({"behind its end", with(kAll, nothing, Pages::kBytes + 64, true)});
    all.push_back({"another domain", [opcode](Pair& pair) {
                     End other(pair.b.qp->context);
                     return status_of(pair, opcode, other.address().memory, other.address().rkey,
                                      pair.a.sge());
                   }});
    all.push_back({"our key is wrong", [opcode](Pair& pair) {
                     ibv_sge sge = pair.a.sge();
                     sge.lkey ^= 0x5500;
                     return status_of(pair, opcode, pair.b.address().memory, pair.b.address().rkey,
                                      sge);
                   }});
  }
  return all;
}

// The same by TCP and by the requester's own copy.
TEST_F(OneSided, MistakesHaveTheSameStatus) {
  for (const Mistake& mistake : mistakes()) {
    SCOPED_TRACE(mistake.name);
    Pair by_tcp(context());
    const ibv_wc_status wanted = mistake.make(by_tcp);
    Pair by_itself(context());
    approach(by_itself.a, by_itself.b.address());
    EXPECT_STREQ(ibv_wc_status_str(mistake.make(by_itself)), ibv_wc_status_str(wanted));
    EXPECT_NE(wanted, IBV_WC_SUCCESS);
    ibv_async_event event = {};
    while (readable(context()->async_fd, milliseconds(0))) {
      ASSERT_EQ(ibv_get_async_event(context(), &event), 0);
      ibv_ack_async_event(&event);
    }
  }
}

// A Read behind a Write finds its bytes, and a Send comes behind both.
TEST_F(OneSided, RequestsKeepTheirOrder) {
  Pair pair(context());
  const Address target = pair.b.address();
  approach(pair.a, target);
  std::mt19937 random(11);
  constexpr size_t kCell = 512, kCells = 64, kHere = 65536;
  std::vector<uint64_t> written(kCells, 0);
  uint64_t received = 0, sent = 0;
  for (int i = 0; i < 32; ++i) ASSERT_EQ(pair.b.post_receive(1, kHere, 64), 0);
  const auto number_at = [](const End& end, size_t offset) {
    uint64_t number;
    std::memcpy(&number, end.memory.data() + offset, sizeof number);
    return number;
  };
  std::fill(pair.b.memory.begin(), pair.b.memory.end(), uint8_t{0});
  for (uint64_t round = 1; round <= 3000; ++round) {
    const size_t cell = random() % kCells, offset = cell * kCell;
    const uint32_t length = 8 + random() % (kCell - 8);
    std::memcpy(pair.a.memory.data() + offset, &round, sizeof round);
    write(pair.a, target, round, offset, length, random() % 2 != 0 ? IBV_SEND_SIGNALED : 0);
    written[cell] = round;
    if (random() % 8 == 0) {
      ASSERT_EQ(pair.a.post_send(round, 0, 64, 0), 0);
      ++sent;
    }
    if (random() % 4 == 0 || round % 32 == 0) {
      ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, ~uint64_t{0}, pair.a.sge(kHere, 8),
                                 target.memory + offset, target.rkey),
                0);
      for (;;) {
        const auto wc = next_completion(pair.a.cq.get());
        ASSERT_TRUE(wc && wc->status == IBV_WC_SUCCESS);
        if (wc->wr_id == ~uint64_t{0}) break;
      }
      ASSERT_EQ(number_at(pair.a, kHere), round) << "a Read overtakes the Write before it";
    }
    while (received != sent) {
      const auto wc = next_completion(pair.b.cq.get());
      ASSERT_TRUE(wc && wc->status == IBV_WC_SUCCESS);
      ++received;
      ASSERT_EQ(pair.b.post_receive(1, kHere, 64), 0);
      for (size_t i = 0; i < kCells; ++i)
        ASSERT_EQ(number_at(pair.b, i * kCell), written[i]) << "a Send overtakes a Write";
    }
  }
}

// A program may post the receive that a message waits for only once its own Send has completed, as
// it may with InfiniBand's acknowledgements.
TEST_F(OneSided, ASendCompletesWhileAMessageWaitsForItsReceive) {
  if (!roce()) GTEST_SKIP() << "a Send completes when the kernel has it";
  Pair pair(context());
  approach(pair.a, pair.b.address());
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    const uint64_t before = hw_counter(context(), "held_receives");
    ASSERT_EQ(pair.b.post_receive(1, 0, 64), 0);
    ASSERT_EQ(pair.b.post_send(2), 0);
    EXPECT_TRUE(wait_until([&] {
      EXPECT_FALSE(next_completion(pair.a.cq.get(), milliseconds(round % 2)));
      return hw_counter(context(), "held_receives") != before;
    }));
    ASSERT_EQ(pair.a.post_send(3), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 3, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.a.post_receive(4, 0, 64), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 4, IBV_WC_SUCCESS);
    EXPECT_EQ(next_completions(pair.b.cq.get(), 2).size(), 2u);
  }
}

// Many small Writes go through a thread of the target. One that is posted right behind them is not
// to come before them, whichever way it takes.
TEST_F(OneSided, AWriteDoesNotOvertakeThoseInTheRing) {
  Pair pair(context());
  const Address target = pair.b.address();
  approach(pair.a, target);
  if (HasFatalFailure()) return;
  constexpr int kList = 50;
  constexpr uint32_t kEach = 64;
  for (int round = 0; round < 2000; ++round) {
    std::memset(pair.a.memory.data(), 1, kList * kEach);
    ASSERT_EQ(post_list(pair.a, target, IBV_WR_RDMA_WRITE, kList, kEach, true), 0);
    // The next one comes out of another place, to the same one as all of the list.
    const size_t here = kList * kEach;
    std::memset(pair.a.memory.data() + here, 2, kEach);
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 1000, pair.a.sge(here, kEach), target.memory,
                               target.rkey),
              0);
    for (uint64_t id = 0; id != 1000;) {
      const auto wc = next_completion(pair.a.cq.get());
      ASSERT_TRUE(wc && wc->status == IBV_WC_SUCCESS);
      id = wc->wr_id;
    }
    ASSERT_EQ(pair.a.post_rdma(IBV_WR_RDMA_READ, 1001, target, 0, kEach), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 1001, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.a.memory[0], 2) << "in round " << round;
    ASSERT_EQ(pair.a.memory[kEach - 1], 2);
  }
}

/// Rounds of a race; UWARP_TEST_ROUNDS asks for others.
int rounds(int usual) {
  const char* const asked = getenv("UWARP_TEST_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : usual;
}

// The owner takes memory away while another thread writes to it.
TEST_F(OneSided, MemoryThatIsTakenAwayStaysAsItIs) {
  std::mt19937 random(13);
  const int count = rounds(24);
  for (int round = 0; round < count; ++round) {
    SCOPED_TRACE(round);
    Pair pair(context());
    approach(pair.a, pair.b.address());
    if (HasFatalFailure()) return;
    Pages pages(pair.b, kAll);
    auto* const bytes = static_cast<volatile uint8_t*>(pages.at);
    const Address target = {.gid = {},
                            .qpn = 0,
                            .psn = 0,
                            .memory = reinterpret_cast<uint64_t>(pages.at),
                            .rkey = pages.mr->rkey};
    const auto length = static_cast<uint32_t>(1 + random() % Pages::kBytes);
    std::atomic<bool> over{false};
    std::thread writer([&] {
      for (uint8_t value = 1; !over; ++value) {
        std::memset(pair.a.memory.data(), value == 0 ? ++value : value, length);
        if (pair.a.post_rdma(IBV_WR_RDMA_WRITE, value, target, 0, length) != 0) return;
        const auto wc = next_completion(pair.a.cq.get());
        if (!wc || wc->status != IBV_WC_SUCCESS) return;
      }
    });
    EXPECT_TRUE(wait_until([&] { return bytes[0] != 0; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (round % 3 == 0)
      pages.mr.reset();
    else if (round % 3 == 1)
      EXPECT_EQ(ibv_rereg_mr(pages.mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                             IBV_ACCESS_LOCAL_WRITE),
                0);
    else
      pair.b.qp.reset();
    std::memset(pages.at, 0, Pages::kBytes);
    for (int look = 0; look < 200 && !HasFailure(); ++look) {
      for (size_t at = 0; at < length; at += 509) EXPECT_EQ(bytes[at], 0) << "a byte at " << at;
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
    over = true;
    writer.join();
  }
}

// One region shows two places in turn, while another thread writes to it all the time. What the key
// leads to no more stays as it is.
TEST_F(OneSided, MemoryThatIsExchangedStaysAsItIs) {
  Pair pair(context());
  approach(pair.a, pair.b.address());
  if (HasFatalFailure()) return;
  constexpr unsigned kZeroBased = kAll | IBV_ACCESS_ZERO_BASED;
  Pages first(pair.b, kZeroBased), second(pair.b, kAll);
  const Address target = {.gid = {}, .qpn = 0, .psn = 0, .memory = 0, .rkey = first.mr->rkey};
  const uint64_t before = direct();
  constexpr uint32_t kLength = 3000;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::memset(pair.a.memory.data(), 1, kLength);
    while (!over) {
      EXPECT_EQ(pair.a.post_rdma(IBV_WR_RDMA_WRITE, 1, target, 0, kLength), 0);
      EXPECT_COMPLETION(pair.a.cq.get(), 1, IBV_WC_SUCCESS);
      if (HasFailure()) return;
    }
  });
  const std::vector<uint8_t> zeros(kLength, 0);
  void *shown = first.at, *left = second.at;
  const int count = rounds(500);
  for (int round = 0; round < count && !HasFailure(); ++round) {
    const auto* const last = static_cast<volatile uint8_t*>(shown) + kLength - 1;
    while (*last == 0 && !HasFailure()) std::this_thread::yield();
    EXPECT_EQ(std::memcmp(left, zeros.data(), kLength), 0) << "in round " << round;
    std::swap(shown, left);
    EXPECT_EQ(ibv_rereg_mr(first.mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, shown,
                           Pages::kBytes, 0),
              0);
    std::memset(left, 0, Pages::kBytes);
  }
  over = true;
  writer.join();
  EXPECT_EQ(first.mr->rkey, target.rkey);
  EXPECT_GT(direct(), before);
}

}  // namespace
