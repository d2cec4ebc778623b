// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RDMA Write with Immediate, and Send with Immediate between uwarps. RFC 7306 6, 7; docs/wire.md.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;
using O = RdmapOpcode;

Bytes immediate(uint32_t msn, uint32_t first, uint32_t second = 0, bool solicited = false) {
  Bytes ulpdu = untagged(solicited ? O::kImmediateSolicited : O::kImmediate, 0, msn, 0, 8);
  store_be32(ulpdu.data() + UntaggedHeader::kWireSize, first);
  store_be32(ulpdu.data() + UntaggedHeader::kWireSize + 4, second);
  return ulpdu;
}

int post_write_imm(End& end, std::span<const Sge> sges, uint64_t remote, uint32_t rkey,
                   uint32_t imm, uint8_t flags = kSendSignaled, uint64_t wr_id = 1) {
  SendRequest request;
  request.wr_id = wr_id;
  request.opcode = SendOpcode::kWriteWithImm;
  request.flags = flags;
  request.sges = sges;
  request.remote_address = remote;
  request.rkey = rkey;
  request.imm_or_invalidate = htonl(imm);
  return end.qp->post_send(request);
}

// X24, X25 with the MSNs of this stream. 7306-6.2-a, -6.3-a, -d, -e, -6.4-f.
// Proves: 7306-4.1-b 7306-6-a 7306-6.2-a 7306-6.3-e 7306-6.3-f 7306-6.4-f
TEST(WriteWithImmediate, WireForm) {
  StreamConfig config;
  config.crc = true;
  RawPeer peer(config);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 0, {}), 0);
  ASSERT_EQ(post_write_imm(peer.dut, {}, 0x10, 0x20, 0xcafef00d), 0);
  ASSERT_EQ(post_write_imm(peer.dut, {}, 0x10, 0x20, 1, kSendSignaled | kSendSolicited), 0);
  peer.settle();
  const Bytes sixth = from_hex("001a414800000000000000000000000600000000cafef00d00000000706420fc");
  const Bytes seventh =
      from_hex("001a4149000000000000000000000007000000000000000100000000625a407b");
  ASSERT_GE(peer.out.size(), 5 * 24 + 2 * (20 + 32u));
  const auto at = peer.out.end() - 32;
  EXPECT_TRUE(std::equal(seventh.begin(), seventh.end(), at));
  EXPECT_TRUE(std::equal(sixth.begin(), sixth.end(), at - 20 - 32));
  const auto all = peer.ulpdus();
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(opcode_of(all[5]), O::kWrite);  // also if the Write is empty
  EXPECT_EQ(opcode_of(all[6]), O::kImmediate);
  EXPECT_EQ(peer.dut.sends().size(), 7u);
}

TEST(WriteWithImmediate, HalfIsSwitchable) {
  QpConfig shape = End::default_shape();
  shape.immediate_in_last_half = true;
  RawPeer peer({}, shape);
  ASSERT_EQ(post_write_imm(peer.dut, {}, 0x10, 0x20, 0xcafef00d), 0);
  peer.post_receive(1);
  peer.send(immediate(1, 7, 0x01020304));
  EXPECT_EQ(load_be64(peer.ulpdus().at(1).data() + UntaggedHeader::kWireSize), 0xcafef00du);
  EXPECT_EQ(peer.dut.receives().at(0).imm_or_invalidated, htonl(0x01020304));
}

// 7306-6-b, -6.1-a, -6.3-b, -6.4-e, A23: takes one receive, leaves its memory alone; the first four
// bytes are the immediate data.
// Proves: 7306-6-b 7306-6.1-a 7306-6.3-b 7306-6.4-e 7306-6.4-f
TEST(ImmediateReceiver, CompletesAReceive) {
  RawPeer peer;
  uint32_t msn = 1;
  for (uint32_t value : {0u, 1u, 0x80000000u, 0xFFFFFFFFu}) {
    peer.post_receive(value, 100);
    peer.send(immediate(msn++, value, 0x12345678));
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].wr_id, value);
    EXPECT_EQ(got[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[0].opcode, WcOpcode::kRecvWriteWithImm);
    EXPECT_EQ(got[0].wc_flags, kWcWithImm);
    EXPECT_EQ(got[0].imm_or_invalidated, htonl(value));
    EXPECT_EQ(got[0].byte_len, 0u);
  }
  for (size_t i = 0; i < peer.receive_memory.size(); ++i)
    ASSERT_EQ(peer.receive_memory.data()[i], std::byte{0});
}

// 7306-6.4-c, -d, A25: byte_len is that of the Write before it, unless a message for queue 0 came
// in between.
// Proves: 7306-6.4-d
TEST(ImmediateReceiver, ByteLenIsThatOfThePairedWrite) {
  RawPeer peer;
  for (uint64_t id = 0; id < 6; ++id) peer.post_receive(id, 100);
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 700, false));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base() + 700, 34));
  peer.send(immediate(1, 1));
  peer.send(immediate(2, 2));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 50));
  peer.send(untagged(O::kSend, 0, 3, 0, 10));
  peer.send(immediate(4, 3));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 50));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 0));
  peer.send(immediate(5, 4));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 5u);
  const uint32_t lengths[] = {734, 0, 10, 0, 0};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(got[i].byte_len, lengths[i]) << i;
  // 7306-6.3-c, -7-1, -7-5: in order with Sends.
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(got[i].wr_id, i);
  EXPECT_EQ(got[2].opcode, WcOpcode::kRecv);
}

// 7306-6.3-h
// Proves: 7306-6.1-a 7306-6.3-h
TEST(ImmediateReceiver, SolicitedEvent) {
  struct Counter : CompletionNotifier {
    void completion_event() override { ++events; }
    void completion_overrun() override {}
    int events = 0;
  } counter;
  CompletionQueue cq(8, &counter);
  RegionTable regions;
  ProtectionDomain domain;
  QpConfig shape = End::default_shape();
  shape.domain = &domain;
  shape.regions = &regions;
  shape.send_cq = shape.recv_cq = &cq;
  QueuePair qp(shape);
  qp.to_init();
  ASSERT_TRUE(qp.start_stream({}));
  ASSERT_EQ(qp.post_recv(1, {}), 0);
  ASSERT_EQ(qp.post_recv(2, {}), 0);
  StagingPointer staging = std::make_unique<StagingBuffer>();
  const auto feed = [&](const Bytes& fpdu) {
    const auto side = qp.receive_side().lock_exclusive();
    std::memcpy(qp.receiver().next_iovecs(staging)[0].iov_base, fpdu.data(), fpdu.size());
    qp.receiver().received(staging, fpdu.size());
  };
  cq.arm(true);
  feed(frame(immediate(1, 0), false));
  EXPECT_EQ(counter.events, 0);
  feed(frame(immediate(2, 0, 0, true), false));
  EXPECT_EQ(counter.events, 1);
}

// 7306-6.3-g, -6.1-b, -6.3-d, -4.1-a, -d, -8.2-a: exactly 8 bytes, however they are cut.
TEST(ImmediateReceiver, RefusesBadOnes) {
  struct Case {
    const char* name;
    std::vector<Bytes> ulpdus;
    T code;
  };
  Bytes version = immediate(1, 0);
  version[1] = std::byte{0x08};
  const Case cases[] = {
      {"0 bytes", {untagged(O::kImmediate, 0, 1, 0, 0)}, T::kRdmapOperationUnspecified},
      {"4 bytes", {untagged(O::kImmediate, 0, 1, 0, 4)}, T::kRdmapOperationUnspecified},
      {"7 bytes", {untagged(O::kImmediate, 0, 1, 0, 7)}, T::kRdmapOperationUnspecified},
      {"9 bytes", {untagged(O::kImmediate, 0, 1, 0, 9)}, T::kRdmapOperationUnspecified},
      {"16 bytes", {untagged(O::kImmediateSolicited, 0, 1, 0, 16)}, T::kRdmapOperationUnspecified},
      {"on queue 1", {untagged(O::kImmediate, 1, 1, 0, 8)}, T::kDdpUntaggedInvalidQn},
      {"tagged", {tagged(O::kImmediate, STag{1}, 0, 8)}, T::kRdmapUnexpectedOpcode},
      {"MSN 2", {untagged(O::kImmediate, 0, 2, 0, 8)}, T::kDdpUntaggedMsnRange},
      {"RDMAP version 0", {version}, T::kRdmapInvalidVersion},
      {"Send that goes on as Immediate",
       {untagged(O::kSend, 0, 1, 0, 4, false), untagged(O::kImmediate, 0, 1, 4, 4)},
       T::kRdmapUnexpectedOpcode},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RawPeer peer;
    peer.post_receive(1, 100);
    for (const Bytes& ulpdu : c.ulpdus) peer.send(ulpdu);
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, c.code) << describe(terminate->code);
    EXPECT_FALSE(terminate->has_rdmap_header);
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  }
}

// Proves: 7306-6.3-g
TEST(ImmediateReceiver, TakesItInTwoSegments) {
  RawPeer peer;
  peer.post_receive(1);
  Bytes first = untagged(O::kImmediate, 0, 1, 0, 4, false);
  store_be32(first.data() + UntaggedHeader::kWireSize, 0xcafef00d);
  peer.send(first);
  peer.send(untagged(O::kImmediate, 0, 1, 4, 4));
  EXPECT_EQ(peer.dut.receives().at(0).imm_or_invalidated, htonl(0xcafef00d));
  EXPECT_TRUE(peer.dut.events.empty());
}

// 7306-7-3, -7-4, A18: without a receive it is held like a Send, and so is everything behind it.
TEST(ImmediateReceiver, IsHeldWithoutAReceive) {
  RawPeer peer;
  Bytes burst = frame(immediate(1, 5), false);
  const Bytes atomic = frame(
      atomic_request(
          {.request_id = 1, .remote_stag = peer.stag(), .remote_to = peer.base(), .add_or_swap = 1},
          1),
      false);
  burst.insert(burst.end(), atomic.begin(), atomic.end());
  peer.feed(burst);
  EXPECT_TRUE(peer.dut.qp->receiver().rnr_blocked());
  EXPECT_TRUE(peer.ulpdus().empty());
  peer.post_receive(1);
  peer.settle();
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_EQ(peer.ulpdus().size(), 1u);
}

// ---- Send with Immediate

int post_send_imm(End& end, std::span<const Sge> sges, uint32_t imm, uint8_t flags) {
  SendRequest request;
  request.opcode = SendOpcode::kSendWithImm;
  request.flags = flags;
  request.sges = sges;
  request.imm_or_invalidate = htonl(imm);
  return end.qp->post_send(request);
}

TEST(SendWithImmediate, NeedsAUwarpPeer) {
  RawPeer foreign;
  EXPECT_EQ(post_send_imm(foreign.dut, {}, 1, 0), EOPNOTSUPP);
  foreign.post_receive(1, 100);
  foreign.send(untagged(O::kSendImmediate, 0, 1, 0, 8));
  EXPECT_EQ(foreign.terminate().value().code, T::kRdmapUnexpectedOpcode);
}

// The Send is posted before the peer is known, in both personas. Its form depends on what the peer
// has shown by the time it is sent.
struct EarlySendWithImmediate : ::testing::TestWithParam<bool> {
  static QpConfig shape(bool acknowledged = GetParam()) {
    QpConfig shape = End::default_shape();
    shape.acknowledged = acknowledged;
    return shape;
  }
  static StreamConfig marked() {
    StreamConfig config;
    config.rtr = StreamConfig::Rtr::kWrite;
    config.rtr_stag = config.magic_stag = STag{0x75776172};
    config.rtr_offset = config.magic_offset = 0x7021'0000'0000'0001;
    return config;
  }
  static void expect_failure(RawPeer& peer) {
    const auto done = peer.dut.sends();
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].status, WcStatus::kLocQpOpErr);
    EXPECT_EQ(done[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(post_send_imm(peer.dut, {}, 1, 0), 0) << "flushed";
  }
};

TEST_P(EarlySendWithImmediate, FailsWhenThePeerShowsItselfForeign) {
  RawPeer peer(marked(), shape());
  peer.reads = false;
  ASSERT_EQ(post_send_imm(peer.dut, {}, 1, kSendSignaled), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.post_receive(1, 100);
  peer.send(untagged(O::kSend, 0, 1, 0, 8));
  EXPECT_TRUE(peer.dut.sends().empty());
  peer.reads = true;
  peer.settle();
  expect_failure(peer);
  peer.ulpdus();
}

TEST_P(EarlySendWithImmediate, AsksASilentPeer) {
  RawPeer peer(marked(), shape());
  ASSERT_EQ(post_send_imm(peer.dut, {}, 1, kSendSignaled), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(opcode_of(sent[0]), O::kWrite);
  ASSERT_EQ(opcode_of(sent[1]), O::kReadRequest);
  const auto read = ReadRequestHeader::decode(sent[1].data() + UntaggedHeader::kWireSize);
  EXPECT_EQ(read.size, 0u);
  EXPECT_TRUE(peer.dut.sends().empty());
  peer.send(tagged(O::kReadResponse, read.sink_stag, 0, 0));
  expect_failure(peer);
  peer.ulpdus();
}

TEST_P(EarlySendWithImmediate, GoesOutToAUwarp) {
  RawPeer peer(marked(), shape());
  ASSERT_EQ(post_send_imm(peer.dut, {}, 1, kSendSignaled), 0);
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 2u);
  peer.send(tagged(O::kWrite, marked().magic_stag, marked().magic_offset, 0));
  EXPECT_EQ(opcode_of(peer.ulpdus().at(0)), O::kSendImmediate);
}

TEST_P(EarlySendWithImmediate, FailsAtOnceWhereNothingWillTell) {
  StreamConfig config = marked();
  config.rtr = StreamConfig::Rtr::kNone;
  RawPeer peer(config, shape());
  const int posted = post_send_imm(peer.dut, {}, 1, kSendSignaled);
  if (!GetParam()) {
    EXPECT_EQ(posted, EOPNOTSUPP);
    return;
  }
  ASSERT_EQ(posted, 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 2, {}), 0);
  peer.settle();
  expect_failure(peer);
  peer.ulpdus();
}

INSTANTIATE_TEST_SUITE_P(Personas, EarlySendWithImmediate, ::testing::Bool());

// docs/wire.md: a mark with another version is treated like that of a foreign peer, and does no
// harm.
TEST(SendWithImmediate, OldAgainstNew) {
  for (const uint64_t version : {1, 2, 0}) {
    StreamConfig config;
    config.magic_stag = STag{0x75776172};
    config.magic_offset = 0x7021'0000'0000'0001;
    RawPeer peer(config);
    peer.send(tagged(O::kWrite, config.magic_stag, 0x7021'0000'0000'0000 | version, 0));
    EXPECT_EQ(peer.dut.qp->peer_is_uwarp(), version == 1);
    peer.post_receive(1, 100);
    peer.send(untagged(O::kSend, 0, 1, 0, 8));
    EXPECT_EQ(peer.dut.receives().size(), 1u);
  }
}

// The bytes of docs/wire.md.
TEST(SendWithImmediate, WireForm) {
  StreamConfig config;
  config.peer_is_uwarp = true;
  RawPeer peer(config);
  ASSERT_EQ(post_send_imm(peer.dut, {}, 0xcafef00d, kSendSignaled), 0);
  ASSERT_EQ(post_send_imm(peer.dut, {}, 0x00000001, kSendSignaled | kSendSolicited), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], from_hex("414f cafef00d 00000000 00000001 00000000"));
  EXPECT_EQ(sent[1], from_hex("415f 00000001 00000000 00000002 00000000"));
  EXPECT_EQ(peer.dut.sends().at(0).opcode, WcOpcode::kSend);
}

struct ImmediatePair : ::testing::TestWithParam<std::tuple<bool, size_t>> {
  ImmediatePair() : pair(3) {
    pair.chunk_max = std::get<1>(GetParam());
    StreamConfig config;
    config.crc = std::get<0>(GetParam());
    config.peer_is_uwarp = true;
    pair.connect(config);
    here_region = pair.reg(pair.a, here, kAllAccess);
    there_region = pair.reg(pair.b, there, kAllAccess);
    here.fill(pair.random);
  }
  Pair pair;
  GuardedMemory here{200000}, there{200000};
  MemoryRegion* here_region;
  MemoryRegion* there_region;
};

TEST_P(ImmediatePair, SendWithImmediateArrives) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{70000}}) {
    const Sge from = Pair::sge(here, here_region, 0, size);
    const Sge to = Pair::sge(there, there_region, 0, 70000);
    ASSERT_EQ(pair.b.qp->post_recv(1, {&to, 1}), 0);
    ASSERT_EQ(post_send_imm(pair.a, {&from, 1}, 0x80000001, kSendSignaled), 0);
    pair.run();
    const auto got = pair.b.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].opcode, WcOpcode::kRecv);
    EXPECT_EQ(got[0].wc_flags, kWcWithImm);
    EXPECT_EQ(got[0].imm_or_invalidated, htonl(0x80000001));
    EXPECT_EQ(got[0].byte_len, size);
    EXPECT_EQ(std::memcmp(here.data(), there.data(), size), 0);
  }
}

// 7306-6-a, -6.4-b, -c, -7-6: the data is in place, and the length is that of the Write.
// Proves: 7306-6-a 7306-6.4-c
TEST_P(ImmediatePair, WriteWithImmediateArrives) {
  uint64_t id = 0;
  const size_t sizes[] = {0, 1, 511, 70000, 200000};
  for (const size_t size : sizes) {
    const Sge from = Pair::sge(here, here_region, 0, size);
    ASSERT_EQ(post_write_imm(pair.a, {&from, 1}, there.address(), there_region->key.load(),
                             static_cast<uint32_t>(id), kSendSignaled, id),
              0);
    // `b` owes answers, yet nothing of this queue pair may go between the Write and its Immediate
    // Data.
    const Sge back = Pair::sge(there, there_region, 0, 8);
    ASSERT_EQ(
        pair.b.post(SendOpcode::kRead, id, {&back, 1}, here.address(), here_region->key.load()), 0);
    pair.run();
    EXPECT_TRUE(pair.b.qp->receiver().rnr_blocked());
    ASSERT_EQ(pair.b.qp->post_recv(id, {}), 0);
    pair.run();
    const auto sent = pair.a.sends();
    const auto got = pair.b.receives();
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(sent[0].opcode, WcOpcode::kWrite);
    EXPECT_EQ(got[0].opcode, WcOpcode::kRecvWriteWithImm);
    EXPECT_EQ(got[0].byte_len, size);
    EXPECT_EQ(got[0].imm_or_invalidated, htonl(static_cast<uint32_t>(id)));
    EXPECT_EQ(std::memcmp(here.data(), there.data(), size), 0);
    ++id;
  }
}

INSTANTIATE_TEST_SUITE_P(
    CrcAndCuts, ImmediatePair,
    ::testing::Combine(::testing::Bool(), ::testing::Values(size_t{0}, size_t{37}, size_t{5000})));

}  // namespace
}  // namespace uwarp::sim
