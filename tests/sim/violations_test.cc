// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One violation per stream: the Terminate's code, header bits and copied headers, the state, the
// flushes, the one event, and memory that must not change. RFC 5040 7, 5041 7, 5044 8.
#include <gtest/gtest.h>

#include <functional>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;

struct Violation {
  const char* name;
  std::function<Bytes(RawPeer&)> ulpdu;
  T code;
  QpEvent event;
  bool ddp_header;
  bool rdmap_header = false;
  WcStatus receive = WcStatus::kWrFlushErr;  // status of the first posted receive
};

Bytes with_byte(Bytes ulpdu, size_t at, uint8_t value) {
  ulpdu[at] = std::byte{value};
  return ulpdu;
}

ReadRequestHeader good_read(RawPeer& peer) {
  return {.sink_stag = STag{7},
          .sink_to = 9,
          .size = 64,
          .source_stag = peer.stag(),
          .source_to = peer.base()};
}

Bytes bad_read(RawPeer& peer, const std::function<void(ReadRequestHeader&)>& spoil) {
  ReadRequestHeader header = good_read(peer);
  spoil(header);
  return read_request(header, 1);
}

const Violation kViolations[] = {
    {"tagged ULPDU shorter than its header", [](RawPeer&) { return Bytes(13, std::byte{0xC1}); },
     T::kDdpLocalCatastrophic, QpEvent::kFatal, false},
    {"untagged ULPDU shorter than its header", [](RawPeer&) { return Bytes(17, std::byte{0x41}); },
     T::kDdpLocalCatastrophic, QpEvent::kFatal, false},
    {"empty ULPDU", [](RawPeer&) { return Bytes{}; }, T::kDdpLocalCatastrophic, QpEvent::kFatal,
     false},
    {"tagged, DDP version 0",
     [](RawPeer& p) {
       return with_byte(tagged(RdmapOpcode::kWrite, p.stag(), p.base(), 8), 0, 0xC0);
     },
     T::kDdpTaggedInvalidVersion, QpEvent::kFatal, false},
    {"untagged, DDP version 2",
     [](RawPeer&) { return with_byte(untagged(RdmapOpcode::kSend, 0, 1, 0, 8), 0, 0x42); },
     T::kDdpUntaggedInvalidVersion, QpEvent::kFatal, false},
    {"RDMAP version 0",
     [](RawPeer&) { return with_byte(untagged(RdmapOpcode::kSend, 0, 1, 0, 8), 1, 0x03); },
     T::kRdmapInvalidVersion, QpEvent::kRequestError, true},
    {"RDMAP version 3",
     [](RawPeer&) { return with_byte(untagged(RdmapOpcode::kSend, 0, 1, 0, 8), 1, 0xC3); },
     T::kRdmapInvalidVersion, QpEvent::kRequestError, true},
    {"opcode 0xC",
     [](RawPeer&) { return with_byte(untagged(RdmapOpcode::kSend, 0, 1, 0, 8), 1, 0x4C); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true},
    {"opcode 0xF",
     [](RawPeer&) { return with_byte(untagged(RdmapOpcode::kSend, 0, 1, 0, 8), 1, 0x4F); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true},
    {"Send in the tagged model",
     [](RawPeer& p) { return tagged(RdmapOpcode::kSend, p.stag(), p.base(), 8); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true},
    {"Write in the untagged model",
     [](RawPeer&) { return untagged(RdmapOpcode::kWrite, 0, 1, 0, 8); }, T::kRdmapUnexpectedOpcode,
     QpEvent::kRequestError, true},
    {"Send on queue 1", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 1, 1, 0, 8); },
     T::kDdpUntaggedInvalidQn, QpEvent::kFatal, true},
    {"Send on queue 4", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 4, 1, 0, 8); },
     T::kDdpUntaggedInvalidQn, QpEvent::kFatal, true},
    {"Read Request on queue 0",
     [](RawPeer&) { return untagged(RdmapOpcode::kReadRequest, 0, 1, 0, 28); },
     T::kDdpUntaggedInvalidQn, QpEvent::kFatal, true},
    {"Terminate on queue 0", [](RawPeer&) { return untagged(RdmapOpcode::kTerminate, 0, 1, 0, 4); },
     T::kDdpUntaggedInvalidQn, QpEvent::kFatal, true},
    {"MSN 0", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 0, 0, 8); },
     T::kDdpUntaggedMsnRange, QpEvent::kFatal, true},
    {"MSN skipped", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 2, 0, 8); },
     T::kDdpUntaggedMsnRange, QpEvent::kFatal, true},
    {"MO behind the buffer", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 101, 1); },
     T::kDdpUntaggedInvalidMo, QpEvent::kFatal, true, false, WcStatus::kLocLenErr},
    {"message longer than the buffer",
     [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 0, 101); }, T::kDdpUntaggedTooLong,
     QpEvent::kFatal, true, false, WcStatus::kLocLenErr},
    {"MO so large that the end wraps",
     [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 0xFFFFFFFF, 8); },
     T::kDdpUntaggedInvalidMo, QpEvent::kFatal, true, false, WcStatus::kLocLenErr},
    {"hole in a message", [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 10, 8); },
     T::kDdpUntaggedInvalidMo, QpEvent::kFatal, true, false, WcStatus::kLocLenErr},
    {"Write, unknown STag",
     [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, STag{p.stag().value ^ 1}, p.base(), 16); },
     T::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true},
    {"Write to a region for local use",
     [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, p.key_for_local_use(), p.base(), 16); },
     T::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true},
    {"Write below the base",
     [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, p.stag(), p.base() - 1, 16); },
     T::kDdpTaggedBounds, QpEvent::kAccessError, true},
    {"Write past the end",
     [](RawPeer& p) {
       return tagged(RdmapOpcode::kWrite, p.stag(), p.base() + p.memory.size() - 15, 16);
     },
     T::kDdpTaggedBounds, QpEvent::kAccessError, true},
    {"Write whose TO wraps",
     [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, p.stag(), ~uint64_t{0} - 7, 16); },
     T::kDdpTaggedToWrap, QpEvent::kAccessError, true},
    {"Read Response without a request",
     [](RawPeer& p) { return tagged(RdmapOpcode::kReadResponse, p.stag(), p.base(), 8); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError, true},
    {"Read Request cut short",
     [](RawPeer&) { return untagged(RdmapOpcode::kReadRequest, 1, 1, 0, 24); },
     T::kRdmapOperationUnspecified, QpEvent::kRequestError, true},
    {"Read Request too long",
     [](RawPeer&) { return untagged(RdmapOpcode::kReadRequest, 1, 1, 0, 32); },
     T::kDdpUntaggedTooLong, QpEvent::kFatal, true},
    {"Read Request with a wrong MSN", [](RawPeer& p) { return read_request(good_read(p), 2); },
     T::kDdpUntaggedMsnRange, QpEvent::kFatal, true},
    {"Read of an unknown STag",
     [](RawPeer& p) { return bad_read(p, [](auto& h) { h.source_stag.value ^= 1; }); },
     T::kRdmapInvalidSTag, QpEvent::kAccessError, true, true},
    {"Read past the end",
     [](RawPeer& p) { return bad_read(p, [&](auto& h) { h.source_to += p.memory.size() - 63; }); },
     T::kRdmapBounds, QpEvent::kAccessError, true, true},
    {"Read whose TO wraps",
     [](RawPeer& p) { return bad_read(p, [](auto& h) { h.source_to = ~uint64_t{0} - 7; }); },
     T::kRdmapToWrap, QpEvent::kAccessError, true, true},
    {"Send with Invalidate of a region",
     [](RawPeer& p) { return untagged(RdmapOpcode::kSendInvalidate, 0, 1, 0, 8, true, p.stag()); },
     T::kRdmapCannotInvalidate, QpEvent::kAccessError, true, false, WcStatus::kRemInvReqErr},
};

class Violations : public ::testing::TestWithParam<std::tuple<int, bool, size_t>> {};

TEST_P(Violations, EndTheStreamAsTheTableSays) {
  const Violation& v = kViolations[std::get<0>(GetParam())];
  SCOPED_TRACE(v.name);
  StreamConfig config;
  config.crc = std::get<1>(GetParam());
  RawPeer peer(config);
  GuardedMemory buffer(100);
  MemoryRegion* region = *peer.regions.add(peer.dut.domain, buffer.data(), buffer.size(),
                                           buffer.address(), kAccessLocalWrite);
  const Sge sge{buffer.address(), 100, region->key.load()};
  for (uint64_t id = 0; id < 2; ++id) ASSERT_EQ(peer.dut.qp->post_recv(id, {&sge, 1}), 0);
  const Bytes ulpdu = v.ulpdu(peer);
  Bytes bytes = frame(ulpdu, peer.crc);
  // Ten violations in one burst, and still one Terminate.
  const Bytes one = bytes;
  for (int i = 0; i < 9; ++i) bytes.insert(bytes.end(), one.begin(), one.end());
  peer.feed(bytes, std::get<2>(GetParam()));

  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, v.code) << describe(terminate->code);
  EXPECT_EQ(terminate->has_ddp_header, v.ddp_header);
  EXPECT_EQ(terminate->has_length, v.ddp_header);
  EXPECT_EQ(terminate->has_rdmap_header, v.rdmap_header);
  if (v.ddp_header) {
    EXPECT_EQ(terminate->ddp_segment_length, ulpdu.size());
    EXPECT_EQ(std::memcmp(terminate->ddp_header.data(), ulpdu.data(), terminate->ddp_header_size),
              0);
  }
  if (v.rdmap_header) {
    EXPECT_EQ(std::memcmp(terminate->rdmap_header.data(), ulpdu.data() + UntaggedHeader::kWireSize,
                          ReadRequestHeader::kWireSize),
              0);
  }
  EXPECT_EQ(peer.dut.outcome & kRxTerminated, 0u) << "must not be taken for a Terminate";
  EXPECT_TRUE(peer.dut.qp->transmitter().finished());
  EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
  EXPECT_EQ(peer.dut.events, std::vector{v.event});
  const auto receives = peer.dut.receives();
  ASSERT_EQ(receives.size(), 2u);
  EXPECT_EQ(receives[0].status, v.receive);
  EXPECT_EQ(receives[1].status, WcStatus::kWrFlushErr);
  for (size_t i = 0; i < peer.memory.size(); ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
  EXPECT_TRUE(peer.memory.intact());
  EXPECT_TRUE(buffer.intact());
}

INSTANTIATE_TEST_SUITE_P(
    Table, Violations,
    ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kViolations))),
                       ::testing::Bool(), ::testing::Values(size_t{0}, size_t{1}, size_t{3})));

TEST(Crc, WrongCrcIsNotDelivered) {
  StreamConfig config;
  config.crc = true;
  RawPeer peer(config);
  Bytes bytes = frame(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 100), true);
  bytes[50] ^= std::byte{1};
  peer.feed(bytes);
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kMpaCrc);
  EXPECT_FALSE(terminate->has_ddp_header);
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
  for (size_t i = 0; i < 100; ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
}

// This includes messages that are executed at once, without being placed in memory first.
TEST(Crc, ControlMessagesWithAWrongCrcAreNotExecuted) {
  const auto spoilt = [](const Bytes& ulpdu) {
    Bytes fpdu = frame(ulpdu, true);
    fpdu.back() ^= std::byte{1};
    return fpdu;
  };
  StreamConfig config;
  config.crc = true;
  {
    RawPeer peer(config);
    const Sge result{peer.base(), 8, peer.memory_region->key.load()};
    ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kFetchAdd, 1, result, 64, 7, 1), 0);
    peer.settle();
    ASSERT_EQ(peer.ulpdus().size(), 1u);
    peer.feed(spoilt(atomic_response({0, 0x1122334455667788}, 1)));
    EXPECT_EQ(peer.memory.data()[0], std::byte{0});
    const auto sends = peer.dut.sends();
    ASSERT_EQ(sends.size(), 1u);
    EXPECT_EQ(sends[0].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.terminate()->code, T::kMpaCrc);
  }
  RawPeer peer(config);
  peer.feed(spoilt(untagged(RdmapOpcode::kTerminate, 2, 1, 0, 4)));
  EXPECT_EQ(peer.dut.outcome & kRxTerminated, 0u);
  EXPECT_EQ(peer.dut.qp->slot().receive.fpdus.get(), 0u);
  EXPECT_EQ(peer.terminate()->code, T::kMpaCrc);
}

TEST(Crc, NotCheckedWhenOff) {
  RawPeer peer;
  Bytes bytes = frame(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 100), false);
  store_le32(bytes.data() + bytes.size() - 4, 0x12345678);
  peer.feed(bytes);
  EXPECT_TRUE(peer.dut.events.empty());
  EXPECT_EQ(peer.memory.data()[99], std::byte{0x3C});
}

TEST(Reserved, BitsAreIgnored) {
  RawPeer peer;
  GuardedMemory buffer(100);
  MemoryRegion* region = *peer.regions.add(peer.dut.domain, buffer.data(), buffer.size(),
                                           buffer.address(), kAccessLocalWrite);
  const Sge sge{buffer.address(), 100, region->key.load()};
  ASSERT_EQ(peer.dut.qp->post_recv(0, {&sge, 1}), 0);
  // DDP reserved bits, RDMAP reserved bits, and an Invalidate STag in a message that has none.
  Bytes ulpdu = untagged(RdmapOpcode::kSend, 0, 1, 0, 8, true, peer.stag());
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  ASSERT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_NE(peer.regions.find(peer.stag()), nullptr);
}

TEST(Depth, MoreReadsThanIrd) {
  RawPeer peer;
  Bytes burst;
  for (uint32_t msn = 1; msn <= 5; ++msn) {
    const Bytes one = frame(read_request(good_read(peer), msn), false);
    burst.insert(burst.end(), one.begin(), one.end());
  }
  peer.feed(burst);  // the device answers after the whole burst
  const auto all = peer.ulpdus();
  ASSERT_FALSE(all.empty());
  const Bytes& terminate = all.back();
  const auto header =
      TerminateHeader::decode(std::span(terminate).subspan(UntaggedHeader::kWireSize));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->code, T::kDdpUntaggedNoBuffer);
}

TEST(Depth, ExactlyIrdReads) {
  RawPeer peer;
  for (uint32_t round = 0; round < 50; ++round) {
    Bytes burst;
    for (uint32_t i = 0; i < 4; ++i) {
      const Bytes one = frame(read_request(good_read(peer), round * 4 + i + 1), false);
      burst.insert(burst.end(), one.begin(), one.end());
    }
    peer.feed(burst);
    const auto all = peer.ulpdus();
    ASSERT_EQ(all.size(), 4u);
    for (const Bytes& one : all) {
      const TaggedHeader header = TaggedHeader::decode(one.data());
      EXPECT_EQ(header.stag, STag{7});
      EXPECT_EQ(header.to, 9u);
      EXPECT_EQ(one.size(), TaggedHeader::kWireSize + 64);
    }
  }
  EXPECT_TRUE(peer.dut.events.empty());
}

TEST(ReadResponse, MustMatchTheRequest) {
  struct Case {
    const char* name;
    uint32_t stag_xor;
    uint64_t to;
    size_t length;
    bool last;
    T code;
    WcStatus status;
  };
  const Case cases[] = {
      {"wrong STag", 1, 0, 64, true, T::kDdpTaggedInvalidSTag, WcStatus::kBadRespErr},
      {"wrong TO", 0, 1, 63, true, T::kDdpTaggedBounds, WcStatus::kBadRespErr},
      {"too long", 0, 0, 65, true, T::kDdpTaggedBounds, WcStatus::kLocLenErr},
      {"too short", 0, 0, 63, true, T::kDdpTaggedBounds, WcStatus::kBadRespErr},
      {"empty", 0, 0, 0, true, T::kDdpTaggedBounds, WcStatus::kBadRespErr},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RawPeer peer;
    const Sge sink{peer.base() + 100, 64, peer.memory_region->key.load()};
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 1, {&sink, 1}, 1, 2), 0);
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    const auto request = ReadRequestHeader::decode(sent[0].data() + UntaggedHeader::kWireSize);
    EXPECT_NE(request.sink_stag.value, 0u);
    EXPECT_EQ(peer.regions.find(request.sink_stag), nullptr);
    peer.send(tagged(RdmapOpcode::kReadResponse, STag{request.sink_stag.value ^ c.stag_xor}, c.to,
                     c.length, c.last));
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, c.code);
    const auto done = peer.dut.sends();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, c.status);
    for (size_t i = 0; i < peer.memory.size(); ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
  }
}

TEST(ReadSink, RefusesWrites) {
  RawPeer peer;
  const Sge sink{peer.base() + 100, 64, peer.memory_region->key.load()};
  ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 1, {&sink, 1}, 1, 2), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  const auto request = ReadRequestHeader::decode(sent[0].data() + UntaggedHeader::kWireSize);
  peer.send(tagged(RdmapOpcode::kWrite, request.sink_stag, request.sink_to, 8));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kDdpTaggedInvalidSTag);
}

// Proves: 5040-3.2-b 5040-3.2-i
TEST(Terminate, FromThePeerNamesTheRequest) {
  RawPeer peer;
  const Sge sink{peer.base(), 64, peer.memory_region->key.load()};
  for (uint64_t id = 0; id < 3; ++id)
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, id, {&sink, 1}, 1, 2), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 3u);
  TerminateHeader header;
  header.code = T::kRdmapAccess;
  header.copy_ddp_header(sent[1].data(), static_cast<uint16_t>(sent[1].size()));
  header.copy_read_request(sent[1].data() + UntaggedHeader::kWireSize);
  Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, header.encoded_size());
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  peer.send(ulpdu);
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 3u);
  for (const size_t i : {0, 1}) {  // the oldest says it as well
    EXPECT_EQ(done[i].status, WcStatus::kRemAccessErr);
    EXPECT_EQ(done[i].vendor_err, 1u << 31 | 0x000102u);
  }
  EXPECT_EQ(done[2].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(peer.ulpdus().empty());  // a Terminate is never answered with a Terminate
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
  EXPECT_TRUE(peer.dut.qp->transmitter().finished());
}

TEST(Terminate, IsToBeSentUntilItIsSent) {
  RawPeer peer;
  peer.reads = false;
  peer.send(untagged(RdmapOpcode::kSend, 1, 1, 0, 8));
  EXPECT_TRUE(peer.dut.qp->transmitter().wanted());
  EXPECT_FALSE(peer.dut.qp->transmitter().finished());
  peer.reads = true;
  peer.settle();
  EXPECT_TRUE(peer.terminate());
  EXPECT_FALSE(peer.dut.qp->transmitter().wanted());
  EXPECT_TRUE(peer.dut.qp->transmitter().finished());
}

TEST(Terminate, MalformedOnesEndTheStreamQuietly) {
  for (size_t size : {size_t{4}, size_t{20}, size_t{52}}) {
    RawPeer peer;
    peer.send(untagged(RdmapOpcode::kTerminate, 2, 2, 4, size));
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
    EXPECT_EQ(peer.dut.events.size(), 1u);
  }
}

TEST(OneWrite, GoesToOneBuffer) {
  RawPeer peer;
  MemoryRegion* other = *peer.regions.add(peer.dut.domain, peer.memory.data(), 1000,
                                          peer.memory.address(), kAllAccess);
  peer.send(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 16, false));
  peer.send(tagged(RdmapOpcode::kWrite, STag{other->key.load()}, peer.base() + 16, 16, true));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kDdpTaggedInvalidSTag);
}

// The later segment is valid by itself, but does not continue the message that has begun.
TEST(SecondSegment, MustGoOnWithTheMessage) {
  struct Case {
    const char* name;
    Bytes (*first)(RawPeer&);
    Bytes (*second)(RawPeer&);
    TerminateCode code;
    QpEvent event;
    WcStatus receive;
  };
  const auto send = [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 0, 8, false); };
  const auto write = [](RawPeer& p) {
    return tagged(RdmapOpcode::kWrite, p.stag(), p.base(), 8, false);
  };
  const Case cases[] = {
      {"another opcode", send,
       [](RawPeer&) { return untagged(RdmapOpcode::kSendSolicited, 0, 1, 8, 8); },
       T::kRdmapUnexpectedOpcode, QpEvent::kRequestError, WcStatus::kWrFlushErr},
      {"the next MSN", send, [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 2, 8, 8); },
       T::kDdpUntaggedMsnRange, QpEvent::kFatal, WcStatus::kWrFlushErr},
      {"a hole in a Send", send, [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 9, 8); },
       T::kDdpUntaggedInvalidMo, QpEvent::kFatal, WcStatus::kLocLenErr},
      {"a byte twice in a Send", send,
       [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 7, 8); }, T::kDdpUntaggedInvalidMo,
       QpEvent::kFatal, WcStatus::kLocLenErr},
      {"more than the receive takes", send,
       [](RawPeer&) { return untagged(RdmapOpcode::kSend, 0, 1, 8, 93); }, T::kDdpUntaggedTooLong,
       QpEvent::kFatal, WcStatus::kLocLenErr},
      {"a hole in a Write", write,
       [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, p.stag(), p.base() + 9, 8); },
       T::kDdpTaggedBounds, QpEvent::kAccessError, WcStatus::kWrFlushErr},
      {"a byte twice in a Write", write,
       [](RawPeer& p) { return tagged(RdmapOpcode::kWrite, p.stag(), p.base() + 7, 8); },
       T::kDdpTaggedBounds, QpEvent::kAccessError, WcStatus::kWrFlushErr},
      {"another STag", write,
       [](RawPeer& p) {
         return tagged(RdmapOpcode::kWrite, STag{p.stag().value ^ 1}, p.base() + 8, 8);
       },
       T::kDdpTaggedInvalidSTag, QpEvent::kAccessError, WcStatus::kWrFlushErr},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    RawPeer peer;
    peer.post_receive(1, 100);
    peer.send(each.first(peer));
    const Bytes second = each.second(peer);
    peer.send(second);
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate);
    EXPECT_EQ(terminate->code, each.code) << describe(terminate->code);
    ASSERT_TRUE(terminate->has_ddp_header);
    EXPECT_EQ(terminate->ddp_segment_length, second.size());
    EXPECT_EQ(std::memcmp(terminate->ddp_header.data(), second.data(), terminate->ddp_header_size),
              0);
    EXPECT_EQ(peer.dut.events, std::vector{each.event});
    const auto receives = peer.dut.receives();
    ASSERT_EQ(receives.size(), 1u);
    EXPECT_EQ(receives[0].status, each.receive);
    for (size_t i = 8; i < peer.memory.size(); ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
  }
}

// The region is deregistered when half of a segment has arrived.
TEST(Placement, EndsWithTheKey) {
  RawPeer peer;
  const Bytes ulpdu = tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 600);
  const Bytes fpdu = frame(ulpdu, false);
  peer.feed({fpdu.begin(), fpdu.begin() + 300});
  ASSERT_EQ(peer.regions.invalidate(*peer.memory_region), 0);
  peer.feed({fpdu.begin() + 300, fpdu.end()});
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, T::kDdpTaggedInvalidSTag);
  ASSERT_TRUE(terminate->has_ddp_header);
  EXPECT_EQ(terminate->ddp_segment_length, ulpdu.size());
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kAccessError});
  EXPECT_EQ(peer.memory.data()[599], std::byte{0});
}

// Proves: 5044-7.1.2-c 6581-9.2-e
TEST(Responder, SendsNothingBeforeTheFirstFpdu) {
  StreamConfig config;
  config.wait_for_first_fpdu = true;
  RawPeer peer(config);
  peer.settle();
  EXPECT_FALSE(peer.dut.qp->transmitter().wanted());
  EXPECT_TRUE(peer.dut.qp->transmitter().idle());
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 1, {}), 0);
  peer.settle();
  EXPECT_TRUE(peer.ulpdus().empty());
  EXPECT_FALSE(peer.dut.qp->transmitter().idle());
  peer.send(tagged(RdmapOpcode::kWrite, STag{1}, 0, 0));
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_TRUE(peer.dut.outcome & kRxFirstFpdu);
}

// A receive call asks for transmission if what it read needs an answer, and only then.
TEST(Responder, AsksForTransmissionIfAnAnswerIsDue) {
  RawPeer peer;
  peer.send(tagged(RdmapOpcode::kWrite, STag{1}, 0, 0));
  const auto wanted = [&peer](const Bytes& ulpdu) {
    peer.dut.outcome = 0;
    peer.send(ulpdu);
    return (peer.dut.outcome & kRxTransmitWanted) != 0;
  };
  EXPECT_FALSE(wanted(tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 8)));
  EXPECT_TRUE(wanted(read_request(good_read(peer), 1)));
  EXPECT_TRUE(wanted(atomic_request({.remote_stag = peer.stag(), .remote_to = peer.base()}, 2)));
  EXPECT_EQ(peer.ulpdus().size(), 2u);
}

TEST(Initiator, HasItsRtrToSendFromTheStart) {
  for (const auto rtr : {StreamConfig::Rtr::kWrite, StreamConfig::Rtr::kRead}) {
    StreamConfig config;
    config.rtr = rtr;
    RawPeer peer(config);
    EXPECT_TRUE(peer.dut.qp->transmitter().wanted());
    EXPECT_FALSE(peer.dut.qp->transmitter().idle());
    peer.settle();
    EXPECT_EQ(peer.ulpdus().size(), 1u);
    EXPECT_FALSE(peer.dut.qp->transmitter().wanted());
    EXPECT_TRUE(peer.dut.qp->transmitter().idle());
  }
}

// siw may overlook a first FPDU that comes alone. uwarp sends one more FPDU as a reminder, and
// never a second.
TEST(FirstFpduReminder, FollowsTheFirstFpduOnce) {
  RawPeer peer;
  EXPECT_TRUE(peer.dut.qp->nudge());
  peer.settle();
  EXPECT_TRUE(peer.ulpdus().empty());
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 1, {}), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(opcode_of(sent[0]), RdmapOpcode::kSend);
  EXPECT_EQ(sent[1], tagged(RdmapOpcode::kWrite, STag{1}, 0, 0));
  peer.send(tagged(RdmapOpcode::kWrite, STag{1}, 0, 0));
  EXPECT_FALSE(peer.dut.qp->nudge());
}

TEST(RecognitionValue, IsRecognisedAndAnsweredFirst) {
  StreamConfig config;
  config.wait_for_first_fpdu = true;
  config.magic_stag = STag{0x1234};
  config.magic_offset = 0x5678;
  config.answer_magic = true;
  RawPeer peer(config);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 1, {}), 0);
  peer.send(tagged(RdmapOpcode::kWrite, STag{0x1234}, 0x5678, 0));
  EXPECT_TRUE(peer.dut.qp->peer_is_uwarp());
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(TaggedHeader::decode(sent[0].data()).stag, STag{0x1234});
}

}  // namespace
}  // namespace uwarp::sim
