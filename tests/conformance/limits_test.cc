// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Extreme numbers: MSNs that wrap, the longest message, keys that cannot be predicted, full tables
// and queues, and the cost of a stream. RFC 5041 4.3, RFC 5040 8, RFC 5042.
#include "base/limits.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <set>

#include "sim/raw_peer.h"

// GCC 12 has no header for it.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace uwarp::sim {
namespace {

using O = RdmapOpcode;

// Proves: 5041-4.3-g
TEST(Wrap, MsnContinuesAtZero) {
  Pair pair(3);
  pair.chunk_max = 50;
  StreamConfig config;
  config.first_msn = Msn{0xFFFFFFFE};
  pair.connect(config);
  GuardedMemory here(1000), there(1000);
  MemoryRegion* mine = pair.reg(pair.a, here, kAllAccess);
  MemoryRegion* theirs = pair.reg(pair.b, there, kAllAccess);
  const Sge from = Pair::sge(here, mine, 0, 100), to = Pair::sge(there, theirs, 0, 100);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(pair.b.qp->post_recv(id, {&to, 1}), 0);
    ASSERT_EQ(pair.a.post(SendOpcode::kSend, id, {&from, 1}), 0);
    ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, id, Pair::sge(here, mine, 200, 8),
                                 there.address() + 504 - there.address() % 8, theirs->key, 1),
              0);
    ASSERT_EQ(pair.a.post(SendOpcode::kRead, id, {&from, 1}, there.address(), theirs->key), 0);
  }
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 12u);
  EXPECT_EQ(pair.b.receives().size(), 4u);
  EXPECT_TRUE(pair.b.events.empty());
  FpduScan scan(false, 65535, 0xFFFFFFFE);
  scan.feed(pair.a_to_b.log);
  std::vector<uint32_t> sends;
  for (const ScannedMessage& message : scan.messages())
    if (message.opcode == 0x3) sends.push_back(message.msn);
  EXPECT_EQ(sends, (std::vector<uint32_t>{0xFFFFFFFE, 0xFFFFFFFF, 0, 1}));
}

// The longest message, 2 GiB of zeros, from and to null memory regions.
// Proves: 5040-5.1-k
TEST(Longest, MessageIsTaken) {
  RegionTable regions;
  End from(regions), to(regions);
  const uint32_t source =
      (*regions.add({&from.domain, nullptr, ~uint64_t{0}, 0, kAccessLocalWrite, MemoryKind::kNull}))
          ->key;
  const uint32_t sink =
      (*regions.add({&to.domain, nullptr, ~uint64_t{0}, 0, kAccessLocalWrite, MemoryKind::kNull}))
          ->key;
  StreamConfig config;
  ASSERT_TRUE(from.qp->start_stream(config));
  ASSERT_TRUE(to.qp->start_stream(config));
  const Sge sent{0, static_cast<uint32_t>(kMaxMessageBytes), source};
  const Sge received{0, static_cast<uint32_t>(kMaxMessageBytes), sink};
  ASSERT_EQ(to.qp->post_recv(1, {&received, 1}), 0);
  ASSERT_EQ(from.post(SendOpcode::kSend, 2, {&sent, 1}), 0);
  auto turn = from.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  const auto lock = to.qp->receive_side().lock_exclusive();
  for (auto out = from.qp->transmitter().next_iovecs(); !out.empty();
       out = from.qp->transmitter().next_iovecs()) {
    const auto in = to.qp->receiver().next_iovecs(to.staging);
    const size_t size = std::min(out[0].iov_len, in[0].iov_len);
    std::memcpy(in[0].iov_base, out[0].iov_base, size);
    from.qp->transmitter().sent(size);
    EXPECT_EQ(to.qp->receiver().received(to.staging, size) & (kRxFailed | kRxRnrBlocked), 0u);
    if (!to.staging) to.staging = std::make_unique<StagingBuffer>();
  }
  (void)turn.end();
  EXPECT_EQ(from.sends().size(), 1u);
  const auto got = to.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kSuccess);
  EXPECT_EQ(got[0].byte_len, kMaxMessageBytes);
}

// The keys of 10000 regions have no constant step and cover the whole range. Each bit of the upper
// three bytes is set about half the time, and no key is used again soon. The low byte counts
// generations.
// Proves: 5040-8.1.1-8 5042-n
TEST(Keys, CannotBePredicted) {
  RegionTable regions;
  ProtectionDomain domain;
  std::byte memory[64];
  constexpr int kCount = 10000;
  std::vector<uint32_t> keys;
  std::vector<MemoryRegion*> live;
  for (int i = 0; i < kCount; ++i) {
    live.push_back(*regions.add(domain, memory, sizeof memory, 0, kAllAccess));
    keys.push_back(live.back()->key.load());
  }
  EXPECT_EQ(std::set<uint32_t>(keys.begin(), keys.end()).size(), size_t{kCount});
  std::set<uint32_t> steps;
  int set_bits[32] = {};
  std::set<uint32_t> blocks, low;
  for (int i = 0; i < kCount; ++i) {
    if (i > 0) steps.insert(keys[i] - keys[i - 1]);
    for (int bit = 0; bit < 32; ++bit) set_bits[bit] += keys[i] >> bit & 1;
    blocks.insert(keys[i] >> 24);
    low.insert(keys[i] & 0xFF);
  }
  EXPECT_GT(steps.size(), kCount * 9 / 10u);
  // Five standard deviations around one half.
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_GT(set_bits[bit], kCount / 2 - 250) << bit;
    EXPECT_LT(set_bits[bit], kCount / 2 + 250) << bit;
  }
  EXPECT_EQ(blocks.size(), 256u);
  EXPECT_EQ(low.size(), 256u);
  // Another table in the same process uses other keys.
  RegionTable others;
  EXPECT_NE((*others.add(domain, memory, sizeof memory, 0, kAllAccess))->key.load(), keys[0]);
  const std::set<uint32_t> old(keys.begin(), keys.end());
  for (MemoryRegion* region : live) {
    ASSERT_EQ(regions.invalidate(*region), 0);
    regions.release(*region);
  }
  for (int i = 0; i < kCount; ++i)
    EXPECT_EQ(old.count((*regions.add(domain, memory, sizeof memory, 0, kAllAccess))->key), 0u);
}

// Proves: 5040-8.1.2-2
TEST(Tables, AreFullAtTheirLimit) {
  RegionTable regions;
  ProtectionDomain domain;
  std::byte memory[64];
  for (uint32_t i = 0; i < kMaxMr; ++i)
    ASSERT_TRUE(regions.add(domain, memory, sizeof memory, 0, kAllAccess).ok()) << i;
  const auto more = regions.add(domain, memory, sizeof memory, 0, kAllAccess);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error(), ENOMEM);
}

// A completion queue that overflows ends its own queue pair, and no other.
// Proves: 5040-8.1.1-10
TEST(Overrun, EndsOneStreamOnly) {
  struct Counter : CompletionNotifier {
    void completion_event() override {}
    void completion_overrun() override { ++overruns; }
    int overruns = 0;
  } counter;
  CompletionQueue small(4, &counter);
  QpConfig shape = End::default_shape();
  RegionTable regions;
  ProtectionDomain domain;
  struct Listener : QpEventListener {
    void qp_event(QpEvent event) override { events.push_back(event); }
    std::vector<QpEvent> events;
  } listener;
  shape.domain = &domain;
  shape.regions = &regions;
  shape.send_cq = shape.recv_cq = &small;
  shape.listener = &listener;
  QueuePair qp(shape);
  qp.to_init();
  ASSERT_TRUE(qp.start_stream({}));
  RawPeer other;
  for (uint64_t id = 0; id < 20; ++id) {
    ASSERT_EQ(qp.post_recv(id, {}), 0);
    other.post_receive(id, 100);
  }
  StagingPointer staging = std::make_unique<StagingBuffer>();
  for (uint32_t msn = 1; msn <= 20; ++msn) {
    const Bytes fpdu = frame(untagged(O::kSend, 0, msn, 0, 0), false);
    {
      const auto side = qp.receive_side().lock_exclusive();
      std::memcpy(qp.receiver().next_iovecs(staging)[0].iov_base, fpdu.data(), fpdu.size());
      qp.receiver().received(staging, fpdu.size());
    }
    if (!staging) staging = std::make_unique<StagingBuffer>();
    if (qp.flush_due()) qp.flush();
    other.send(untagged(O::kSend, 0, msn, 0, 8));
  }
  EXPECT_EQ(counter.overruns, 1);
  EXPECT_EQ(qp.state(), QpState::kErr);
  EXPECT_EQ(listener.events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(other.dut.receives().size(), 20u);
  EXPECT_EQ(other.dut.qp->state(), QpState::kRts);
  EXPECT_TRUE(other.dut.events.empty());
}

// Peers stop in the middle of an FPDU and do not read the answers. Such streams cost no more memory
// the hundredth time than the first.
// Proves: 5042-g
TEST(Cost, OfStalledStreamsIsBounded) {
  constexpr size_t kStreams = 200, kHalf = 10000;
  for (const bool crc : {false, true}) {
    std::vector<std::unique_ptr<RawPeer>> peers;
    StreamConfig config;
    config.crc = crc;
    for (size_t i = 0; i < kStreams; ++i) peers.push_back(std::make_unique<RawPeer>(config));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const auto used = __sanitizer_get_current_allocated_bytes;
#else
    const auto used = [] { return static_cast<size_t>(mallinfo2().uordblks); };
#endif
    const size_t before = used();
    for (auto& peer : peers) {
      peer->reads = false;
      for (uint32_t msn = 1; msn <= 4; ++msn)
        peer->send(read_request({.sink_stag = STag{1},
                                 .sink_to = 0,
                                 .size = 20000,
                                 .source_stag = peer->stag(),
                                 .source_to = peer->base()},
                                msn));
    }
    size_t once = 0;
    for (int round = 0; round < 100; ++round) {
      for (auto& peer : peers) {
        const Bytes fpdu = frame(tagged(O::kWrite, peer->stag(), peer->base(), 2 * kHalf), crc);
        const auto half = fpdu.begin() + kHalf;
        if (round > 0) peer->feed(Bytes(half, fpdu.end()));
        peer->feed(Bytes(fpdu.begin(), half));
      }
      if (round == 0) once = used() - before;
    }
    EXPECT_LT(once / kStreams, 400'000u) << "bytes per stream";
    EXPECT_LE(used() - before, once + once / 20);
    for (auto& peer : peers) EXPECT_TRUE(peer->dut.events.empty());
  }
}

}  // namespace
}  // namespace uwarp::sim
