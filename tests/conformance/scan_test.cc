// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All that two queue pairs send in a long mixed run is well formed, FPDU by FPDU. (Every other
// simulation is scanned too: sim/sim_pair.h and sim/raw_peer.h.) Other tests show that the scan
// finds faults.
#include <gtest/gtest.h>

#include <set>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using O = RdmapOpcode;

/// Both ends use every operation of verbs, with sizes around every limit.
struct MixedRun : ::testing::TestWithParam<std::tuple<bool, uint16_t>> {
  static QpConfig shape() {
    QpConfig made = End::default_shape();
    made.max_send_wr = made.max_recv_wr = 512;
    return made;
  }
  MixedRun() : pair(29, shape()) {
    pair.chunk_max = 3000;
    config.crc = std::get<0>(GetParam());
    config.mulpdu = std::get<1>(GetParam());
    config.ord = config.ird = 5;
    here.fill(pair.random);
    there.fill(pair.random);
  }
  void post_all(End& end, GuardedMemory& memory, MemoryRegion* region, GuardedMemory& remote,
                uint32_t rkey) {
    uint64_t id = 0;
    for (const size_t size :
         {0u,    1u,    2u,    3u,    4u,    5u,     6u,     7u,     8u,     100u,   1481u,
          1482u, 1483u, 1486u, 1487u, 5000u, 65517u, 65518u, 65521u, 65522u, 100000u}) {
      const Sge whole = Pair::sge(memory, region, 11, size);
      for (const SendOpcode opcode :
           {SendOpcode::kWrite, SendOpcode::kSend, SendOpcode::kRead, SendOpcode::kWriteWithImm}) {
        const uint8_t flags = id % 4 < 2 ? kSendSolicited : 0;
        ASSERT_EQ(end.post(opcode, id++, {&whole, 1}, remote.address() + 200000, rkey, flags), 0);
      }
      const Sge cell = Pair::sge(memory, region, 150000 + 8 * id, 8);
      ASSERT_EQ(end.post_atomic(SendOpcode::kFetchAdd, id++, cell, remote.address() + 8, rkey, 1),
                0);
      ASSERT_EQ(
          end.post_atomic(SendOpcode::kCompareSwap, id++, cell, remote.address() + 16, rkey, 1, 2),
          0);
    }
  }
  StreamConfig config;
  Pair pair;
  GuardedMemory here{400000}, there{400000};
};

// Proves: 5040-3.1-a 5040-3.1-b 5040-3.1-c 5040-3.1-e 5040-3.1-f 5040-4.1-a 5040-4.1-b 5040-4.1-d
// Proves: 5040-4.1-g 5040-4.1-i 5040-4.1-k 5040-4.3-a 5040-4.5-a 5040-4.6-a 5040-5.1-a
// Proves: 5040-5.2.1-a 5040-5.2.2-b 5040-5.2.2-i 5040-5.3-a 5040-6.1-a
// Proves: 5041-4.1-c 5041-4.1-d 5041-4.1-e 5041-4.1-f 5041-4.1-h 5041-4.2-b 5041-4.2-d 5041-4.2-f
// Proves: 5041-4.3-a 5041-4.3-b 5041-4.3-d 5041-4.3-h 5041-4.3-i 5041-4.3-j 5041-5.2-d 5041-5.2-h
// Proves: 5041-5.3-b 5041-5.3-g 5044-4.1-a 5044-4.1-b 5044-4.1-d 5042-p
// Proves: 7306-4.2-a 7306-5.2.1-g 7306-5-d 7306-5.2.2-c 7306-5.2.2-d 7306-6.3-a
TEST_P(MixedRun, IsWellMade) {
  MemoryRegion* mine = pair.reg(pair.a, here, kAllAccess);
  MemoryRegion* theirs = pair.reg(pair.b, there, kAllAccess);
  pair.connect(config);
  for (uint64_t id = 0; id < 200; ++id) {
    const Sge to_here = Pair::sge(here, mine, 290000, 100000);
    const Sge to_there = Pair::sge(there, theirs, 290000, 100000);
    ASSERT_EQ(pair.a.qp->post_recv(id, {&to_here, 1}), 0);
    ASSERT_EQ(pair.b.qp->post_recv(id, {&to_there, 1}), 0);
  }
  post_all(pair.a, here, mine, there, theirs->key.load());
  post_all(pair.b, there, theirs, here, mine->key.load());
  pair.run();
  EXPECT_EQ(pair.a.sends().size(), 21u * 6);
  EXPECT_EQ(pair.b.sends().size(), 21u * 6);
  EXPECT_EQ(pair.a.receives().size(), 21u * 2);
  EXPECT_TRUE(pair.a.events.empty());
  EXPECT_TRUE(pair.b.events.empty());
  for (const Pipe* pipe : {&pair.a_to_b, &pair.b_to_a}) {
    FpduScan scan(config.crc, config.mulpdu);
    scan.feed(pipe->log);
    for (const std::string& finding : scan.findings()) ADD_FAILURE() << finding;
    EXPECT_TRUE(scan.at_boundary());
    std::set<int> opcodes;
    size_t cut = 0;
    for (const ScannedMessage& message : scan.messages()) {
      opcodes.insert(message.opcode);
      cut += message.segments > 1;
    }
    // Every kind of message has been seen, so the scan has checked each of them.
    EXPECT_EQ(opcodes, (std::set<int>{0, 1, 2, 3, 5, 8, 9, 0xA, 0xB}));
    EXPECT_GE(cut, 10u);
  }
  EXPECT_TRUE(here.intact());
  EXPECT_TRUE(there.intact());
}

INSTANTIATE_TEST_SUITE_P(CrcAndMulpdu, MixedRun,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(uint16_t{128}, uint16_t{1500},
                                                              uint16_t{65535})));

// ---- The scan itself

std::vector<std::string> findings_of(const std::vector<Bytes>& fpdus, bool crc = true) {
  FpduScan scan(crc, 1500);
  for (const Bytes& one : fpdus) scan.feed(one);
  return scan.findings();
}
Bytes changed(Bytes ulpdu, size_t at, uint8_t value) {
  ulpdu[at] = std::byte{value};
  return frame(ulpdu, true);
}
Bytes made(const Bytes& ulpdu) { return frame(ulpdu, true); }
Bytes terminated(uint32_t word, const Bytes& rest = {}) {
  Bytes ulpdu = untagged(O::kTerminate, 2, 1, 0, 4 + rest.size());
  store_be32(&ulpdu[18], word);
  std::copy(rest.begin(), rest.end(), ulpdu.begin() + 22);
  return made(ulpdu);
}

TEST(Scan, FindsNothingInGoodStreams) {
  EXPECT_TRUE(findings_of({made(untagged(O::kSend, 0, 1, 0, 10, false)),
                           made(untagged(O::kSend, 0, 1, 10, 5)),
                           made(tagged(O::kWrite, STag{1}, 5, 100, false)),
                           made(tagged(O::kWrite, STag{1}, 105, 1)),
                           made(untagged(O::kSendInvalidate, 0, 2, 0, 0, true, STag{9})),
                           made(read_request({}, 1)), terminated(0x20020000)})
                  .empty());
}

TEST(Scan, FindsEachFault) {
  const Bytes send = untagged(O::kSend, 0, 1, 0, 10), write = tagged(O::kWrite, STag{1}, 0, 10);
  Bytes bad_crc = made(send), bad_pad = made(send);
  bad_crc.back() ^= std::byte{1};
  bad_pad[2 + send.size()] = std::byte{1};
  store_le32(&bad_pad[bad_pad.size() - 4], crc32c(bad_pad.data(), bad_pad.size() - 4));
  Bytes atomic = atomic_request({}, 1);
  atomic[18] = std::byte{1};
  const std::vector<std::vector<Bytes>> faults = {
      {bad_crc},
      {bad_pad},
      {made(Bytes(13, std::byte{0xC1}))},
      {made(Bytes(17, std::byte{0x41}))},
      {made(untagged(O::kSend, 0, 1, 0, 1483))},                   // beyond MULPDU
      {changed(send, 0, 0x40)},                                    // DDP version
      {changed(send, 0, 0x45)},                                    // reserved bits
      {changed(send, 1, 0x03)},                                    // RDMAP version
      {changed(send, 1, 0x53)},                                    // reserved bits
      {changed(send, 1, 0x4C)},                                    // opcode
      {changed(write, 1, 0x43)},                                   // T flag
      {made(untagged(O::kSend, 0, 1, 0, 0, false))},               // empty, not last
      {made(untagged(O::kSend, 1, 1, 0, 1))},                      // queue
      {made(untagged(O::kSend, 0, 2, 0, 1))},                      // first MSN
      {made(send), made(send)},                                    // repeated MSN
      {made(untagged(O::kSend, 0, 1, 4, 1))},                      // first MO
      {made(untagged(O::kSend, 0, 1, 0, 1, true, STag{1}))},       // STag to invalidate
      {made(untagged(O::kSend, 0, 1, 0, 8, false)), made(write)},  // mixed
      {made(untagged(O::kSend, 0, 1, 0, 8, false)), made(untagged(O::kSend, 0, 1, 9, 1))},
      {made(untagged(O::kSend, 0, 1, 0, 8, false)), made(untagged(O::kSend, 0, 2, 8, 1))},
      {made(untagged(O::kSend, 0, 1, 0, 8, false)), made(untagged(O::kSendSolicited, 0, 1, 8, 1))},
      {made(tagged(O::kWrite, STag{1}, 0, 8, false)), made(tagged(O::kWrite, STag{1}, 9, 1))},
      {made(tagged(O::kWrite, STag{1}, 0, 8, false)), made(tagged(O::kWrite, STag{2}, 8, 1))},
      {made(untagged(O::kReadRequest, 1, 1, 0, 27))},
      {made(untagged(O::kReadRequest, 1, 1, 0, 29))},
      {made(untagged(O::kAtomicResponse, 3, 1, 0, 32))},
      {made(atomic)},
      {made(untagged(O::kImmediate, 0, 1, 0, 8))},  // no Write before it
      {terminated(0x20020000), made(write)},        // after a Terminate
      {terminated(0x20020001)},                     // reserved bits
      {terminated(0x30000000)},                     // undefined error
      {terminated(0x01050000)},                     // undefined error
      {terminated(0x01000000)},                     // headers are missing
      {terminated(0x11000000)},                     // headers are missing
      {terminated(0x20020000, Bytes(2))},           // trailing bytes
      {terminated(0x2002C000, Bytes(2 + 18))},      // headers that describe no message
  };
  for (size_t i = 0; i < faults.size(); ++i) EXPECT_FALSE(findings_of(faults[i]).empty()) << i;
  Bytes unwanted = frame(send, false);
  unwanted.back() = std::byte{1};
  EXPECT_FALSE(findings_of({unwanted}, false).empty());
}

}  // namespace
}  // namespace uwarp::sim
