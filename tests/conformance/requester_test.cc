// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the queue pair sends for each verb, in which order and how much at a time, and when a
// request completes. RFC 5040 4 to 6, RFC 5041 4 and 5.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;
using O = RdmapOpcode;

struct Requester : ::testing::Test {
  static QpConfig deep() {
    QpConfig shape = End::default_shape();
    shape.max_send_wr = 256;
    return shape;
  }
  explicit Requester(StreamConfig config = {}) : peer(config, deep()) {
    for (size_t i = 0; i < peer.memory.size(); ++i)
      peer.memory.data()[i] = static_cast<std::byte>(i * 3 + i / 250);
  }
  Sge sge(size_t offset, uint32_t length) {
    return {peer.base() + offset, length, peer.memory_region->key.load()};
  }
  int post(SendOpcode opcode, uint64_t id, const Sge& one, uint64_t remote = 0x1000,
           uint32_t rkey = 0x55, uint8_t flags = kSendSignaled) {
    return peer.dut.post(opcode, id, {&one, 1}, remote, rkey, flags);
  }
  bool holds(const Bytes& ulpdu, size_t header, size_t offset, size_t size) {
    return ulpdu.size() == header + size &&
           std::memcmp(&ulpdu[header], peer.memory.data() + offset, size) == 0;
  }
  ReadRequestHeader request_of(const Bytes& ulpdu) {
    EXPECT_EQ(opcode_of(ulpdu), O::kReadRequest);
    return ReadRequestHeader::decode(&ulpdu[18]);
  }
  std::vector<uint64_t> completed() {
    std::vector<uint64_t> ids;
    for (const auto& one : peer.dut.sends()) {
      EXPECT_EQ(one.status, WcStatus::kSuccess);
      ids.push_back(one.wr_id);
    }
    return ids;
  }
  using Ids = std::vector<uint64_t>;
  RawPeer peer;
};

// Proves: 5040-4.1-e 5040-4.1-f 5040-4.1-c 5040-4.7-a 5040-5.3-n 5041-5.2-f 7306-1.1-c
TEST_F(Requester, EachVerbHasItsOpcode) {
  struct Row {
    SendOpcode verb;
    uint8_t flags;
    uint8_t opcode;
  };
  const Row rows[] = {{SendOpcode::kWrite, 0, 0x0},
                      {SendOpcode::kRead, 0, 0x1},
                      {SendOpcode::kSend, 0, 0x3},
                      {SendOpcode::kSendWithInvalidate, 0, 0x4},
                      {SendOpcode::kSend, kSendSolicited, 0x5},
                      {SendOpcode::kSendWithInvalidate, kSendSolicited, 0x6}};
  uint32_t sends = 0;
  for (const Row& row : rows) {
    ASSERT_EQ(post(row.verb, 1, sge(0, 8), 0x1122334455667788, 0xAABBCCDD, row.flags), 0);
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0][1], std::byte(0x40 | row.opcode));
    if (row.verb == SendOpcode::kWrite) {
      const TaggedHeader header = TaggedHeader::decode(sent[0].data());
      EXPECT_EQ(header.stag, STag{0xAABBCCDD});
      EXPECT_EQ(header.to, 0x1122334455667788u);
    } else if (row.verb == SendOpcode::kRead) {
      EXPECT_EQ(load_be32(&sent[0][6]), 1u);
    } else {
      const bool invalidates = row.verb == SendOpcode::kSendWithInvalidate;
      EXPECT_EQ(load_be32(&sent[0][2]), invalidates ? 0xAABBCCDD : 0);
      EXPECT_EQ(load_be32(&sent[0][6]), 0u);
      EXPECT_EQ(load_be32(&sent[0][10]), ++sends);
    }
  }
}

// Proves: 5040-4.4-a
TEST_F(Requester, ReadRequestHasItsLayout) {
  ASSERT_EQ(post(SendOpcode::kRead, 1, sge(0, 0x1234), 0x1122334455667788, 0xAABBCCDD), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  Bytes expected = from_hex(
      "4141 00000000 00000001 00000001 00000000"
      "00000000 0000000000000000 00001234 aabbccdd 1122334455667788");
  std::copy_n(sent[0].begin() + 18, 4, expected.begin() + 18);  // the sender chooses this field
  EXPECT_EQ(sent[0], expected);
  EXPECT_NE(load_be32(&sent[0][18]), 0u);
}

// Proves: 5040-5.1-f 5040-5.3-i 5041-5.2-c
TEST_F(Requester, GatheredIsOneMessage) {
  const Sge pieces[] = {sge(5, 100), sge(3000, 1), sge(700, 0), sge(10000, 2500)};
  ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 1, pieces, 0x1000, 0x55), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, pieces), 0);
  peer.settle();
  const auto& messages = peer.scan.messages();
  ASSERT_EQ(messages.size(), 2u);
  for (const ScannedMessage& message : messages) {
    ASSERT_EQ(message.payload.size(), 2601u);
    size_t at = 0;
    for (const Sge& piece : pieces) {
      const auto* from = reinterpret_cast<const std::byte*>(piece.address);
      EXPECT_EQ(std::memcmp(&message.payload[at], from, piece.length_bytes), 0);
      at += piece.length_bytes;
    }
  }
  EXPECT_EQ(messages[0].to, 0x1000u);
  peer.ulpdus();
}

// Proves: 5040-5.1-g 5040-5.3-k 5041-5.3-a 5040-5.5-13 5040-5.5-15
TEST_F(Requester, RequestsAreSentInPostingOrder) {
  Random random(5);
  std::vector<uint8_t> expected;
  for (uint64_t id = 0; id < 100; ++id) {
    const uint64_t kind = pick(random, 0, 3);
    const SendOpcode verbs[] = {SendOpcode::kWrite, SendOpcode::kSend,
                                SendOpcode::kSendWithInvalidate, SendOpcode::kSend};
    ASSERT_EQ(post(verbs[kind], id, sge(id, 8), 0x1000 + id, 0x55,
                   kind == 3 ? kSendSignaled | kSendSolicited : kSendSignaled),
              0);
    expected.push_back(std::array<uint8_t, 4>{0, 3, 4, 5}[kind]);
  }
  peer.settle();
  const auto& messages = peer.scan.messages();
  ASSERT_EQ(messages.size(), 100u);
  for (size_t id = 0; id < 100; ++id) {
    EXPECT_EQ(messages[id].opcode, expected[id]);
    EXPECT_EQ(std::memcmp(messages[id].payload.data(), peer.memory.data() + id, 8), 0);
    if (expected[id] == 0) {
      EXPECT_EQ(messages[id].to, 0x1000 + id);
    }
  }
  const Ids ids = completed();
  ASSERT_EQ(ids.size(), 100u);
  for (uint64_t id = 0; id < 100; ++id) EXPECT_EQ(ids[id], id);
  peer.ulpdus();
}

// Proves: 5040-5.1-j 5040-5.3-l 5040-5.2.1-l
TEST_F(Requester, EmptyMessages) {
  ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 1, {}, 0x1000, 0x55), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 3, {}, 0x1000, 0x55), 0);
  peer.settle();
  ASSERT_EQ(peer.out.size(), 20u + 24 + 52);
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].size(), 14u);
  EXPECT_EQ(sent[1].size(), 18u);
  const ReadRequestHeader read = request_of(sent[2]);
  EXPECT_EQ(read.size, 0u);
  EXPECT_EQ(completed(), (Ids{1, 2}));
  peer.send(tagged(O::kReadResponse, read.sink_stag, read.sink_to, 0));
  EXPECT_EQ(completed(), (Ids{3}));
  EXPECT_TRUE(peer.dut.events.empty());
}

struct Segmented : Requester {
  Segmented() : Requester(StreamConfig{.mulpdu = 1500}) {}
};

// Proves: 5041-5.2-a 5041-5.2-e 5041-5.2-g 5041-3-1
TEST_F(Segmented, FollowsMulpdu) {
  ASSERT_EQ(post(SendOpcode::kSend, 1, sge(0, 2048)), 0);
  ASSERT_EQ(post(SendOpcode::kWrite, 2, sge(0, 2048), 16384), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_TRUE(holds(sent[0], 18, 0, 1482));
  EXPECT_TRUE(holds(sent[1], 18, 1482, 566));
  EXPECT_EQ(UntaggedHeader::decode(sent[0].data()).mo, 0u);
  EXPECT_EQ(UntaggedHeader::decode(sent[1].data()).mo, 1482u);
  EXPECT_TRUE(holds(sent[2], 14, 0, 1486));
  EXPECT_TRUE(holds(sent[3], 14, 1486, 562));
  EXPECT_EQ(TaggedHeader::decode(sent[2].data()).to, 16384u);
  EXPECT_EQ(TaggedHeader::decode(sent[3].data()).to, 17870u);
}

// Proves: 5041-5.2-b
TEST_F(Requester, TooLongMessagesAreRefusedAtPost) {
  const uint32_t lkey = peer.memory_region->key.load();
  for (const uint64_t size : {kMaxMessageBytes + 1, (uint64_t{1} << 32) - 1, uint64_t{1} << 32}) {
    const Sge two[] = {{peer.base(), 1u << 31, lkey},
                       {peer.base(), static_cast<uint32_t>(size - (1u << 31)), lkey}};
    for (const SendOpcode opcode : {SendOpcode::kSend, SendOpcode::kWrite, SendOpcode::kRead})
      EXPECT_EQ(peer.dut.post(opcode, 1, two, 0x1000, 0x55), EINVAL) << size;
  }
  peer.settle();
  EXPECT_TRUE(peer.ulpdus().empty());
}

// ---- Reads

// Proves: 5040-5.2.1-g 5040-5.2.2-d 5040-5.2.2-f 5040-5.5-11 5040-5.5-19 5040-5.5-20c 5041-4.2-a
// Proves: 5040-5.2-a
TEST(Reads, CompleteWithTheirResponses) {
  StreamConfig config;
  config.ord = 16;
  RawPeer peer(config);
  for (uint64_t id = 0; id < 16; ++id) {
    const Sge sink{peer.base() + 101 * id, 100, peer.memory_region->key.load()};
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, id, {&sink, 1}, 0x1000 + id, 5), 0);
  }
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 16u);
  for (uint32_t id = 0; id < 16; ++id) {
    const auto request = ReadRequestHeader::decode(&sent[id][18]);
    EXPECT_EQ(UntaggedHeader::decode(sent[id].data()).msn, Msn{id + 1});
    EXPECT_EQ(request.source_to, 0x1000u + id);
    // All bytes but the last: the Read is not complete.
    const Bytes fpdu =
        frame(tagged(O::kReadResponse, request.sink_stag, request.sink_to, 60, false), false);
    peer.feed(fpdu);
    const Bytes rest =
        frame(tagged(O::kReadResponse, request.sink_stag, request.sink_to + 60, 40), false);
    peer.feed(Bytes(rest.begin(), rest.end() - 1));
    EXPECT_TRUE(peer.dut.sends().empty());
    peer.feed(Bytes(rest.end() - 1, rest.end()));
    const auto done = peer.dut.sends();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].wr_id, id);
    EXPECT_EQ(done[0].status, WcStatus::kSuccess);
    EXPECT_EQ(done[0].byte_len, 100u);
    for (size_t i = 0; i < 100; ++i) ASSERT_EQ(peer.memory.data()[101 * id + i], std::byte{0x3C});
    EXPECT_EQ(peer.memory.data()[101 * id + 100], std::byte{0});
  }
  EXPECT_TRUE(peer.ulpdus().empty());
}

// Proves: 5040-6.1-d 5040-6.1-e 5040-6.1-b 5040-6.1-h
TEST(Reads, NeverMoreThanOrd) {
  for (const uint16_t ord : {uint16_t{1}, uint16_t{2}, uint16_t{16}}) {
    StreamConfig config;
    config.ord = ord;
    RawPeer peer(config);
    const Sge sink{peer.base(), 8, peer.memory_region->key.load()};
    const uint64_t all = 4u * ord;
    for (uint64_t id = 0; id < all; ++id)
      ASSERT_EQ(peer.dut.post(SendOpcode::kRead, id, {&sink, 1}, id, 5), 0);
    for (int i = 0; i < 3; ++i) peer.settle();
    std::deque<ReadRequestHeader> open;
    const auto look = [&] {
      for (const Bytes& one : peer.ulpdus()) open.push_back(ReadRequestHeader::decode(&one[18]));
    };
    look();
    ASSERT_EQ(open.size(), ord);
    for (uint64_t id = 0; id < all; ++id) {
      const ReadRequestHeader request = open.front();
      open.pop_front();
      EXPECT_EQ(request.source_to, id);
      peer.send(tagged(O::kReadResponse, request.sink_stag, request.sink_to, 8));
      EXPECT_EQ(peer.dut.sends().size(), 1u);
      look();
      EXPECT_EQ(open.size(), std::min<uint64_t>(ord, all - id - 1));
    }
  }
}

// Proves: 5040-6.1-g
TEST_F(Requester, NoReadWithOrdZero) {
  peer.dut.qp->set_ord(0);
  ASSERT_EQ(post(SendOpcode::kRead, 1, sge(0, 8)), 0);
  peer.settle();
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kLocQpOpErr);
  for (const Bytes& one : peer.ulpdus()) EXPECT_NE(opcode_of(one), O::kReadRequest);
}

// The Send was sent long ago, but completes only after the Read before it.
// Proves: 5040-5.5-15 4296-2.2.1-c
TEST_F(Requester, CompletesInOrderBehindARead) {
  ASSERT_EQ(post(SendOpcode::kRead, 1, sge(0, 8)), 0);
  ASSERT_EQ(post(SendOpcode::kSend, 2, sge(0, 8)), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(peer.dut.sends().empty());
  const auto request = request_of(sent[0]);
  peer.send(tagged(O::kReadResponse, request.sink_stag, request.sink_to, 8));
  EXPECT_EQ(completed(), (Ids{1, 2}));
}

// Proves: 5040-5.5-12c 5040-B-11
TEST_F(Requester, FenceWaitsForTheRead) {
  ASSERT_EQ(post(SendOpcode::kRead, 1, sge(0, 8)), 0);
  ASSERT_EQ(post(SendOpcode::kWrite, 2, sge(0, 8), 0x1000, 5, kSendSignaled | kSendFence), 0);
  for (int i = 0; i < 3; ++i) peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  const auto request = request_of(sent[0]);
  const Bytes response =
      frame(tagged(O::kReadResponse, request.sink_stag, request.sink_to, 8), false);
  peer.feed(Bytes(response.begin(), response.end() - 1));
  EXPECT_TRUE(peer.ulpdus().empty());
  peer.feed(Bytes(response.end() - 1, response.end()));
  const auto fenced = peer.ulpdus();
  ASSERT_EQ(fenced.size(), 1u);
  // The fenced Write sends the bytes that the Read has placed.
  EXPECT_EQ(fenced[0][14], std::byte{0x3C});
}

// Proves: 5040-B-10
TEST(Fence, ACompletedReadProvesThatEarlierWritesArePlaced) {
  Pair pair(3);
  pair.chunk_max = 700;
  pair.connect();
  GuardedMemory here(5000), there(5000);
  MemoryRegion* mine = pair.reg(pair.a, here, kAllAccess);
  MemoryRegion* theirs = pair.reg(pair.b, there, kAllAccess);
  for (int round = 0; round < 200; ++round) {
    here.fill(pair.random);
    const Sge from = Pair::sge(here, mine, 0, 3000), sink = Pair::sge(here, mine, 4000, 1);
    ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 1, {&from, 1}, there.address(), theirs->key), 0);
    ASSERT_EQ(pair.a.post(SendOpcode::kRead, 2, {&sink, 1}, there.address() + 4500, theirs->key),
              0);
    std::vector<WorkCompletion> done;
    for (int turn = 0; done.size() < 2 && turn < 10000; ++turn) {
      pair.step(pair.a, pair.a_to_b, pair.b_to_a);
      pair.step(pair.b, pair.b_to_a, pair.a_to_b);
      for (const auto& one : pair.a.sends()) done.push_back(one);
    }
    ASSERT_EQ(done.size(), 2u);
    ASSERT_EQ(std::memcmp(here.data(), there.data(), 3000), 0);
  }
}

// ---- RTR (RFC 6581 9.2)

// The RTR comes before all requests, and has no completion.
// Proves: 6581-9.2-d 6581-9.2-f 6581-9.2-g
TEST(Rtr, IsTheFirstFpdu) {
  for (const auto kind : {StreamConfig::Rtr::kWrite, StreamConfig::Rtr::kRead}) {
    StreamConfig config;
    config.rtr = kind;
    RawPeer peer(config);
    const Sge sink{peer.base(), 8, peer.memory_region->key.load()};
    peer.post_receive(7, 100);
    ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 1, {}), 0);
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 2, {&sink, 1}, 1, 2), 0);
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 3u);
    EXPECT_EQ(opcode_of(sent[1]), O::kSend);
    uint32_t next_msn = 1;
    if (kind == StreamConfig::Rtr::kWrite) {
      EXPECT_EQ(opcode_of(sent[0]), O::kWrite);
      EXPECT_EQ(sent[0].size(), 14u);
    } else {
      EXPECT_EQ(opcode_of(sent[0]), O::kReadRequest);
      const auto rtr = ReadRequestHeader::decode(&sent[0][18]);
      EXPECT_EQ(rtr.size, 0u);
      EXPECT_EQ(UntaggedHeader::decode(sent[0].data()).msn, Msn{next_msn++});
      EXPECT_EQ(peer.dut.sends().size(), 1u);
      peer.send(tagged(O::kReadResponse, rtr.sink_stag, rtr.sink_to, 0));
      EXPECT_TRUE(peer.dut.sends().empty()) << "its answer completes nothing";
    }
    EXPECT_EQ(UntaggedHeader::decode(sent[2].data()).msn, Msn{next_msn});
    const auto read = ReadRequestHeader::decode(&sent[2][18]);
    peer.send(tagged(O::kReadResponse, read.sink_stag, read.sink_to, 8));
    const auto done = peer.dut.sends();
    EXPECT_EQ(done.back().wr_id, 2u);
    EXPECT_EQ(done.size(), kind == StreamConfig::Rtr::kWrite ? 2u : 1u);
    EXPECT_TRUE(peer.dut.receives().empty());
    EXPECT_TRUE(peer.dut.events.empty());
  }
}

// The peer's RTR takes no receive and has no completion; an RTR that is a Read is answered and
// counted.
// Proves: 6581-9.2-f 6581-9.2-g
TEST(Rtr, OfThePeerIsNotShown) {
  for (const bool read : {false, true}) {
    StreamConfig config;
    config.wait_for_first_fpdu = true;
    RawPeer peer(config);
    peer.post_receive(7, 100);
    const auto request = [&](uint32_t size, uint32_t msn) {
      return read_request({.sink_stag = STag{1},
                           .sink_to = 0,
                           .size = size,
                           .source_stag = peer.stag(),
                           .source_to = peer.base()},
                          msn);
    };
    peer.send(read ? request(0, 1) : tagged(O::kWrite, STag{1}, 0, 0));
    EXPECT_EQ(peer.ulpdus().size(), read ? 1u : 0u);
    peer.send(request(8, read ? 2 : 1));
    EXPECT_EQ(peer.ulpdus().size(), 1u);
    EXPECT_TRUE(peer.dut.receives().empty());
    EXPECT_TRUE(peer.dut.sends().empty());
    EXPECT_TRUE(peer.dut.events.empty());
    peer.send(untagged(O::kSend, 0, 1, 0, 4));
    EXPECT_EQ(peer.dut.receives().size(), 1u);
  }
}

// ---- Completion

// A request completes only after its last byte is handed to the kernel.
// Proves: 5040-5.5-14 5041-5.4-a
TEST_F(Requester, CompletesWhenHandedOver) {
  peer.reads = false;
  ASSERT_EQ(post(SendOpcode::kSend, 1, sge(0, 8)), 0);
  ASSERT_EQ(post(SendOpcode::kWrite, 2, sge(0, 5000)), 0);
  peer.settle();
  EXPECT_TRUE(peer.dut.sends().empty());
  auto turn = peer.dut.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  size_t all = 0;
  for (const iovec& piece : peer.dut.qp->transmitter().next_iovecs()) all += piece.iov_len;
  ASSERT_EQ(all, fpdu_size(18 + 8) + fpdu_size(14 + 5000));
  size_t given = 0;
  const auto give = [&](size_t upto) {
    for (; given < upto; ++given) {
      (void)peer.dut.qp->transmitter().next_iovecs();
      peer.dut.qp->transmitter().sent(1);
    }
    return peer.dut.sends().size();
  };
  EXPECT_EQ(give(fpdu_size(18 + 8) - 1), 0u);
  EXPECT_EQ(give(fpdu_size(18 + 8)), 1u);
  EXPECT_EQ(give(all - 1), 0u);
  EXPECT_EQ(give(all), 1u);
  (void)turn.end();
}

// Errors that the device finds itself: the Terminate has no headers, since no message caused it.
// Proves: 5040-7.1-b 5040-4.8-k
TEST(LocalErrors, SendATerminateWithoutHeaders) {
  struct Row {
    const char* what;
    SendOpcode opcode;
    uint32_t lkey_xor, access, length;
    WcStatus status;
  };
  for (const Row& row :
       {Row{"Send, bad key", SendOpcode::kSend, 1, 0, 8, WcStatus::kLocProtErr},
        Row{"Write, bad key", SendOpcode::kWrite, 1, 0, 8, WcStatus::kLocProtErr},
        Row{"Write, past the end", SendOpcode::kWrite, 0, 0, 101, WcStatus::kLocProtErr},
        Row{"Read, bad key", SendOpcode::kRead, 1, kAccessLocalWrite, 8, WcStatus::kLocProtErr},
        Row{"Read into read-only memory", SendOpcode::kRead, 0, 0, 8, WcStatus::kLocProtErr}}) {
    SCOPED_TRACE(row.what);
    RawPeer peer;
    const MemoryRegion* region =
        *peer.regions.add(peer.dut.domain, peer.memory.data(), 100, peer.base(), row.access);
    const Sge one{peer.base(), row.length, region->key.load() ^ row.lkey_xor};
    peer.post_receive(7, 100);
    ASSERT_EQ(peer.dut.post(row.opcode, 1, {&one, 1}, 0x1000, 5), 0);
    ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
    peer.settle();
    EXPECT_EQ(peer.ulpdus(),
              std::vector<Bytes>{from_hex("4147 00000000 00000002 00000001 00000000 0000 0000")});
    EXPECT_TRUE(peer.dut.qp->transmitter().finished());
    const auto done = peer.dut.sends();
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].status, row.status);
    EXPECT_EQ(done[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.dut.receives().size(), 1u);
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
  }
}

// The Terminate comes after the FPDU that is half sent, and nothing comes after the Terminate.
// Proves: 5040-6.2.1-e 5040-5.4-h
TEST_F(Requester, TerminateFollowsAWholeFpdu) {
  peer.reads = false;
  ASSERT_EQ(post(SendOpcode::kWrite, 1, sge(0, 20000)), 0);
  ASSERT_EQ(post(SendOpcode::kRead, 2, sge(0, 8)), 0);
  ASSERT_EQ(post(SendOpcode::kSend, 3, sge(0, 8), 0, 0, kSendSignaled | kSendFence), 0);
  auto turn = peer.dut.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  const iovec first = peer.dut.qp->transmitter().next_iovecs()[0];
  ASSERT_GT(first.iov_len, 10u);
  const auto* from = static_cast<const std::byte*>(first.iov_base);
  peer.out.assign(from, from + 10);
  peer.scan.feed(peer.out);
  peer.dut.qp->transmitter().sent(10);
  (void)turn.end();
  // Reads whose answers are still owed, then the fault.
  Bytes burst;
  for (uint32_t msn = 1; msn <= 3; ++msn) {
    const Bytes one = frame(read_request({.sink_stag = STag{7},
                                          .sink_to = 0,
                                          .size = 100,
                                          .source_stag = peer.stag(),
                                          .source_to = peer.base()},
                                         msn),
                            false);
    burst.insert(burst.end(), one.begin(), one.end());
  }
  const Bytes bad = frame(tagged(O::kWrite, STag{3}, 0, 8), false);
  burst.insert(burst.end(), bad.begin(), bad.end());
  peer.feed(burst);
  peer.reads = true;
  for (int i = 0; i < 3; ++i) peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_GE(sent.size(), 2u);
  EXPECT_TRUE(holds(sent[0], 14, 0, 20000));
  EXPECT_EQ(opcode_of(sent.back()), O::kTerminate);
  EXPECT_TRUE(peer.scan.at_boundary());
  EXPECT_EQ(post(SendOpcode::kSend, 4, sge(0, 8)), 0);
  peer.settle();
  EXPECT_TRUE(peer.ulpdus().empty());
  EXPECT_EQ(peer.dut.sends().size(), 4u);
}

// Proves: 5040-5.4-i
TEST_F(Requester, StopsAtABoundaryBehindThePeersTerminate) {
  peer.reads = false;
  ASSERT_EQ(post(SendOpcode::kWrite, 1, sge(0, 20000)), 0);
  ASSERT_EQ(post(SendOpcode::kSend, 2, sge(0, 8)), 0);
  auto turn = peer.dut.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  const iovec first = peer.dut.qp->transmitter().next_iovecs()[0];
  const auto* from = static_cast<const std::byte*>(first.iov_base);
  peer.out.assign(from, from + 10);
  peer.scan.feed(peer.out);
  peer.dut.qp->transmitter().sent(10);
  (void)turn.end();
  Bytes terminate = untagged(O::kTerminate, 2, 1, 0, 4);
  store_be32(&terminate[18], 0x01020000);
  peer.send(terminate);
  peer.reads = true;
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(holds(sent[0], 14, 0, 20000));
  EXPECT_TRUE(peer.scan.at_boundary());
  EXPECT_TRUE(peer.dut.qp->transmitter().finished());
  EXPECT_EQ(peer.dut.sends().size(), 2u);
}

// An application that changes its source memory during a Send damages its data, not the framing.
// Proves: 5040-5.5-8
TEST(ChangedSource, LeavesTheFramingValid) {
  StreamConfig config;
  config.crc = true;
  RawPeer peer(config);
  peer.reads = false;
  const Sge one{peer.base(), 20000, peer.memory_region->key.load()};
  ASSERT_EQ(peer.dut.post(SendOpcode::kWrite, 1, {&one, 1}, 0, 5), 0);
  for (uint32_t msn = 1; msn <= 2; ++msn)
    peer.send(read_request({.sink_stag = STag{7},
                            .sink_to = 0,
                            .size = 20000,
                            .source_stag = peer.stag(),
                            .source_to = peer.base()},
                           msn));
  auto turn = peer.dut.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  Random random(1);
  for (auto window = peer.dut.qp->transmitter().next_iovecs(); !window.empty();
       window = peer.dut.qp->transmitter().next_iovecs()) {
    peer.memory.fill(random);
    const auto* from = static_cast<const std::byte*>(window[0].iov_base);
    const size_t size = std::min<size_t>(window[0].iov_len, 1000);
    peer.out.insert(peer.out.end(), from, from + size);
    peer.scan.feed({from, size});
    peer.dut.qp->transmitter().sent(size);
  }
  (void)turn.end();
  // ulpdus() checks each CRC.
  EXPECT_EQ(peer.ulpdus().size(), 3u);
}

}  // namespace
}  // namespace uwarp::sim
