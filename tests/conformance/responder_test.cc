// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a peer may send, and how the queue pair must answer: valid streams in every form, and
// answers byte for byte. RFC 5040 4 and 5, RFC 5041 4 and 5, RFC 5044 4.
#include <gtest/gtest.h>

#include <functional>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;
using O = RdmapOpcode;

/// A Send whose payload is its MSN.
Bytes numbered(uint32_t msn, size_t size = 4) {
  Bytes ulpdu = send_message(msn, size);
  if (size >= 4) store_be32(&ulpdu[18], msn);
  return ulpdu;
}
ReadRequestHeader read_of(RawPeer& peer, uint32_t size, uint64_t offset = 0) {
  return {.sink_stag = STag{7},
          .sink_to = 9,
          .size = size,
          .source_stag = peer.stag(),
          .source_to = peer.base() + offset};
}
void count_up(GuardedMemory& memory) {
  for (size_t i = 0; i < memory.size(); ++i)
    memory.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
}
bool is_zero(const GuardedMemory& memory, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i)
    if (const_cast<GuardedMemory&>(memory).data()[i] != std::byte{0}) return false;
  return true;
}
/// The payload of a Read Response, which may come in several segments. Checks STag and TO of each.
Bytes answer(const std::vector<Bytes>& ulpdus, size_t& at, STag stag, uint64_t to) {
  Bytes payload;
  for (bool last = false; !last && at < ulpdus.size(); ++at) {
    const TaggedHeader header = TaggedHeader::decode(ulpdus[at].data());
    EXPECT_EQ(opcode_of(ulpdus[at]), O::kReadResponse);
    EXPECT_EQ(header.stag, stag);
    EXPECT_EQ(header.to, to + payload.size());
    last = header.control.last();
    payload.insert(payload.end(), ulpdus[at].begin() + 14, ulpdus[at].end());
  }
  return payload;
}
QpConfig deep() {
  QpConfig shape = End::default_shape();
  shape.max_send_wr = shape.max_recv_wr = 1024;
  return shape;
}

// ---- Sends

// Proves: 5040-3.1-d 5041-5.4-c 5040-5.3-c
TEST(ReceivedSends, LengthsAreReported) {
  RawPeer peer;
  uint32_t msn = 1;
  for (const uint32_t size : {0u, 1u, 3u, 4u, 5u, 100u, 4096u, 5000u}) {
    peer.post_receive(size, 5000);
    peer.send(send_message(msn++, size));
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].wr_id, size);
    EXPECT_EQ(got[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[0].byte_len, size);
  }
  EXPECT_TRUE(peer.dut.events.empty());
}

// Proves: 5040-3.1-i 5040-5.3-e 5040-5.3-b 5040-5.5-10 5040-B-1 5041-5.3-e 5041-5.3-f 5041-4.1-g
// Proves: 5041-5.1-b 5044-3-a 5044-6-a 4296-2.1.2-b
TEST(ReceivedSends, AThousandInOneBurst) {
  for (const bool crc : {false, true}) {
    StreamConfig config;
    config.crc = crc;
    RawPeer peer(config, deep());
    GuardedMemory buffers(4000);
    MemoryRegion* region = *peer.regions.add(peer.dut.domain, buffers.data(), buffers.size(),
                                             buffers.address(), kAccessLocalWrite);
    Bytes burst;
    for (uint32_t i = 0; i < 1000; ++i) {
      const Sge sge{buffers.address() + 4 * i, 4, region->key.load()};
      ASSERT_EQ(peer.dut.qp->post_recv(i, {&sge, 1}), 0);
      const Bytes fpdu = frame(numbered(i + 1), crc);
      burst.insert(burst.end(), fpdu.begin(), fpdu.end());
    }
    peer.feed(burst);
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1000u);
    for (uint32_t i = 0; i < 1000; ++i) {
      EXPECT_EQ(got[i].wr_id, i);
      EXPECT_EQ(load_be32(buffers.data() + 4 * i), i + 1);
    }
    EXPECT_TRUE(buffers.intact());
  }
}

// Proves: 5041-5.2-l 5040-5.5-10
TEST(ReceivedSends, HundredSegmentsOfOneByte) {
  RawPeer peer;
  peer.post_receive(1, 100);
  for (uint32_t mo = 0; mo < 100; ++mo) {
    Bytes ulpdu = send_message(1, 1, mo, mo == 99);
    ulpdu[18] = static_cast<std::byte>(mo);
    EXPECT_TRUE(peer.dut.receives().empty());
    peer.send(ulpdu);
  }
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_len, 100u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(peer.receive_memory.data()[i], std::byte(i));
}

// Proves: 5040-5.5-16 5041-5.4-b
TEST(ReceivedSends, NothingIsDeliveredBeforeTheLastSegment) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.post_receive(2, 100);
  peer.send(send_message(1, 50, 0, false));
  EXPECT_TRUE(peer.dut.receives().empty());
  const Bytes rest = frame(send_message(1, 50, 50), false);
  // All bytes of the FPDU but the last: still no completion.
  peer.feed(Bytes(rest.begin(), rest.end() - 1));
  EXPECT_TRUE(peer.dut.receives().empty());
  peer.feed(Bytes(rest.end() - 1, rest.end()));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
}

// Proves: 5040-5.3-m
TEST(ReceivedSends, EmptyOneTakesAReceive) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.post_receive(2, 100);
  peer.send(send_message(1, 0));
  auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 1u);
  EXPECT_EQ(got[0].byte_len, 0u);
  peer.send(send_message(2, 7));
  got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 2u);
}

// Reserved and unused header fields are not checked.
// Proves: 5040-4.1-j 5040-4.1-l 5041-4.1-i
TEST(ReceivedSends, ReservedBitsAreIgnored) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.post_receive(2, 100);
  Bytes ulpdu = untagged(O::kSend, 0, 1, 0, 8, true, peer.stag());
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  ulpdu = untagged(O::kSendSolicited, 0, 2, 0, 8, true, peer.stag());
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 2u);
  for (const auto& one : got) {
    EXPECT_EQ(one.status, WcStatus::kSuccess);
    EXPECT_EQ(one.wc_flags, 0u);
  }
  // The STag in the unused field is still valid, and reserved bits of tagged segments are ignored.
  ulpdu = tagged(O::kWrite, peer.stag(), peer.base(), 8);
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  EXPECT_EQ(peer.memory.data()[7], std::byte{0x3C});
  ulpdu = read_request(read_of(peer, 8), 1);
  store_be32(&ulpdu[2], peer.stag().value);
  ulpdu[0] |= std::byte{0x3C};
  ulpdu[1] |= std::byte{0x30};
  peer.send(ulpdu);
  EXPECT_EQ(peer.ulpdus().size(), 1u);
  EXPECT_NE(peer.regions.find(peer.stag()), nullptr);
  EXPECT_TRUE(peer.dut.events.empty());
}

/// One queue pair whose receive completion queue can be armed.
struct Armed : CompletionNotifier {
  void completion_event() override { ++events; }
  void completion_overrun() override {}

  struct Taken {
    int events;
    std::vector<WorkCompletion> completions;
    STag stag;
    bool stag_lives;
  };
  /// Receives a Send with this opcode, whose header holds a window's STag.
  Taken take(O opcode, bool solicited_only) {
    RegionTable regions;
    ProtectionDomain domain;
    CompletionQueue cq(8, this), sends(8, nullptr);
    QpConfig shape = End::default_shape();
    shape.domain = &domain;
    shape.regions = &regions;
    shape.send_cq = &sends;
    shape.recv_cq = &cq;
    GuardedMemory memory(100);
    MemoryRegion* region =
        *regions.add(domain, memory.data(), 100, memory.address(), kAllAccess | kAccessMwBind);
    MemoryRegion* window = *regions.add_window(domain, RegionKind::kWindowType2);
    Taken taken{};
    taken.stag = STag{regions.window_key(*window)};
    {
      QueuePair qp(shape);
      qp.to_init();
      EXPECT_TRUE(qp.start_stream({}));
      SendRequest bind;
      bind.opcode = SendOpcode::kBindWindow;
      bind.rkey = taken.stag.value;
      bind.bind_lkey = region->key.load();
      bind.remote_address = memory.address();
      bind.bind_length_bytes = 100;
      bind.bind_access = kAccessRemoteWrite;
      EXPECT_EQ(qp.post_send(bind), 0);
      auto turn = qp.transmit_side().begin();
      EXPECT_TRUE(turn);
      EXPECT_TRUE(qp.transmitter().next_iovecs().empty());
      (void)turn.end();
      EXPECT_NE(regions.find(taken.stag), nullptr);
      const Sge sge{memory.address(), 100, region->key.load()};
      EXPECT_EQ(qp.post_recv(1, {&sge, 1}), 0);
      cq.arm(solicited_only);
      StagingPointer staging = std::make_unique<StagingBuffer>();
      const Bytes fpdu = frame(untagged(opcode, 0, 1, 0, 12, true, taken.stag), false);
      const auto side = qp.receive_side().lock_exclusive();
      std::memcpy(qp.receiver().next_iovecs(staging)[0].iov_base, fpdu.data(), fpdu.size());
      qp.receiver().received(staging, fpdu.size());
      taken.completions = End::drain(cq);
      taken.events = events;
      taken.stag_lives = regions.find(taken.stag) != nullptr;
      for (size_t i = 0; i < 12; ++i) EXPECT_EQ(memory.data()[i], std::byte{0x3C});
    }
    regions.release_window(*window);
    return taken;
  }
  int events = 0;
};

// Proves: 5040-3.2-a 5040-5.3-f 5040-5.3-g 5040-5.3-t 5041-4.2-c 5041-5.4-d
TEST(ReceivedSends, EachKindDoesWhatItSays) {
  struct Row {
    O opcode;
    bool solicited, invalidates;
  };
  for (const Row& row :
       {Row{O::kSend, false, false}, Row{O::kSendInvalidate, false, true},
        Row{O::kSendSolicited, true, false}, Row{O::kSendSolicitedInvalidate, true, true}}) {
    for (const bool solicited_only : {false, true}) {
      SCOPED_TRACE(name(row.opcode));
      const auto taken = Armed().take(row.opcode, solicited_only);
      ASSERT_EQ(taken.completions.size(), 1u);
      const WorkCompletion& one = taken.completions[0];
      EXPECT_EQ(one.status, WcStatus::kSuccess);
      EXPECT_EQ(one.opcode, WcOpcode::kRecv);
      EXPECT_EQ(one.byte_len, 12u);
      EXPECT_EQ(one.wc_flags, row.invalidates ? uint32_t{kWcWithInvalidate} : 0u);
      EXPECT_EQ(one.imm_or_invalidated, row.invalidates ? taken.stag.value : 0u);
      EXPECT_EQ(taken.stag_lives, !row.invalidates);
      EXPECT_EQ(taken.events, row.solicited || !solicited_only ? 1 : 0);
    }
  }
}

// ---- Writes

// Proves: 5040-3.2-c 5040-5.1-b 5041-4.1-a 5041-4.1-b
TEST(ReceivedWrites, ArePlacedAndNotReported) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 4096));
  for (size_t i = 0; i < 4096; ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0x3C});
  EXPECT_TRUE(is_zero(peer.memory, 4096, peer.memory.size()));
  EXPECT_TRUE(is_zero(peer.receive_memory, 0, peer.receive_memory.size()));
  EXPECT_TRUE(peer.dut.receives().empty());
  EXPECT_TRUE(peer.dut.sends().empty());
  EXPECT_TRUE(peer.dut.events.empty());
  // The receive has not been used.
  peer.send(send_message(1, 3));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
}

// Proves: 5040-5.1-d 5040-5.1-e 5041-4.2-h
TEST(ReceivedWrites, AnyPartOfTheBuffer) {
  for (const size_t offset : {1u, 3u, 4u, 777u, 19983u}) {
    RawPeer peer;
    peer.send(tagged(O::kWrite, peer.stag(), peer.base() + offset, 17));
    EXPECT_TRUE(is_zero(peer.memory, 0, offset));
    for (size_t i = 0; i < 17; ++i) EXPECT_EQ(peer.memory.data()[offset + i], std::byte{0x3C});
    EXPECT_TRUE(is_zero(peer.memory, offset + 17, peer.memory.size()));
    EXPECT_TRUE(peer.memory.intact());
    EXPECT_TRUE(peer.dut.events.empty());
  }
}

// STag and TO of an empty segment are not checked, whether it stands alone or ends a Write.
// Proves: 5041-5.2-i 5041-5.2-j
TEST(ReceivedWrites, EmptyOnesAreNotChecked) {
  RawPeer peer;
  peer.send(tagged(O::kWrite, STag{0xDEADBEEF}, ~uint64_t{0}, 0));
  peer.send(tagged(O::kWrite, STag{0}, 0, 0));
  peer.send(tagged(O::kWrite, STag{0xFFFFFFFF}, 0x8000000000000000, 0));
  EXPECT_TRUE(peer.dut.events.empty());
  EXPECT_TRUE(peer.ulpdus().empty());
  EXPECT_EQ(peer.dut.qp->state(), QpState::kRts);
}

// Proves: 5041-5.1-a
TEST(ReceivedWrites, AThousandToTheSameBuffer) {
  RawPeer peer;
  for (size_t i = 0; i < 1000; ++i) {
    Bytes ulpdu = tagged(O::kWrite, peer.stag(), peer.base() + i % 50, 100);
    std::fill(ulpdu.begin() + 14, ulpdu.end(), static_cast<std::byte>(i));
    peer.send(ulpdu);
    EXPECT_EQ(peer.memory.data()[i % 50], static_cast<std::byte>(i));
    EXPECT_EQ(peer.memory.data()[i % 50 + 99], static_cast<std::byte>(i));
  }
  EXPECT_TRUE(peer.dut.events.empty());
}

// Proves: 5040-5.1-h 5040-5.5-10b 5040-B-4
TEST(ReceivedWrites, ArePlacedWhenALaterSendCompletes) {
  constexpr size_t kSize = 65536 - 15;
  RawPeer peer;
  GuardedMemory target(kSize);
  const STag key{(*peer.regions.add(peer.dut.domain, target.data(), kSize, 0, kAllAccess))->key};
  Bytes write = tagged(O::kWrite, key, 0, kSize);
  for (uint32_t round = 1; round <= 10000; ++round) {
    std::memset(write.data() + 14, static_cast<int>(round), kSize);
    peer.post_receive(round);
    // Cut at another place in each round.
    const Bytes both = joined({write, send_message(round, 0)});
    const size_t cut = round * 7919u % both.size();
    peer.feed(Bytes(both.begin(), both.begin() + static_cast<ptrdiff_t>(cut)));
    if (cut + 8 < both.size()) {
      ASSERT_TRUE(peer.dut.receives().empty());
    }
    peer.feed(Bytes(both.begin() + static_cast<ptrdiff_t>(cut), both.end()));
    ASSERT_EQ(peer.dut.receives().size(), 1u);
    ASSERT_EQ(std::memcmp(target.data(), write.data() + 14, kSize), 0) << round;
  }
  EXPECT_TRUE(target.intact());
}

// A tagged message between the segments of an untagged one.
// Proves: 5041-5.3-h
TEST(ReceivedWrites, MayComeBetweenSegmentsOfASend) {
  RawPeer peer;
  peer.post_receive(1, 100);
  peer.send(send_message(1, 10, 0, false));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 8, false));
  peer.send(send_message(1, 10, 10, false));
  peer.send(tagged(O::kWrite, peer.stag(), peer.base() + 8, 8));
  peer.send(send_message(1, 10, 20));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_len, 30u);
  EXPECT_EQ(peer.memory.data()[15], std::byte{0x3C});
  EXPECT_TRUE(peer.dut.events.empty());
}

TEST(ReceivedWrites, EachSegmentIsCheckedWhenItComes) {
  RawPeer peer;
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 8, false));
  const STag key = peer.stag();
  ASSERT_EQ(peer.regions.invalidate(*peer.memory_region), 0);
  peer.dut.qp->quiesce(*peer.memory_region);
  peer.send(tagged(O::kWrite, key, peer.base() + 8, 8));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kDdpTaggedInvalidSTag);
  EXPECT_TRUE(is_zero(peer.memory, 8, peer.memory.size()));
  EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kAccessError});
  EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
}

// ---- Reads

// Proves: 5040-3.2-e 5040-5.2.1-c 5040-5.2.1-d 5040-5.2.1-k 5040-5.2.2-a 5041-4.2-g
TEST(AnsweredReads, AreNotReported) {
  RawPeer peer;
  count_up(peer.memory);
  peer.post_receive(1, 100);
  peer.send(read_request(read_of(peer, 4096), 1));
  size_t at = 0;
  const auto sent = peer.ulpdus();
  const Bytes payload = answer(sent, at, STag{7}, 9);
  EXPECT_EQ(at, sent.size());
  ASSERT_EQ(payload.size(), 4096u);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), peer.memory.data()));
  EXPECT_TRUE(peer.dut.receives().empty());
  EXPECT_TRUE(peer.dut.sends().empty());
  EXPECT_TRUE(peer.dut.events.empty());
  peer.send(send_message(1, 3));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
}

// Proves: 5040-4.4-b 5040-4.4-c 5040-4.4-d
TEST(AnsweredReads, RepeatKeyAndOffsetOfTheSink) {
  RawPeer peer;
  uint32_t msn = 1;
  for (const uint32_t stag : {0xFFFFFFFFu, 0u, 0x12345678u}) {
    for (const uint64_t to : {0xFFFFFFFF00000001, uint64_t{0}, uint64_t{3}}) {
      ReadRequestHeader header = read_of(peer, 100);
      header.sink_stag = STag{stag};
      header.sink_to = to;
      peer.send(read_request(header, msn++));
      size_t at = 0;
      EXPECT_EQ(answer(peer.ulpdus(), at, STag{stag}, to).size(), 100u);
    }
  }
}

// Proves: 5040-4.4-e 5040-4.4-f 5040-5.2.1-j 5040-7.2-i
TEST(AnsweredReads, AnySizeAndPlace) {
  RawPeer peer;
  GuardedMemory large((1 << 20) + 100);
  count_up(large);
  const STag key{
      (*peer.regions.add(peer.dut.domain, large.data(), large.size(), 0, kAccessRemoteRead))->key};
  uint32_t msn = 1;
  const std::pair<uint32_t, uint64_t> reads[] = {{0, 0},
                                                 {1, 0},
                                                 {1, large.size() - 1},
                                                 {100, 77},
                                                 {65521, 1},
                                                 {65522, 3},
                                                 {1 << 20, 13},
                                                 {static_cast<uint32_t>(large.size()), 0},
                                                 {50, large.size() - 50}};
  for (const auto& [size, offset] : reads) {
    SCOPED_TRACE(size);
    ReadRequestHeader header = read_of(peer, size);
    header.source_stag = key;
    header.source_to = offset;
    peer.send(read_request(header, msn++));
    size_t at = 0;
    const auto sent = peer.ulpdus();
    const Bytes payload = answer(sent, at, STag{7}, 9);
    EXPECT_EQ(at, sent.size());
    ASSERT_EQ(payload.size(), size);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), large.data() + offset));
  }
  // The request is one byte longer than the region: no byte of data is sent.
  ReadRequestHeader header = read_of(peer, 51);
  header.source_stag = key;
  header.source_to = large.size() - 50;
  peer.send(read_request(header, msn));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kRdmapBounds);
}

// Proves: 5040-5.2.1-n 5040-5.2.1-o
TEST(AnsweredReads, EmptyOnesAreNotChecked) {
  RawPeer peer;
  peer.send(read_request({.sink_stag = STag{0xABCD},
                          .sink_to = 0x1122334455667788,
                          .size = 0,
                          .source_stag = STag{0xDEADBEEF},
                          .source_to = ~uint64_t{0}},
                         1));
  EXPECT_EQ(peer.out, from_hex("000e c142 0000abcd 1122334455667788 00000000"));
  peer.out.clear();
  EXPECT_TRUE(peer.dut.events.empty());
}

// Proves: 5040-5.2.1-h 5040-5.2.2-g 5040-5.5-20 5040-B-9
TEST(AnsweredReads, InTheOrderOfTheRequests) {
  StreamConfig config;
  config.ird = 8;
  RawPeer peer(config);
  GuardedMemory large(1 << 20);
  count_up(large);
  const STag key{
      (*peer.regions.add(peer.dut.domain, large.data(), large.size(), 0, kAccessRemoteRead))->key};
  const uint32_t sizes[] = {1 << 20, 1, 65536, 0, 100000, 2, 1, 300000};
  std::vector<Bytes> requests;
  for (uint32_t i = 0; i < 8; ++i)
    requests.push_back(read_request({.sink_stag = STag{i + 1},
                                     .sink_to = i,
                                     .size = sizes[i],
                                     .source_stag = key,
                                     .source_to = 0},
                                    i + 1));
  peer.feed(joined(requests));
  const auto sent = peer.ulpdus();
  size_t at = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    const Bytes payload = answer(sent, at, STag{i + 1}, i);
    ASSERT_EQ(payload.size(), sizes[i]);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), large.data()));
  }
  EXPECT_EQ(at, sent.size());
}

// Proves: 5040-5.5-12 5040-5.5-17 5040-B-6
TEST(AnsweredReads, SeeEarlierWrites) {
  RawPeer peer;
  for (uint32_t round = 1; round <= 10000; ++round) {
    Bytes write = tagged(O::kWrite, peer.stag(), peer.base(), 100);
    store_be32(&write[14 + 96], round);
    const Bytes both = joined({write, read_request(read_of(peer, 100), round)});
    const size_t cut = round % both.size();
    peer.feed(Bytes(both.begin(), both.begin() + static_cast<ptrdiff_t>(cut)));
    peer.feed(Bytes(both.begin() + static_cast<ptrdiff_t>(cut), both.end()));
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(load_be32(&sent[0][14 + 96]), round);
  }
}

// Proves: 5040-B-3
TEST(AnsweredReads, SeeEarlierSends) {
  RawPeer peer;
  const Sge sge{peer.base(), 100, peer.memory_region->key.load()};
  for (uint32_t round = 1; round <= 100; ++round) {
    ASSERT_EQ(peer.dut.qp->post_recv(round, {&sge, 1}), 0);
    Bytes message = numbered(round, 100);
    peer.feed(joined({message, read_request(read_of(peer, 100), round)}));
    // When the answer is sent, the earlier Send has completed.
    const auto sent = peer.ulpdus();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(load_be32(&sent[0][14]), round);
    EXPECT_EQ(peer.dut.receives().size(), 1u);
  }
  // A Read is not answered before it is delivered, however long that takes.
  peer.feed(joined({send_message(101, 4), read_request(read_of(peer, 100), 101)}));
  EXPECT_TRUE(peer.dut.qp->receiver().rnr_blocked());
  EXPECT_TRUE(peer.ulpdus().empty());
}

// Proves: 5040-5.5-18 5040-B-7
TEST(AnsweredReads, DoNotDelayLaterSends) {
  RawPeer peer;
  peer.reads = false;
  peer.post_receive(1, 100);
  peer.feed(joined({read_request(read_of(peer, 20000), 1), send_message(1, 8)}));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  peer.reads = true;
  peer.settle();
  size_t at = 0;
  EXPECT_EQ(answer(peer.ulpdus(), at, STag{7}, 9).size(), 20000u);
}

// The negotiated number of Reads is always under way.
// Proves: 5040-5.2.2-c 5040-6.1-c 5040-8.1.1-11
TEST(AnsweredReads, AsManyAsNegotiated) {
  for (const uint16_t ird : {uint16_t{1}, uint16_t{2}, uint16_t{16}, uint16_t{128}}) {
    StreamConfig config;
    config.ird = ird;
    RawPeer peer(config);
    uint32_t msn = 1;
    for (int round = 0; round < 200; ++round) {
      peer.reads = false;
      std::vector<Bytes> requests;
      for (uint16_t i = 0; i < ird; ++i) requests.push_back(read_request(read_of(peer, 64), msn++));
      peer.feed(joined(requests));
      peer.reads = true;
      peer.settle();
      ASSERT_EQ(peer.ulpdus().size(), ird);
    }
    EXPECT_TRUE(peer.dut.events.empty());
  }
}

TEST(AnsweredReads, NoneWhereNoneWasNegotiated) {
  sim::Pair pair(1);
  StreamConfig initiator, responder;
  initiator.ord = 1;
  initiator.rtr = StreamConfig::Rtr::kWrite;
  responder.wait_for_first_fpdu = true;
  ASSERT_TRUE(pair.a.qp->start_stream(initiator));
  ASSERT_TRUE(pair.b.qp->start_stream(responder));
  ASSERT_EQ(pair.a.post(SendOpcode::kRead, 1, {}), 0);
  pair.run();
  EXPECT_EQ(pair.a.sends().at(0).status, WcStatus::kRemOpErr);
  EXPECT_EQ(pair.a.qp->failure().terminate.code, T::kDdpUntaggedNoBuffer);
  EXPECT_EQ(pair.b.qp->state(), QpState::kErr);
}

TEST(AnsweredReads, OneMoreThanNegotiated) {
  for (const bool crc : {false, true}) {
    StreamConfig config;
    config.crc = crc;
    RawPeer peer(config);  // IRD 4
    peer.post_receive(1, 100);
    peer.reads = false;
    std::vector<Bytes> requests;
    for (uint32_t msn = 1; msn <= 5; ++msn)
      requests.push_back(read_request(read_of(peer, 64), msn));
    peer.feed(joined(requests, crc));
    peer.reads = true;
    peer.settle();
    const auto sent = peer.ulpdus();
    ASSERT_FALSE(sent.empty());
    const auto terminate = TerminateHeader::decode(std::span(sent.back()).subspan(18));
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(opcode_of(sent.back()), O::kTerminate);
    EXPECT_EQ(terminate->code, T::kDdpUntaggedNoBuffer);
    EXPECT_EQ(std::memcmp(terminate->ddp_header.data(), requests[4].data(), 18), 0);
    EXPECT_EQ(terminate->ddp_segment_length, 46);
    EXPECT_TRUE(peer.dut.qp->transmitter().finished());
    EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
    EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
    EXPECT_TRUE(is_zero(peer.memory, 0, peer.memory.size()));
  }
}

// A Read fails half way. The Terminate reports the rest of it, which must fit what was sent.
// Proves: 5040-4.8-n
TEST(AnsweredReads, FailedHalfWay) {
  StreamConfig config;
  config.mulpdu = 1500;
  RawPeer peer(config);
  GuardedMemory large(1 << 20);
  MemoryRegion* region =
      *peer.regions.add(peer.dut.domain, large.data(), large.size(), 0, kAccessRemoteRead);
  const ReadRequestHeader asked{.sink_stag = STag{7},
                                .sink_to = 1000,
                                .size = 1 << 20,
                                .source_stag = STag{region->key.load()},
                                .source_to = 0};
  peer.reads = false;
  peer.send(read_request(asked, 1));
  // The first batch is sent, then the source region is removed.
  auto turn = peer.dut.qp->transmit_side().begin();
  ASSERT_TRUE(turn);
  size_t done = 0;
  for (const iovec& piece : peer.dut.qp->transmitter().next_iovecs()) {
    const auto* from = static_cast<const std::byte*>(piece.iov_base);
    peer.out.insert(peer.out.end(), from, from + piece.iov_len);
    done += piece.iov_len;
  }
  peer.dut.qp->transmitter().sent(done);
  peer.scan.feed(peer.out);
  (void)turn.end();
  ASSERT_EQ(peer.regions.invalidate(*region), 0);
  peer.dut.qp->quiesce(*region);
  peer.reads = true;
  peer.settle();
  auto sent = peer.ulpdus();
  ASSERT_GT(sent.size(), 2u);
  const Bytes last = sent.back();
  sent.pop_back();
  uint64_t bytes = 0;
  for (const Bytes& one : sent) {
    EXPECT_EQ(opcode_of(one), O::kReadResponse);
    EXPECT_FALSE(TaggedHeader::decode(one.data()).control.last());
    bytes += one.size() - 14;
  }
  const auto terminate = TerminateHeader::decode(std::span(last).subspan(18));
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kRdmapInvalidSTag);
  ASSERT_TRUE(terminate->has_rdmap_header);
  const auto rest = ReadRequestHeader::decode(terminate->rdmap_header.data());
  EXPECT_EQ(rest.sink_stag, asked.sink_stag);
  EXPECT_EQ(rest.source_stag, asked.source_stag);
  EXPECT_EQ(rest.sink_to, asked.sink_to + bytes);
  EXPECT_EQ(rest.source_to, asked.source_to + bytes);
  EXPECT_EQ(rest.size, asked.size - bytes);
  EXPECT_GT(bytes, 0u);
}

// ---- Rights

// Each combination of rights with each kind of access.
// Proves: 5040-8.1.1-5 4296-2.2.1-a 4296-3-c 5041-8.3.1-a
TEST(Rights, AreThoseOfTheRegion) {
  for (uint32_t bits = 0; bits < 8; ++bits) {
    uint32_t access = kAccessLocalWrite;
    if (bits & 1) access |= kAccessRemoteWrite;
    if (bits & 2) access |= kAccessRemoteRead;
    if (bits & 4) access |= kAccessRemoteAtomic;
    for (uint32_t kind = 0; kind < 3; ++kind) {
      RawPeer peer;
      const MemoryRegion* region =
          *peer.regions.add(peer.dut.domain, peer.memory.data(), 64, peer.base(), access);
      const STag key{region->key.load()};
      ReadRequestHeader read = read_of(peer, 8);
      read.source_stag = key;
      const Bytes ulpdus[] = {
          tagged(O::kWrite, key, peer.base(), 8), read_request(read, 1),
          atomic_request({.remote_stag = key, .remote_to = peer.base(), .add_or_swap = 1}, 1)};
      peer.send(ulpdus[kind]);
      const bool allowed = (bits >> kind & 1) != 0;
      EXPECT_EQ(peer.dut.events.empty(), allowed) << bits << ' ' << kind;
      EXPECT_EQ(is_zero(peer.memory, 0, 64), kind == 1 || !allowed);
      const auto sent = peer.ulpdus();
      ASSERT_EQ(sent.size(), kind == 0 && allowed ? 0u : 1u);
      if (!sent.empty()) {
        EXPECT_EQ(opcode_of(sent[0]), !allowed    ? O::kTerminate
                                      : kind == 1 ? O::kReadResponse
                                                  : O::kAtomicResponse);
      }
    }
  }
}

// Two regions of the same memory with different rights.
// Proves: 5042-c 4296-2.1.2-d
TEST(Rights, OfOneRegionDoNotApplyToAnother) {
  RawPeer peer;
  const MemoryRegion* read_only =
      *peer.regions.add(peer.dut.domain, peer.memory.data(), 64, peer.base(), kAccessRemoteRead);
  peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 8));
  EXPECT_EQ(peer.memory.data()[7], std::byte{0x3C});
  std::memset(peer.memory.data(), 0, 64);
  peer.send(tagged(O::kWrite, STag{read_only->key.load()}, peer.base(), 8));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate.has_value());
  EXPECT_EQ(terminate->code, T::kDdpTaggedInvalidSTag);
  EXPECT_TRUE(is_zero(peer.memory, 0, 64));
}

// Accesses move byte by byte over both ends of a region.
// Proves: 5040-8.1.1-3 5041-8.1-a 5041-8.3.1-a
TEST(Rights, EndAtTheBoundsToTheByte) {
  for (int offset = -3; offset <= 3; ++offset) {
    for (const bool at_end : {false, true}) {
      RawPeer peer;
      const MemoryRegion* region = *peer.regions.add(peer.dut.domain, peer.memory.data() + 100, 50,
                                                     peer.base() + 100, kAllAccess);
      const uint64_t to = peer.base() + static_cast<uint64_t>((at_end ? 146 : 100) + offset);
      peer.send(tagged(O::kWrite, STag{region->key.load()}, to, 4));
      const bool inside = at_end ? offset <= 0 : offset >= 0;
      EXPECT_EQ(peer.dut.events.empty(), inside) << offset;
      EXPECT_TRUE(is_zero(peer.memory, 0, 100));
      EXPECT_TRUE(is_zero(peer.memory, 150, peer.memory.size()));
      EXPECT_EQ(is_zero(peer.memory, 100, 150), !inside);
    }
  }
}

// ---- Framing

// The same messages, with the TCP reads cut at every byte.
// Proves: 5041-3-4
TEST(Framing, CutAtEveryByte) {
  for (const bool crc : {false, true}) {
    StreamConfig config;
    config.crc = crc;
    const auto stream = [&](RawPeer& peer) {
      return joined({tagged(O::kWrite, peer.stag(), peer.base(), 13), send_message(1, 7, 0, false),
                     read_request(read_of(peer, 13), 1), send_message(1, 5, 7),
                     tagged(O::kWrite, peer.stag(), peer.base() + 100, 0)},
                    crc);
    };
    RawPeer whole(config);
    const size_t size = stream(whole).size();
    for (size_t cut = 0; cut <= size; ++cut) {
      RawPeer peer(config);
      peer.post_receive(1, 100);
      const Bytes bytes = stream(peer);
      peer.feed(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut)));
      peer.feed(Bytes(bytes.begin() + static_cast<ptrdiff_t>(cut), bytes.end()));
      const auto got = peer.dut.receives();
      ASSERT_EQ(got.size(), 1u) << cut;
      EXPECT_EQ(got[0].byte_len, 12u);
      for (size_t i = 0; i < 13; ++i) ASSERT_EQ(peer.memory.data()[i], std::byte{0x3C});
      EXPECT_TRUE(is_zero(peer.memory, 13, peer.memory.size()));
      const auto sent = peer.ulpdus();
      ASSERT_EQ(sent.size(), 1u);
      EXPECT_EQ(sent[0].size(), 14u + 13);
    }
  }
}

// Pad bytes of any value are covered by the CRC if there is one, and are not placed.
// Proves: 5041-3-7 5044-4.1-c
TEST(Framing, PadIsNotPlaced) {
  for (const bool crc : {false, true}) {
    StreamConfig config;
    config.crc = crc;
    for (size_t payload = 1; payload <= 8; ++payload) {
      RawPeer peer(config);
      peer.post_receive(1, 100);
      const auto padded = [&](const Bytes& ulpdu) {
        Bytes fpdu = frame(ulpdu, false);
        for (size_t i = 2 + ulpdu.size(); i < fpdu.size() - 4; ++i) fpdu[i] = std::byte{0xFF};
        const size_t covered = fpdu.size() - 4;
        store_le32(&fpdu[covered], crc ? crc32c(fpdu.data(), covered) : 0);
        return fpdu;
      };
      peer.feed(padded(send_message(1, payload)));
      peer.feed(padded(tagged(O::kWrite, peer.stag(), peer.base(), payload)));
      const auto got = peer.dut.receives();
      ASSERT_EQ(got.size(), 1u);
      EXPECT_EQ(got[0].byte_len, payload);
      EXPECT_TRUE(is_zero(peer.receive_memory, payload, 200));
      EXPECT_TRUE(is_zero(peer.memory, payload, 200));
      EXPECT_EQ(peer.memory.data()[payload - 1], std::byte{0x3C});
    }
  }
}

// Proves: 5044-4.1-e
TEST(Framing, LargestUlpdu) {
  RawPeer peer;
  GuardedMemory target(2 * 65521);
  const STag key{
      (*peer.regions.add(peer.dut.domain, target.data(), target.size(), 0, kAllAccess))->key};
  peer.send(tagged(O::kWrite, key, 0, 65521, false));
  peer.send(tagged(O::kWrite, key, 65521, 65521));
  for (size_t i = 0; i < target.size(); ++i) ASSERT_EQ(target.data()[i], std::byte{0x3C});
  EXPECT_TRUE(target.intact());
  EXPECT_TRUE(peer.dut.events.empty());
}

// Each flipped bit of an FPDU is found, and nothing of it is placed. A wrong length makes the
// device wait for more bytes, or see less than a header.
// Proves: 5041-3-6 5044-4.4-b
TEST(Framing, EveryFlippedBitIsFound) {
  StreamConfig config;
  config.crc = true;
  const size_t bits = 8 * frame(tagged(O::kWrite, STag{1}, 0, 30), true).size();
  for (size_t bit = 0; bit < bits; ++bit) {
    RawPeer peer(config);
    peer.post_receive(1, 100);
    Bytes fpdu = frame(tagged(O::kWrite, peer.stag(), peer.base(), 30), true);
    fpdu[bit / 8] ^= std::byte(1 << bit % 8);
    peer.feed(fpdu);
    EXPECT_TRUE(is_zero(peer.memory, 0, peer.memory.size())) << bit;
    if (bit < 16) {
      // Enough bytes follow for any length that the FPDU may now have.
      for (int i = 0; i < 70 && peer.dut.events.empty(); ++i)
        peer.send(tagged(O::kWrite, peer.stag(), peer.base(), 1000));
      EXPECT_TRUE(is_zero(peer.memory, 0, peer.memory.size())) << bit;
      EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
      continue;
    }
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate.has_value()) << bit;
    EXPECT_EQ(terminate->code, T::kMpaCrc);
    EXPECT_FALSE(terminate->has_length || terminate->has_ddp_header || terminate->has_rdmap_header);
    EXPECT_TRUE(peer.dut.qp->transmitter().finished());
    EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  }
}

// Proves: 5044-4.4-d
TEST(Framing, CrcIsNotCheckedWhenItIsOff) {
  RawPeer peer;
  peer.post_receive(1, 100);
  for (const uint32_t value : {0u, 1u, 0x12345678u, ~0u}) {
    Bytes fpdu = frame(tagged(O::kWrite, peer.stag(), peer.base(), 9), false);
    store_le32(fpdu.data() + fpdu.size() - 4, value);
    std::memset(peer.memory.data(), 0, 100);
    peer.feed(fpdu);
    EXPECT_EQ(peer.memory.data()[8], std::byte{0x3C});
  }
  EXPECT_TRUE(peer.dut.events.empty());
}

// ---- Terminate from the peer

Bytes terminate_message(T code, uint16_t reserved, uint32_t msn = 1) {
  Bytes ulpdu = untagged(O::kTerminate, 2, msn, 0, 4);
  store_be16(&ulpdu[18], static_cast<uint16_t>(code));
  store_be16(&ulpdu[20], reserved);
  return ulpdu;
}

// Proves: 5040-4.8-h 5040-5.4-c 5040-5.4-d
TEST(ReceivedTerminate, NeedsNoReceiveAndIgnoresReservedBits) {
  for (const uint16_t reserved : {uint16_t{0}, uint16_t{0x1FFF}}) {
    for (const int receives : {0, 3}) {
      RawPeer peer;
      for (int i = 0; i < receives; ++i) peer.post_receive(static_cast<uint64_t>(i), 100);
      // All inbound slots of queue 1 are in use as well.
      peer.reads = false;
      std::vector<Bytes> stream;
      for (uint32_t msn = 1; msn <= 4; ++msn)
        stream.push_back(read_request(read_of(peer, 64), msn));
      stream.push_back(terminate_message(T::kRdmapAccess, reserved));
      peer.feed(joined(stream));
      EXPECT_TRUE(peer.dut.outcome & kRxTerminated);
      EXPECT_EQ(peer.dut.qp->state(), QpState::kErr);
      EXPECT_EQ(peer.dut.events, std::vector{QpEvent::kFatal});
      const auto got = peer.dut.receives();
      EXPECT_EQ(got.size(), static_cast<size_t>(receives));
      for (const auto& one : got) EXPECT_EQ(one.status, WcStatus::kWrFlushErr);
      peer.reads = true;
      peer.settle();
      for (const Bytes& one : peer.ulpdus()) EXPECT_NE(opcode_of(one), O::kTerminate);
    }
  }
}

// Proves: 5040-6.2.1-b 5040-3.2-i
TEST(ReceivedTerminate, CompletesOpenReadsInError) {
  RawPeer peer;
  const Sge sink{peer.base(), 64, peer.memory_region->key.load()};
  for (uint64_t id = 0; id < 6; ++id)
    ASSERT_EQ(peer.dut.post(SendOpcode::kRead, id, {&sink, 1}, 1, 2), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 4u);
  TerminateHeader header;
  header.code = T::kRdmapAccess;
  header.copy_ddp_header(sent[1].data(), 46);
  Bytes ulpdu = untagged(O::kTerminate, 2, 1, 0, header.encoded_size());
  header.encode(&ulpdu[18]);
  peer.send(ulpdu);
  const auto done = peer.dut.sends();
  ASSERT_EQ(done.size(), 6u);
  for (uint64_t id = 0; id < 6; ++id) {
    EXPECT_EQ(done[id].wr_id, id);
    // The oldest one says why as well.
    EXPECT_EQ(done[id].status, id <= 1 ? WcStatus::kRemAccessErr : WcStatus::kWrFlushErr);
  }
  EXPECT_EQ(done[1].vendor_err, 1u << 31 | 0x000102u);
  EXPECT_TRUE(peer.ulpdus().empty());
}

}  // namespace
}  // namespace uwarp::sim
