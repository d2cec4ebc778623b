// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Atomics, as requester and as responder. RFC 7306 5, 7, 8.
#include <gtest/gtest.h>

#include <functional>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;
constexpr uint64_t kAll = ~uint64_t{0};

uint64_t load(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
void store(std::byte* at, uint64_t value) { std::memcpy(at, &value, sizeof value); }

AtomicRequestHeader fetch_add(RawPeer& peer, uint64_t add, uint32_t id = 7) {
  return {
      .request_id = id, .remote_stag = peer.stag(), .remote_to = peer.base(), .add_or_swap = add};
}
AtomicRequestHeader cmp_swap(RawPeer& peer, uint64_t compare, uint64_t swap, uint32_t id = 8) {
  return {.opcode = AtomicOpcode::kCmpSwap,
          .request_id = id,
          .remote_stag = peer.stag(),
          .remote_to = peer.base(),
          .add_or_swap = swap,
          .add_or_swap_mask = kAll,
          .compare = compare,
          .compare_mask = kAll};
}
AtomicResponseHeader response_of(const Bytes& ulpdu) {
  EXPECT_EQ(ulpdu.size(), UntaggedHeader::kWireSize + AtomicResponseHeader::kWireSize);
  return AtomicResponseHeader::decode(ulpdu.data() + UntaggedHeader::kWireSize);
}

// ---- Responder

// X22, X23: our answers are the bytes of the worked examples (7306-4-b, -4.1-a to -d, -5.2.2).
// Proves: 7306-4-b 7306-4.1-b 7306-5.1.1-h 7306-5.2.1-i 7306-5.2.2-a 7306-5.2.2-b
TEST(AtomicResponder, AnswersAreTheWorkedExamples) {
  StreamConfig config;
  config.crc = true;
  RawPeer peer(config);
  store(peer.memory.data(), 41);
  peer.feed(joined({atomic_request(fetch_add(peer, 1), 1),
                    atomic_request(cmp_swap(peer, 42, 0x1122334455667788), 2)},
                   true));
  EXPECT_EQ(peer.out,
            from_hex("001e414b00000000000000030000000100000000000000070000000000000029b9ebafe8"
                     "001e414b0000000000000003000000020000000000000008000000000000002a2140c164"));
  peer.out.clear();
  EXPECT_EQ(load(peer.memory.data()), 0x1122334455667788u);
  EXPECT_TRUE(peer.dut.events.empty());
  // 7306-5.2.1-j: nothing is delivered.
  EXPECT_TRUE(peer.dut.receives().empty());
}

// 7306-5.2.1-m, -5.2.2-i, -5.4-8, -7-12: executed and answered in the order of the requests.
// Proves: 7306-5.2.1-m 7306-5.2.2-i 7306-5.4-8 7306-7-12
TEST(AtomicResponder, ExecutesInOrder) {
  RawPeer peer;
  peer.feed(
      joined({atomic_request(cmp_swap(peer, 0, 1), 1), atomic_request(cmp_swap(peer, 1, 2), 2),
              atomic_request(fetch_add(peer, 5), 3)}));
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(response_of(sent[i]).original_value, i);
    EXPECT_EQ(UntaggedHeader::decode(sent[i].data()).msn, Msn{i + 1});
  }
  EXPECT_EQ(load(peer.memory.data()), 7u);
}

// 7306-5.4-9, -7-11, -7-15: Reads and atomics share queue 1 and are answered in order.
// Proves: 7306-5.2-a 7306-5.4-9 7306-7-11 7306-7-15
TEST(AtomicResponder, MixesWithReads) {
  RawPeer peer;
  store(peer.memory.data(), 10);
  const auto read = [&](uint32_t msn) {
    return read_request({.sink_stag = STag{9},
                         .sink_to = 0,
                         .size = 8,
                         .source_stag = peer.stag(),
                         .source_to = peer.base()},
                        msn);
  };
  peer.feed(joined({read(1), atomic_request(fetch_add(peer, 1), 2), read(3),
                    atomic_request(cmp_swap(peer, 11, 20), 4)}));
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(load(sent[0].data() + TaggedHeader::kWireSize), 10u);
  EXPECT_EQ(response_of(sent[1]).original_value, 10u);
  EXPECT_EQ(load(sent[2].data() + TaggedHeader::kWireSize), 11u);
  EXPECT_EQ(response_of(sent[3]).original_value, 11u);
  EXPECT_EQ(UntaggedHeader::decode(sent[3].data()).msn, Msn{2});  // answers only (A3)
}

// The same with a Read so large that its bytes are sent straight from the region, after the atomic
// has been executed.
TEST(AtomicResponder, ALargeReadBeforeItShowsTheOldValue) {
  constexpr uint32_t kSize = 4 * TransmitBatch::kCopyBytes;
  RawPeer peer;
  store(peer.memory.data(), 10);
  const auto read = [&](uint32_t msn) {
    return read_request({.sink_stag = STag{9},
                         .sink_to = 0,
                         .size = kSize,
                         .source_stag = peer.stag(),
                         .source_to = peer.base()},
                        msn);
  };
  for (uint32_t round = 0; round < 2; ++round) {  // the first batch of a stream is small
    peer.feed(joined({read(4 * round + 1), atomic_request(fetch_add(peer, 1), 4 * round + 2),
                      read(4 * round + 3), atomic_request(fetch_add(peer, 1), 4 * round + 4)}));
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 4u);
    for (uint32_t i = 0; i < 4; i += 2) {
      const uint64_t value = 10 + 2 * round + i / 2;
      EXPECT_EQ(load(sent[i].data() + TaggedHeader::kWireSize), value);
      EXPECT_EQ(response_of(sent[i + 1]).original_value, value);
    }
  }
}

// 7306-7-14: an atomic sees earlier Writes.
TEST(AtomicResponder, SeesEarlierWrites) {
  RawPeer peer;
  Bytes write = tagged(RdmapOpcode::kWrite, peer.stag(), peer.base(), 8);
  store(write.data() + TaggedHeader::kWireSize, 10);
  peer.feed(joined({write, atomic_request(fetch_add(peer, 1), 1)}));
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(response_of(sent[0]).original_value, 10u);
  EXPECT_EQ(load(peer.memory.data()), 11u);
}

// 7306-4.1-c, -5.2.1-a, -c, -f, -1.1-d: fields to be ignored are ignored, identifiers are echoed.
// Proves: 7306-1.1-d 7306-4.1-c 7306-5.2.1-a 7306-5.2.1-c 7306-5.2.1-f
TEST(AtomicResponder, IgnoresReservedAndUnusedFields) {
  RawPeer peer;
  store(peer.memory.data(), 3);
  uint32_t msn = 1;
  for (uint32_t id : {0u, 0xFFFFFFFFu, 5u, 5u}) {
    AtomicRequestHeader header = fetch_add(peer, 0, id);
    header.compare = 0x123456789abcdef0;
    header.compare_mask = 77;
    Bytes ulpdu = atomic_request(header, msn++);
    store_be32(ulpdu.data() + 2, peer.stag().value);
    for (int i = 0; i < 3; ++i) ulpdu[UntaggedHeader::kWireSize + i] = std::byte{0xFF};
    ulpdu[UntaggedHeader::kWireSize + 3] |= std::byte{0xF0};
    ulpdu[1] |= std::byte{0x30};
    peer.send(ulpdu);
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(response_of(sent[0]).request_id, id);
    EXPECT_EQ(response_of(sent[0]).original_value, 3u);
  }
  EXPECT_NE(peer.regions.find(peer.stag()), nullptr);
  EXPECT_EQ(load(peer.memory.data()), 3u);
}

// 7306-5.2.1-e, A27: the address must be aligned, not the offset.
// Proves: 7306-5.2.1-e
TEST(AtomicResponder, AlignmentIsThatOfTheAddress) {
  for (const bool good : {true, false}) {
    RawPeer peer;
    MemoryRegion* odd = *peer.regions.add(peer.dut.domain, peer.memory.data() + 4, 100, 0,
                                          kAllAccess | kAccessZeroBased);
    AtomicRequestHeader header = fetch_add(peer, 1);
    header.remote_stag = STag{odd->key.load()};
    header.remote_to = good ? 4 : 0;
    peer.send(atomic_request(header, 1));
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(opcode_of(sent[0]), good ? RdmapOpcode::kAtomicResponse : RdmapOpcode::kTerminate);
    EXPECT_EQ(load(peer.memory.data() + 8), good ? 1u : 0u);
  }
}

struct BadAtomic {
  const char* name;
  std::function<void(RawPeer&, AtomicRequestHeader&)> spoil;
  T code;
  QpEvent event;
};

const BadAtomic kBadAtomics[] = {
    // 7306-8.2-f
    {"unknown STag", [](RawPeer&, auto& h) { h.remote_stag.value ^= 1; }, T::kRdmapInvalidSTag,
     QpEvent::kAccessError},
    {"region for local use", [](RawPeer& p, auto& h) { h.remote_stag = p.key_for_local_use(); },
     T::kRdmapAccess, QpEvent::kAccessError},
    {"below the base", [](RawPeer&, auto& h) { h.remote_to -= 8; }, T::kRdmapBounds,
     QpEvent::kAccessError},
    {"past the end", [](RawPeer& p, auto& h) { h.remote_to += p.memory.size() - 7; },
     T::kRdmapBounds, QpEvent::kAccessError},
    {"wrap", [](RawPeer&, auto& h) { h.remote_to = kAll - 6; }, T::kRdmapToWrap,
     QpEvent::kAccessError},
    {"no right of the region",
     [](RawPeer& p, auto& h) {
       h.remote_stag = STag{(*p.regions.add(p.dut.domain, p.memory.data(), 100, p.base(),
                                            kAllAccess & ~kAccessRemoteAtomic))
                                ->key.load()};
     },
     T::kRdmapAccess, QpEvent::kAccessError},
    {"no right of the queue pair",
     [](RawPeer& p, auto&) { p.dut.qp->set_remote_access(kAccessRemoteWrite | kAccessRemoteRead); },
     T::kRdmapAccess, QpEvent::kAccessError},
    {"foreign domain",
     [](RawPeer& p, auto& h) {
       static ProtectionDomain other;
       h.remote_stag =
           STag{(*p.regions.add(other, p.memory.data(), 100, p.base(), kAllAccess))->key.load()};
     },
     T::kRdmapSTagNotOfStream, QpEvent::kAccessError},
    // 7306-5.1.1-a to -d, -8.2-d, -e
    {"offset 1", [](RawPeer&, auto& h) { h.remote_to += 1; }, T::kRdmapStreamCatastrophic,
     QpEvent::kRequestError},
    {"offset 4", [](RawPeer&, auto& h) { h.remote_to += 4; }, T::kRdmapStreamCatastrophic,
     QpEvent::kRequestError},
    {"offset 7, CmpSwap",
     [](RawPeer&, auto& h) {
       h.opcode = AtomicOpcode::kCmpSwap;
       h.remote_to += 7;
     },
     T::kRdmapStreamCatastrophic, QpEvent::kRequestError},
    // 7306-5.2.1-k, -10-a
    {"opcode 1", [](RawPeer&, auto& h) { h.opcode = static_cast<AtomicOpcode>(1); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError},
    {"opcode 3", [](RawPeer&, auto& h) { h.opcode = static_cast<AtomicOpcode>(3); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError},
    {"opcode 15", [](RawPeer&, auto& h) { h.opcode = static_cast<AtomicOpcode>(15); },
     T::kRdmapUnexpectedOpcode, QpEvent::kRequestError},
};

// 7306-8.1-b: the Terminate has the DDP header and no RDMA header. Answers that were owed before it
// are still sent.
TEST(AtomicResponder, RefusesBadRequests) {
  for (const BadAtomic& bad : kBadAtomics) {
    SCOPED_TRACE(bad.name);
    RawPeer peer;
    AtomicRequestHeader header = fetch_add(peer, 1);
    bad.spoil(peer, header);
    const Bytes ulpdu = atomic_request(header, 1);
    peer.feed(joined({ulpdu, atomic_request(fetch_add(peer, 1), 2)}));
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, bad.code) << describe(terminate->code);
    EXPECT_TRUE(terminate->has_ddp_header);
    EXPECT_FALSE(terminate->has_rdmap_header);
    EXPECT_EQ(terminate->ddp_segment_length, 70u);
    EXPECT_EQ(std::memcmp(terminate->ddp_header.data(), ulpdu.data(), 18), 0);
    EXPECT_EQ(peer.dut.events, std::vector{bad.event});
    for (size_t i = 0; i < peer.memory.size(); ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
    EXPECT_TRUE(peer.memory.intact());
  }
}

// Malformed messages, and the extensions switched off. 7306-1.1-e, -4-a, -4.1-d, -5.2-c, -8.2-a,
// -b.
struct BadUlpdu {
  const char* name;
  Bytes ulpdu;
  T code;
  bool extensions = true;
};

// Proves: 7306-1.1-e 7306-8.2-b
TEST(AtomicResponder, RefusesBadMessages) {
  using O = RdmapOpcode;
  const BadUlpdu cases[] = {
      {"request, off", untagged(O::kAtomicRequest, 1, 1, 0, 52), T::kRdmapUnexpectedOpcode, false},
      {"response, off", untagged(O::kAtomicResponse, 3, 1, 0, 12), T::kRdmapUnexpectedOpcode,
       false},
      {"Immediate, off", untagged(O::kImmediate, 0, 1, 0, 8), T::kRdmapUnexpectedOpcode, false},
      {"Immediate with SE, off", untagged(O::kImmediateSolicited, 0, 1, 0, 8),
       T::kRdmapUnexpectedOpcode, false},
      {"request of 51", untagged(O::kAtomicRequest, 1, 1, 0, 51), T::kRdmapOperationUnspecified},
      {"request of 56", untagged(O::kAtomicRequest, 1, 1, 0, 56), T::kRdmapOperationUnspecified},
      {"request on queue 0", untagged(O::kAtomicRequest, 0, 1, 0, 52), T::kDdpUntaggedInvalidQn},
      {"request on queue 3", untagged(O::kAtomicRequest, 3, 1, 0, 52), T::kDdpUntaggedInvalidQn},
      {"request, tagged", tagged(O::kAtomicRequest, STag{1}, 0, 52), T::kRdmapUnexpectedOpcode},
      {"request, MSN 2", untagged(O::kAtomicRequest, 1, 2, 0, 52), T::kDdpUntaggedMsnRange},
      {"request, MO 1", untagged(O::kAtomicRequest, 1, 1, 1, 52), T::kDdpUntaggedInvalidMo},
      {"response on queue 1", untagged(O::kAtomicResponse, 1, 1, 0, 12), T::kDdpUntaggedInvalidQn},
      {"unsolicited response", untagged(O::kAtomicResponse, 3, 1, 0, 12),
       T::kRdmapUnexpectedOpcode},
  };
  for (const BadUlpdu& bad : cases) {
    SCOPED_TRACE(bad.name);
    QpConfig shape = End::default_shape();
    shape.extensions = bad.extensions;
    RawPeer peer({}, shape);
    peer.post_receive(1, 100);
    peer.send(bad.ulpdu);
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, bad.code) << describe(terminate->code);
    EXPECT_TRUE(terminate->has_ddp_header);
    EXPECT_FALSE(terminate->has_rdmap_header);
    EXPECT_EQ(
        std::memcmp(terminate->ddp_header.data(), bad.ulpdu.data(), terminate->ddp_header_size), 0);
    EXPECT_TRUE(peer.dut.qp->transmitter().finished());
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
    EXPECT_EQ(peer.dut.events.size(), 1u);
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
    for (size_t i = 0; i < peer.memory.size(); ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0});
  }
}

// 7306-5.2-b, -5.2.2-e, A2: one depth for Reads and atomics.
// Proves: 7306-5.2.1-h
TEST(AtomicResponder, SharesTheDepthWithReads) {
  RawPeer peer;  // IRD 4
  Bytes burst;
  for (uint32_t msn = 1; msn <= 5; ++msn) {
    const Bytes one = joined({atomic_request(fetch_add(peer, 1), msn)});
    burst.insert(burst.end(), one.begin(), one.end());
  }
  peer.feed(burst);
  const auto sent = peer.ulpdus();
  ASSERT_FALSE(sent.empty());
  const auto header =
      TerminateHeader::decode(std::span(sent.back()).subspan(UntaggedHeader::kWireSize));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->code, T::kDdpUntaggedNoBuffer);
}

// ---- Requester

struct Requester : ::testing::Test {
  Requester() : result{peer.base() + 1001, 8, peer.memory_region->key.load()} {}
  int add(uint64_t id, uint64_t value) {
    return peer.dut.post_atomic(SendOpcode::kFetchAdd, id, result, 0x00007f0012345008, 0x1a2b3c4d,
                                value);
  }
  RawPeer peer;
  Sge result;  // may be unaligned
};

// X20, X21 with the MSN and Request Identifier of a fresh stream.
// Proves: 7306-4-a 7306-4.1-b 7306-5.2.1-f
TEST_F(Requester, RequestsAreTheWorkedExamples) {
  ASSERT_EQ(add(1, 1), 0);
  ASSERT_EQ(peer.dut.post_atomic(SendOpcode::kCompareSwap, 2, result, 0x00007f0012345008,
                                 0x1a2b3c4d, 42, 0x1122334455667788),
            0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], from_hex("414a00000000000000010000000100000000000000000000000 01a2b3c4d"
                              "00007f00123450080000000000000001000000000000000000000000000000 00"
                              "ffffffffffffffff"));
  EXPECT_EQ(sent[1], from_hex("414a000000000000000100000002000000000000000200000001 1a2b3c4d"
                              "00007f00123450081122334455667788ffffffffffffffff000000000000002a"
                              "ffffffffffffffff"));
}

// 7306-5.2.2-g, -5.4-1, -5.4-7, V-7: completes with its response, in the host's byte order.
// Proves: 7306-5.2.2-g 7306-5.4-1 7306-5.4-7
TEST_F(Requester, CompletesWithTheResponse) {
  ASSERT_EQ(add(1, 1), 0);
  peer.settle();
  EXPECT_TRUE(peer.dut.sends().empty());
  peer.send(atomic_response({.request_id = 0, .original_value = 0x0102030405060708}, 1));
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  EXPECT_EQ(done[0].opcode, WcOpcode::kFetchAdd);
  EXPECT_EQ(done[0].byte_len, 8u);
  EXPECT_EQ(load(peer.memory.data() + 1001), 0x0102030405060708u);
}

// 7306-5.2-b: of three Reads and three atomics, ORD 4 lets four out, with one sequence of MSNs.
// Proves: 7306-5.2-a 7306-5.2-b 7306-5.2.1-l
TEST_F(Requester, OrdCoversReadsAndAtomics) {
  for (uint64_t id = 0; id < 3; ++id) {
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, id, {&result, 1}, 1, 2), 0);
    ASSERT_EQ(add(10 + id, 1), 0);
  }
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(UntaggedHeader::decode(sent[i].data()).msn, Msn{i + 1});
    EXPECT_EQ(opcode_of(sent[i]), i % 2 ? RdmapOpcode::kAtomicRequest : RdmapOpcode::kReadRequest);
  }
}

// 7306-5.2.2-f: one burst may carry as many responses as atomics were allowed.
// Proves: 7306-5.2.2-f
TEST_F(Requester, TakesAllResponsesInOneBurst) {
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(add(id, 1), 0);
  peer.settle();
  Bytes burst;
  for (uint32_t i = 0; i < 4; ++i) {
    const Bytes one = frame(atomic_response({i, i}, i + 1), false);
    burst.insert(burst.end(), one.begin(), one.end());
  }
  peer.feed(burst, 1);
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 4u);
  for (uint64_t id = 0; id < 4; ++id) EXPECT_EQ(done[id].wr_id, id);
}

// 7306-5.2.2-h
// Proves: 7306-5.2.2-h
TEST_F(Requester, RefusesBadResponses) {
  struct Case {
    const char* name;
    Bytes ulpdu;
    T code;
    WcStatus status;
    QpEvent event;
  };
  Bytes cut = atomic_response({0, 1}, 1);
  cut.pop_back();
  const Case cases[] = {
      {"wrong identifier", atomic_response({1, 1}, 1), T::kRdmapOperationUnspecified,
       WcStatus::kBadRespErr, QpEvent::kRequestError},
      {"11 bytes", cut, T::kRdmapOperationUnspecified, WcStatus::kBadRespErr,
       QpEvent::kRequestError},
      {"MSN 2", atomic_response({0, 1}, 2), T::kDdpUntaggedMsnRange, WcStatus::kWrFlushErr,
       QpEvent::kFatal},
      {"Read Response instead", tagged(RdmapOpcode::kReadResponse, STag{0}, 0, 8),
       T::kRdmapUnexpectedOpcode, WcStatus::kWrFlushErr, QpEvent::kRequestError},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RawPeer fresh;
    const Sge to{fresh.base(), 8, fresh.memory_region->key.load()};
    ASSERT_EQ(fresh.dut.post_atomic(SendOpcode::kFetchAdd, 1, to, 8, 2, 1), 0);
    fresh.settle();
    EXPECT_EQ(fresh.ulpdus().size(), 1u);
    fresh.send(c.ulpdu);
    const auto terminate = fresh.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, c.code);
    EXPECT_FALSE(terminate->has_rdmap_header);
    const auto done = fresh.dut.sends();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, c.status);
    EXPECT_EQ(fresh.dut.events, std::vector{c.event});
    EXPECT_EQ(load(fresh.memory.data()), 0u);
  }
}

TEST_F(Requester, ResponseAheadOfAReadIsRefused) {
  ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 1, {&result, 1}, 1, 2), 0);
  ASSERT_EQ(add(2, 1), 0);
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 2u);
  peer.send(atomic_response({0, 1}, 1));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kRdmapUnexpectedOpcode);
}

// 7306-8.1-a, verbs-mapping 5.1: the requester finds these errors itself, so the Terminate has no
// headers.
// Proves: 7306-8.1-a
TEST_F(Requester, LocalErrors) {
  struct Case {
    const char* name;
    uint32_t length;
    uint32_t lkey_xor;
    WcStatus status;
  };
  for (const Case& c :
       {Case{"too short", 7, 0, WcStatus::kLocLenErr}, Case{"too long", 9, 0, WcStatus::kLocLenErr},
        Case{"unknown key", 8, 1, WcStatus::kLocProtErr}}) {
    SCOPED_TRACE(c.name);
    RawPeer fresh;
    const Sge to{fresh.base(), c.length, fresh.memory_region->key.load() ^ c.lkey_xor};
    ASSERT_EQ(fresh.dut.post_atomic(SendOpcode::kFetchAdd, 1, to, 8, 2, 1), 0);
    fresh.settle();
    const auto terminate = fresh.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, T::kRdmapLocalCatastrophic);
    EXPECT_FALSE(terminate->has_ddp_header);
    const auto done = fresh.dut.sends();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, c.status);
    EXPECT_TRUE(fresh.dut.events.empty());
  }
}

TEST_F(Requester, ResultMemoryIsDeregistered) {
  ASSERT_EQ(add(1, 1), 0);
  peer.settle();
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_EQ(peer.regions.invalidate(*peer.memory_region), 0);
  peer.dut.qp->quiesce(*peer.memory_region);
  peer.send(atomic_response({0, 1}, 1));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kRdmapLocalCatastrophic);
  EXPECT_EQ(peer.dut.sends().at(0).status, WcStatus::kLocProtErr);
  EXPECT_EQ(load(peer.memory.data() + 1001), 0u);
}

// 7306-1.1-e and verbs-mapping 5.2: how the atomic that the peer's Terminate names completes.
// Proves: 7306-1.1-e
TEST_F(Requester, TerminateNamesTheAtomic) {
  const std::pair<T, WcStatus> cases[] = {
      {T::kRdmapUnexpectedOpcode, WcStatus::kRemInvReqErr},
      {T::kRdmapStreamCatastrophic, WcStatus::kRemInvReqErr},
      {T::kRdmapAccess, WcStatus::kRemAccessErr},
  };
  for (const auto& [code, status] : cases) {
    RawPeer fresh;
    const Sge to{fresh.base(), 8, fresh.memory_region->key.load()};
    for (uint64_t id = 0; id < 3; ++id)
      ASSERT_EQ(fresh.dut.post_atomic(SendOpcode::kFetchAdd, id, to, 8, 2, 1), 0);
    fresh.settle();
    const auto sent = fresh.ulpdus();
    TerminateHeader header;
    header.code = code;
    header.copy_ddp_header(sent.at(1).data(), 70);
    Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, header.encoded_size());
    header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
    fresh.send(ulpdu);
    const auto done = fresh.dut.sends();
    ASSERT_EQ(done.size(), 3u);
    EXPECT_EQ(done[0].status, status) << "the oldest says it as well";
    EXPECT_EQ(done[1].status, status);
    EXPECT_EQ(done[2].status, WcStatus::kWrFlushErr);
  }
}

TEST_F(Requester, RefusedAtPost) {
  Sge to = result;
  SendRequest request;
  request.opcode = SendOpcode::kFetchAdd;
  request.flags = kSendInline;
  request.sges = {&to, 1};
  EXPECT_EQ(peer.dut.qp->post_send(request), EINVAL);
  QpConfig shape = End::default_shape();
  shape.extensions = false;
  RawPeer plain({}, shape);
  EXPECT_EQ(plain.dut.post_atomic(SendOpcode::kFetchAdd, 1, to, 8, 2, 1), EOPNOTSUPP);
}

// ---- Two ends

struct AtomicPair : ::testing::TestWithParam<std::tuple<bool, size_t>> {
  AtomicPair() : pair(3) {
    pair.chunk_max = std::get<1>(GetParam());
    StreamConfig config;
    config.crc = std::get<0>(GetParam());
    pair.connect(config);
    here_region = pair.reg(pair.a, here, kAllAccess);
    there_region = pair.reg(pair.b, there, kAllAccess);
  }
  uint64_t run_one(SendOpcode opcode, uint64_t compare_add, uint64_t swap, uint64_t compare_mask,
                   uint64_t other_mask) {
    EXPECT_EQ(
        pair.a.post_atomic(opcode, 1, Pair::sge(here, here_region, 16, 8), there.address(),
                           there_region->key.load(), compare_add, swap, compare_mask, other_mask),
        0);
    pair.run();
    const auto done = pair.a.sends();
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done.at(0).status, WcStatus::kSuccess);
    return load(here.data() + 16);
  }
  Pair pair;
  GuardedMemory here{4096}, there{4096};
  MemoryRegion* here_region;
  MemoryRegion* there_region;
};

// 7306-1.1-a, -5-c: all defined operations, masked and not.
// Proves: 7306-1.1-a 7306-5-c 7306-5.2.1-b
TEST_P(AtomicPair, AllOperations) {
  store(there.data(), 41);
  EXPECT_EQ(run_one(SendOpcode::kFetchAdd, 1, 0, 0, 0), 41u);
  EXPECT_EQ(run_one(SendOpcode::kCompareSwap, 41, 7, 0, 0), 42u);
  EXPECT_EQ(load(there.data()), 42u);
  EXPECT_EQ(run_one(SendOpcode::kCompareSwap, 42, 0xffffffffffffffff, 0, 0), 42u);
  EXPECT_EQ(run_one(SendOpcode::kMaskedFetchAdd, 0x0000000100000001, 0, 0, 0x8000000080000000),
            kAll);
  EXPECT_EQ(load(there.data()), 0u);
  store(there.data(), 0xaaaaaaaa0000002a);
  EXPECT_EQ(run_one(SendOpcode::kMaskedCompareSwap, 0x2a, 0xdeadbeef, 0xff, 0xffffffff),
            0xaaaaaaaa0000002au);
  EXPECT_EQ(load(there.data()), 0xaaaaaaaadeadbeefu);
  EXPECT_TRUE(here.intact());
  EXPECT_TRUE(there.intact());
}

// Atomics in both directions at once, mixed with Reads and fenced Writes.
TEST_P(AtomicPair, ManyInBothDirections) {
  for (uint64_t id = 0; id < 40; ++id) {
    ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, id,
                                 Pair::sge(here, here_region, 1000 + id * 8, 8), there.address(),
                                 there_region->key.load(), 1),
              0);
    ASSERT_EQ(pair.b.post_atomic(SendOpcode::kFetchAdd, id,
                                 Pair::sge(there, there_region, 1000 + id * 8, 8), here.address(),
                                 here_region->key.load(), 2),
              0);
    if (id % 8 == 0) {
      const Sge sink = Pair::sge(here, here_region, 2000 + id, 8);
      ASSERT_EQ(pair.a.post(SendOpcode::kRead, 100, {&sink, 1}, there.address(),
                            there_region->key.load()),
                0);
    }
  }
  pair.run();
  EXPECT_EQ(load(there.data()), 40u);
  EXPECT_EQ(load(here.data()), 80u);
  for (uint64_t id = 0; id < 40; ++id) {
    EXPECT_EQ(load(here.data() + 1000 + id * 8), id);
    EXPECT_EQ(load(there.data() + 1000 + id * 8), 2 * id);
  }
  EXPECT_EQ(pair.a.sends().size(), 45u);
  EXPECT_EQ(pair.b.sends().size(), 40u);
  EXPECT_TRUE(pair.a.events.empty());
}

TEST_P(AtomicPair, FenceWaitsForTheResult) {
  store(there.data(), 5);
  const Sge result = Pair::sge(here, here_region, 0, 8);
  ASSERT_EQ(pair.a.post_atomic(SendOpcode::kFetchAdd, 1, result, there.address(),
                               there_region->key.load(), 1),
            0);
  // The fenced Write sends the result of the atomic.
  ASSERT_EQ(pair.a.post(SendOpcode::kWrite, 2, {&result, 1}, there.address() + 64,
                        there_region->key.load(), kSendSignaled | kSendFence),
            0);
  pair.run();
  EXPECT_EQ(load(there.data() + 64), 5u);
}

INSTANTIATE_TEST_SUITE_P(CrcAndCuts, AtomicPair,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(size_t{0}, size_t{1}, size_t{37})));

}  // namespace
}  // namespace uwarp::sim
