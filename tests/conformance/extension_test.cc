// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Atomics and Immediate Data among other messages: their order, their depth, and what they must not
// change. RFC 7306 4 to 7. Faults are in faults_test.cc, message forms in sim/atomics_test.cc.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using O = RdmapOpcode;

uint64_t load(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
Bytes add(RawPeer& peer, uint32_t msn, uint64_t value, uint64_t offset = 0) {
  return atomic_request({.request_id = msn,
                         .remote_stag = peer.stag(),
                         .remote_to = peer.base() + offset,
                         .add_or_swap = value},
                        msn);
}
Bytes read(RawPeer& peer, uint32_t msn, uint32_t size = 8) {
  return read_request({.sink_stag = STag{9},
                       .sink_to = 0,
                       .size = size,
                       .source_stag = peer.stag(),
                       .source_to = peer.base()},
                      msn);
}
Bytes immediate(uint32_t msn, uint32_t value) {
  Bytes ulpdu = untagged(O::kImmediate, 0, msn, 0, 8);
  store_be32(&ulpdu[18], value);
  store_be32(&ulpdu[22], 0);
  return ulpdu;
}
uint64_t answer_of(const Bytes& ulpdu) {
  EXPECT_EQ(opcode_of(ulpdu), O::kAtomicResponse);
  return AtomicResponseHeader::decode(&ulpdu[18]).original_value;
}

// Proves: 7306-5.2.1-d
TEST(AnsweredAtomics, AnyAlignedPlace) {
  RawPeer peer;
  uint32_t msn = 1;
  for (const uint64_t offset : {0, 8, 16, 4096, 19992}) {
    peer.send(add(peer, msn++, 5, offset));
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(answer_of(sent[0]), 0u);
    EXPECT_EQ(load(peer.memory.data() + offset), 5u);
  }
  EXPECT_TRUE(peer.memory.intact());
}

// Proves: 7306-5.2.1-j
TEST(AnsweredAtomics, AreNotReported) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.send(add(peer, 1, 1));
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_TRUE(peer.dut.receives().empty());
  EXPECT_TRUE(peer.dut.sends().empty());
  EXPECT_TRUE(peer.dut.events.empty());
  peer.send(untagged(O::kSend, 0, 1, 0, 3));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 1u);
}

// The negotiated number of Reads and atomics is always under way; they are answered in order.
// Proves: 7306-5.2.2-e 7306-5.2.2-i 7306-5.2.1-n
TEST(AnsweredAtomics, AsManyAsNegotiated) {
  StreamConfig config;
  config.ird = 16;
  RawPeer peer(config);
  uint32_t msn = 1;
  uint64_t expected = 0;
  for (int round = 0; round < 200; ++round) {
    peer.reads = false;
    std::vector<Bytes> requests;
    for (int i = 0; i < 16; ++i, ++msn)
      requests.push_back(i % 5 == round % 5 ? read(peer, msn) : add(peer, msn, 1));
    peer.feed(joined(requests));
    peer.reads = true;
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 16u);
    for (int i = 0; i < 16; ++i) {
      if (i % 5 == round % 5) {
        EXPECT_EQ(load(&sent[static_cast<size_t>(i)][14]), expected);
      } else {
        EXPECT_EQ(answer_of(sent[static_cast<size_t>(i)]), expected++);
      }
    }
  }
  EXPECT_TRUE(peer.dut.events.empty());
}

// A request is delivered once it has arrived completely and all earlier messages have been
// delivered.
// Proves: 7306-5.4-3
TEST(AnsweredAtomics, AreNotStartedBeforeTheyAreDelivered) {
  for (const bool crc : {false, true}) {
    StreamConfig config;
    config.crc = crc;
    const size_t size = [&] {
      RawPeer peer(config);
      return frame(add(peer, 1, 1), crc).size();
    }();
    for (size_t cut = 1; cut < size; ++cut) {
      RawPeer peer(config);
      const Bytes request = frame(add(peer, 1, 1), crc);
      peer.feed(Bytes(request.begin(), request.begin() + static_cast<ptrdiff_t>(cut)));
      ASSERT_TRUE(peer.ulpdus().empty()) << cut;
      ASSERT_EQ(load(peer.memory.data()), 0u) << cut;
      peer.feed(Bytes(request.begin() + static_cast<ptrdiff_t>(cut), request.end()));
      ASSERT_EQ(peer.ulpdus().size(), 1u) << cut;
      ASSERT_EQ(load(peer.memory.data()), 1u) << cut;
    }
  }
  // The atomic follows a Send that has no receive yet.
  RawPeer held;
  held.feed(joined({untagged(O::kSend, 0, 1, 0, 8), add(held, 1, 1)}));
  EXPECT_EQ(load(held.memory.data()), 0u);
  held.post_receive(1, 100);
  held.settle();
  if (held.out.empty()) held.feed({});
  EXPECT_EQ(load(held.memory.data()), 1u);
}

// All earlier messages have taken effect, wherever TCP cuts the bytes.
// Proves: 7306-5.4-5 7306-7-14
TEST(AnsweredAtomics, SeeEarlierWrites) {
  RawPeer peer;
  for (uint32_t round = 1; round <= 5000; ++round) {
    Bytes write = tagged(O::kWrite, peer.stag(), peer.base(), 8);
    const uint64_t value = uint64_t{round} << 20;
    std::memcpy(&write[14], &value, 8);
    const Bytes both = joined({write, add(peer, round, 1)});
    const auto cut = both.begin() + round % static_cast<uint32_t>(both.size());
    peer.feed(Bytes(both.begin(), cut));
    peer.feed(Bytes(cut, both.end()));
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(answer_of(sent[0]), value);
    ASSERT_EQ(load(peer.memory.data()), value + 1);
  }
}

// When the answer to a request is sent, the Send or Immediate Data before it has completed.
// Proves: 7306-7-3 7306-7-4 7306-7-13
TEST(AnsweredAtomics, FollowEarlierCompletions) {
  for (const bool atomic : {false, true}) {
    for (const bool send : {false, true}) {
      RawPeer peer;
      const Bytes first = send ? untagged(O::kSend, 0, 1, 0, 8) : immediate(1, 5);
      const Bytes second = atomic ? add(peer, 1, 1) : read(peer, 1);
      peer.feed(joined({first, second}));
      EXPECT_TRUE(peer.ulpdus().empty()) << "not delivered yet";
      peer.post_receive(1, 100);
      peer.settle();
      // The next call reads the rest of the bytes.
      if (peer.out.empty()) peer.feed({});
      EXPECT_EQ(peer.ulpdus().size(), 1u);
      EXPECT_EQ(peer.dut.receives().size(), 1u);
    }
  }
}

// Proves: 7306-4.1-c
TEST(ReceivedImmediate, IgnoresTheStagToInvalidate) {
  for (const O opcode : {O::kImmediate, O::kImmediateSolicited}) {
    RawPeer peer;
    peer.post_receive(1, 100);
    Bytes ulpdu = untagged(opcode, 0, 1, 0, 8, true, peer.stag());
    ulpdu[0] |= std::byte{0x3C};
    ulpdu[1] |= std::byte{0x30};
    peer.send(ulpdu);
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[0].wc_flags, kWcWithImm);
    EXPECT_NE(peer.regions.find(peer.stag()), nullptr);
  }
}

// Proves: 7306-4.1-c
TEST(ReceivedResponse, IgnoresTheStagToInvalidate) {
  RawPeer peer;
  const Sge result{peer.base() + 64, 8, peer.memory_region->key.load()};
  ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kFetchAdd, 1, result, 8, 2, 1), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  const uint32_t id = AtomicRequestHeader::decode(&sent[0][18]).request_id;
  Bytes ulpdu = atomic_response({.request_id = id, .original_value = 77}, 1);
  store_be32(&ulpdu[2], peer.stag().value);
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  EXPECT_EQ(load(peer.memory.data() + 64), 77u);
  EXPECT_NE(peer.regions.find(peer.stag()), nullptr);
}

// Proves: 7306-6.4-b 7306-7-6
TEST(ReceivedImmediate, CompletesAfterItsWriteIsPlaced) {
  RawPeer peer;
  Bytes write = tagged(O::kWrite, peer.stag(), peer.base(), 10000);
  for (uint32_t round = 1; round <= 10000; ++round) {
    std::memset(&write[14], static_cast<int>(round), 10000);
    peer.post_receive(round);
    const Bytes both = joined({write, immediate(round, round)});
    const auto cut = both.begin() + round * 7919u % static_cast<uint32_t>(both.size());
    peer.feed(Bytes(both.begin(), cut));
    peer.feed(Bytes(cut, both.end()));
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(ntohl(got[0].imm_or_invalidated), round);
    EXPECT_EQ(got[0].byte_len, 10000u);
    ASSERT_EQ(std::memcmp(peer.memory.data(), &write[14], 10000), 0);
  }
}

// Proves: 7306-6.3-c 7306-6.4-a 7306-7-1 7306-7-5
TEST(ReceivedImmediate, CompletesInOrderWithSends) {
  RawPeer peer;
  for (uint64_t id = 1; id <= 6; ++id) peer.post_receive(id, 100);
  peer.feed(joined({untagged(O::kSend, 0, 1, 0, 8), immediate(2, 2), untagged(O::kSend, 0, 3, 0, 8),
                    immediate(4, 4), immediate(5, 5)}));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 5u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(got[i].wr_id, i + 1);
    const bool immediate = i == 1 || i >= 3;
    EXPECT_EQ(got[i].opcode, immediate ? WcOpcode::kRecvWriteWithImm : WcOpcode::kRecv);
    EXPECT_EQ(ntohl(got[i].imm_or_invalidated), immediate ? i + 1 : 0);
  }
}

}  // namespace
}  // namespace uwarp::sim
