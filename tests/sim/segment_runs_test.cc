// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Large messages between uwarps: segments say how many segments of their size follow, and a single
// receive call reads all that were announced. docs/wire.md.
#include <gtest/gtest.h>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

constexpr size_t kRunMemory = 1'500'000;

StreamConfig between_uwarps() {
  StreamConfig config;
  config.peer_is_uwarp = true;
  return config;
}

void scatter(GuardedMemory& memory, uint32_t seed) {
  for (size_t i = 0; i < memory.size(); ++i)
    memory.data()[i] = static_cast<std::byte>((seed + i * 2654435761u) >> 13);
}

/// A pair with memory at both ends.
struct Uwarps : Pair {
  explicit Uwarps(StreamConfig config = between_uwarps(), uint64_t seed = 1) : Pair(seed) {
    connect(config);
    scatter(source, 1);
    scatter(target, 2);
    oracle.assign(target.data(), target.data() + target.size());
    local = reg(a, source, kAllAccess);
    remote = reg(b, target, kAllAccess);
  }
  ~Uwarps() {
    EXPECT_TRUE(source.intact());
    EXPECT_TRUE(target.intact());
    EXPECT_EQ(std::memcmp(target.data(), oracle.data(), oracle.size()), 0);
  }

  /// `bytes` of the source, from offset 100, in pieces of at most `piece` bytes.
  std::vector<Sge> pieces(GuardedMemory& memory, MemoryRegion* region, size_t bytes, size_t piece) {
    std::vector<Sge> all;
    for (size_t at = 0; at < bytes; at += piece)
      all.push_back(sge(memory, region, 100 + at, std::min(piece, bytes - at)));
    return all;
  }
  void write(size_t bytes) {
    ASSERT_EQ(a.post(SendOpcode::kWrite, 1, pieces(source, local, bytes, bytes),
                     target.address() + 100, remote->key.load()),
              0);
    expect(bytes);
  }
  void send(size_t bytes, size_t piece) {
    ASSERT_EQ(b.qp->post_recv(1, pieces(target, remote, bytes + 5, piece)), 0);
    ASSERT_EQ(a.post(SendOpcode::kSend, 1, pieces(source, local, bytes, bytes)), 0);
    expect(bytes);
  }
  /// `b` reads, so that the bytes also go from `a` to `b`.
  void read(size_t bytes, size_t piece) {
    ASSERT_EQ(b.post(SendOpcode::kRead, 1, pieces(target, remote, bytes, piece),
                     source.address() + 100, local->key.load()),
              0);
    expect(bytes);
  }
  void expect(size_t bytes) { std::memcpy(oracle.data() + 100, source.data() + 100, bytes); }
  void check_success() {
    run();
    for (const auto& one : a.sends()) EXPECT_EQ(one.status, WcStatus::kSuccess);
    for (const auto& one : b.sends()) EXPECT_EQ(one.status, WcStatus::kSuccess);
    for (const auto& one : b.receives()) EXPECT_EQ(one.status, WcStatus::kSuccess);
    EXPECT_TRUE(a.events.empty());
    EXPECT_TRUE(b.events.empty());
  }
  /// Announced segments that `a` has sent.
  size_t announced() const {
    FpduScan scan(false, 65535, 1, true);
    scan.feed(a_to_b.log);
    return scan.announced();
  }

  GuardedMemory source{kRunMemory}, target{kRunMemory};
  std::vector<std::byte> oracle;
  MemoryRegion* local;
  MemoryRegion* remote;
};

struct Case {
  size_t bytes;
  size_t piece;  // size of the pieces of a Send's or Read's target
  size_t cut;    // most bytes that one call moves; 0: no limit
};

class Runs : public ::testing::TestWithParam<Case> {};

TEST_P(Runs, OfAWriteArrive) {
  Uwarps pair;
  pair.chunk_max = GetParam().cut;
  for (int i = 0; i < 3; ++i) {
    pair.write(GetParam().bytes);
    pair.check_success();
  }
}

TEST_P(Runs, OfASendArrive) {
  Uwarps pair;
  pair.chunk_max = GetParam().cut;
  for (int i = 0; i < 3; ++i) {
    pair.send(GetParam().bytes, GetParam().piece);
    pair.check_success();
  }
}

TEST_P(Runs, OfAnAnswerArrive) {
  Uwarps pair;
  pair.chunk_max = GetParam().cut;
  for (int i = 0; i < 3; ++i) {
    pair.read(GetParam().bytes, GetParam().piece);
    pair.check_success();
  }
}

// Payload of the largest segment of a Write.
constexpr size_t kWhole = 65535 - TaggedHeader::kWireSize;
INSTANTIATE_TEST_SUITE_P(
    SizesAndCuts, Runs,
    ::testing::Values(Case{1 << 20, 1 << 20, 0}, Case{1 << 20, 300'000, 0},
                      Case{1 << 20, 300'000, 70'000}, Case{1 << 20, 262'147, 200'000},
                      Case{1'400'000, 400'000, 3'000'000}, Case{2 * kWhole, 2 * kWhole, 0},
                      Case{2 * kWhole + 1, 40'000, 0}, Case{17 * kWhole, 17 * kWhole, 0},
                      Case{200'000, 60'000, 999}, Case{150'000, 150'000, 20},
                      Case{390'000, 100'001, 66'000}));

// For a megabyte, the first call reads the header, the second one segment, the next ones two,
// three, five and the rest. Later messages need fewer calls.
TEST(Run, IsReceivedByFewCalls) {
  Uwarps pair;
  pair.a_to_b.capacity = 2 << 20;
  const auto calls_for_a_megabyte = [&] {
    pair.write(1 << 20);
    while (pair.step(pair.a, pair.a_to_b, pair.b_to_a)) {
    }
    size_t calls = 0;
    for (; !pair.a_to_b.bytes.empty(); ++calls) pair.step(pair.b, pair.b_to_a, pair.a_to_b);
    return calls;
  };
  EXPECT_LE(calls_for_a_megabyte(), 7u);
  EXPECT_EQ(pair.announced(), 15u);
  EXPECT_LE(calls_for_a_megabyte(), 4u);
  pair.check_success();
}

TEST(Run, IsNotAnnouncedWithCrc) {
  StreamConfig config = between_uwarps();
  config.crc = true;
  Uwarps pair(config);
  pair.write(1 << 20);
  pair.check_success();
}

TEST(Run, IsNotAnnouncedToOthers) {
  Uwarps pair(StreamConfig{});
  pair.write(1 << 20);
  pair.check_success();
  EXPECT_EQ(pair.announced(), 0u);
}

// ---- A peer that sends something other than it has announced.

constexpr size_t kPayload = 20'000;

/// A device with a region for three segments, and a peer that announces segments.
struct Announcer : RawPeer {
  explicit Announcer(StreamConfig config = between_uwarps()) : RawPeer(config) {
    scatter(target, 3);
    before.assign(target.data(), target.data() + target.size());
    region = *regions.add(dut.domain, target.data(), target.size(), target.address(), kAllAccess);
  }
  ~Announcer() { EXPECT_TRUE(target.intact()); }

  static Bytes announcing(Bytes segment, uint8_t following) {
    segment[0] |= std::byte{DdpControl::ReservedField::put(following)};
    return segment;
  }
  Bytes write(size_t index, uint8_t following, bool last = false) {
    return announcing(tagged(RdmapOpcode::kWrite, STag{region->key.load()},
                             target.address() + index * kPayload, kPayload, last),
                      following);
  }
  /// True if the bytes [from, to) are unchanged.
  bool untouched(size_t from, size_t to) const {
    return std::memcmp(const_cast<GuardedMemory&>(target).data() + from, before.data() + from,
                       to - from) == 0;
  }
  bool written(size_t from, size_t to) {
    return std::all_of(target.data() + from, target.data() + to,
                       [](std::byte byte) { return byte == std::byte{0x3C}; });
  }

  GuardedMemory target{3 * kPayload};
  std::vector<std::byte> before;
  MemoryRegion* region;
};

Bytes terminate_of_peer() {
  Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, 4);
  TerminateHeader header;
  header.code = TerminateCode::kRdmapInvalidSTag;
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  return ulpdu;
}

class Cut : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, Cut, ::testing::Values(0, 1, 7, 19, 20'001, 20'020, 33'333));

TEST_P(Cut, WhatWasAnnouncedIsPlaced) {
  Announcer peer;
  peer.feed(joined({peer.write(0, 2), peer.write(1, 1), peer.write(2, 0, true)}), GetParam());
  EXPECT_TRUE(peer.written(0, 3 * kPayload));
  EXPECT_TRUE(peer.ulpdus().empty());
}

// The peer could not go on, for example because its memory was deregistered.
TEST_P(Cut, ATerminateInsteadIsRead) {
  Announcer peer;
  peer.feed(joined({peer.write(0, 2), peer.write(1, 1), terminate_of_peer()}), GetParam());
  EXPECT_TRUE(peer.written(0, 2 * kPayload));
  EXPECT_NE(peer.dut.outcome & kRxTerminated, 0u);
  EXPECT_EQ(peer.dut.qp->failure().terminate.code, TerminateCode::kRdmapInvalidSTag);
  EXPECT_TRUE(peer.ulpdus().empty());
}

TEST_P(Cut, AnotherMessageInsteadIsRead) {
  Announcer peer;
  peer.post_receive(7, 100);
  peer.feed(joined({peer.write(0, 2, false), send_message(1, 50)}), GetParam());
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_len, 50u);
  EXPECT_TRUE(peer.written(0, kPayload));
}

// The same once large receive windows are open. The bytes that arrive instead have then been
// written to where the segment's payload belongs, and must be moved back.
TEST_P(Cut, OtherBytesInLargeWindowsAreMovedBack) {
  for (const bool terminate : {true, false}) {
    Announcer peer;
    for (int i = 0; i < 2; ++i)
      peer.feed(joined({peer.write(0, 2), peer.write(1, 1), peer.write(2, 0, true)}));
    peer.post_receive(7, 100);
    peer.feed(joined({peer.write(0, 2), terminate ? terminate_of_peer() : send_message(1, 50)}),
              GetParam());
    EXPECT_TRUE(peer.ulpdus().empty());
    EXPECT_TRUE(peer.written(0, kPayload));
    EXPECT_EQ((peer.dut.outcome & kRxTerminated) != 0, terminate);
    const auto got = peer.dut.receives();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].status, terminate ? WcStatus::kWrFlushErr : WcStatus::kSuccess);
    EXPECT_EQ(got[0].byte_len, terminate ? 0u : 50u);
    if (terminate) {
      EXPECT_EQ(peer.dut.qp->failure().terminate.code, TerminateCode::kRdmapInvalidSTag);
    } else {
      EXPECT_EQ(peer.receive_memory.data()[49], std::byte{0x3C});
    }
  }
}

TEST_P(Cut, OtherBytesInAPartOfASendAreMovedBack) {
  Announcer peer;
  const Sge sge{peer.target.address(), 3 * kPayload, peer.region->key.load()};
  const auto segment = [](uint32_t msn, uint32_t index) {
    return Announcer::announcing(
        send_message(msn, kPayload, index * static_cast<uint32_t>(kPayload), index == 2),
        static_cast<uint8_t>(2 - index));
  };
  for (uint32_t msn = 1; msn <= 2; ++msn) {
    ASSERT_EQ(peer.dut.qp->post_recv(msn, {&sge, 1}), 0);
    peer.feed(joined({segment(msn, 0), segment(msn, 1), segment(msn, 2)}));
  }
  EXPECT_EQ(peer.dut.receives().size(), 2u);
  ASSERT_EQ(peer.dut.qp->post_recv(3, {&sge, 1}), 0);
  peer.feed(joined({segment(3, 0), terminate_of_peer()}), GetParam());
  EXPECT_NE(peer.dut.outcome & kRxTerminated, 0u);
  EXPECT_EQ(peer.dut.qp->failure().terminate.code, TerminateCode::kRdmapInvalidSTag);
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(peer.ulpdus().empty());
}

// Several other segments have been written to the wrong place, which the peer may write to anyway:
// the stream ends.
TEST(Announced, ManyOtherSegmentsEndTheStream) {
  Announcer peer;
  const std::vector<Bytes> good = {peer.write(0, 2), peer.write(1, 1), peer.write(2, 0, true)};
  // The first segment is read as if it were small; later ones open larger windows.
  for (int i = 0; i < 2; ++i) peer.feed(joined(good));
  std::vector<Bytes> all(good);
  all.insert(all.end(), {peer.write(0, 2), peer.write(2, 1), peer.write(1, 0, true)});
  ASSERT_TRUE(peer.ulpdus().empty());
  peer.feed(joined(all));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kDdpLocalCatastrophic);
  // The next stream of the queue pair starts without announced segments.
  peer.dut.qp->detach_stream();
  peer.dut.qp->to_reset();
  peer.dut.qp->to_init();
  ASSERT_TRUE(peer.dut.qp->start_stream(between_uwarps()));
  peer.post_receive(7, 100);
  peer.feed(joined({send_message(1, 50)}));
  ASSERT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_TRUE(peer.ulpdus().empty());
}

// What follows the last segment of a message is another message, whatever the last one announces.
TEST(Announced, NothingFollowsALastSegment) {
  Announcer peer;
  const std::vector<Bytes> good = {peer.write(0, 2), peer.write(1, 1), peer.write(2, 0, true)};
  for (int i = 0; i < 2; ++i) peer.feed(joined(good));  // opens large windows
  scatter(peer.target, 3);
  peer.post_receive(7, 100);
  peer.feed(joined({peer.write(0, 15, true), send_message(1, 50), peer.write(0, 15, true)}));
  EXPECT_EQ(peer.dut.receives().size(), 1u);
  EXPECT_TRUE(peer.written(0, kPayload));
  EXPECT_TRUE(peer.untouched(kPayload, 3 * kPayload));
  EXPECT_TRUE(peer.ulpdus().empty());
}

TEST(Announced, NothingGoesBeyondTheRegion) {
  for (const size_t first : {1, 2}) {
    Announcer peer;
    std::vector<Bytes> segments;
    for (size_t index = first; index < 4; ++index)
      segments.push_back(peer.write(index, static_cast<uint8_t>(15 - index)));
    peer.feed(joined(segments));
    EXPECT_TRUE(peer.untouched(0, first * kPayload));
    EXPECT_TRUE(peer.written(first * kPayload, 3 * kPayload));
    const auto terminate = peer.terminate();
    ASSERT_TRUE(terminate);
    EXPECT_EQ(terminate->code, TerminateCode::kDdpTaggedBounds);
  }
}

TEST(Announced, NothingGoesBeyondTheReceive) {
  Announcer peer;
  GuardedMemory buffer(2 * kPayload + 10);
  MemoryRegion* const region = *peer.regions.add(peer.dut.domain, buffer.data(), buffer.size(),
                                                 buffer.address(), kAccessLocalWrite);
  const Sge sge{buffer.address(), 2 * kPayload + 10, region->key.load()};
  ASSERT_EQ(peer.dut.qp->post_recv(1, {&sge, 1}), 0);
  std::vector<Bytes> segments;
  for (uint32_t i = 0; i < 3; ++i)
    segments.push_back(Announcer::announcing(send_message(1, kPayload, i * kPayload, false), 15));
  peer.feed(joined(segments));
  EXPECT_TRUE(buffer.intact());
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kLocLenErr);
}

// The queue pair is reset while announced segments are missing, and connected again.
TEST_P(Cut, TheNextStreamIsNotAffected) {
  Announcer peer;
  Bytes begun = joined({peer.write(0, 2), peer.write(1, 1), peer.write(2, 0, true)});
  for (int i = 0; i < 2; ++i) peer.feed(begun, GetParam());
  begun.resize(2 * kPayload - 5000);
  peer.feed(begun, GetParam());
  peer.dut.qp->detach_stream();
  peer.dut.qp->to_reset();
  peer.dut.qp->to_init();
  ASSERT_TRUE(peer.dut.qp->start_stream(between_uwarps()));
  scatter(peer.target, 3);
  peer.post_receive(7, 100);
  peer.feed(joined({send_message(1, 50)}), GetParam());
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kSuccess);
  EXPECT_EQ(got[0].byte_len, 50u);
  EXPECT_TRUE(peer.untouched(0, 3 * kPayload));
  EXPECT_TRUE(peer.ulpdus().empty());
}

// A peer that is not known to be uwarp may set reserved bits to anything.
TEST_P(Cut, ReservedBitsOfOthersAreIgnored) {
  Announcer peer{StreamConfig{}};
  peer.feed(joined({peer.write(0, 9), peer.write(1, 15), peer.write(2, 15, true)}), GetParam());
  EXPECT_TRUE(peer.written(0, 3 * kPayload));
  EXPECT_TRUE(peer.ulpdus().empty());
}

// Bytes that arrive after the region was deregistered are not written to its memory.
TEST(Announced, ADeregisteredRegionIsNotWritten) {
  Announcer peer;
  const Bytes first = joined({peer.write(0, 2)});
  peer.feed(first);
  const Bytes rest = joined({peer.write(1, 1), peer.write(2, 0, true)});
  peer.feed(Bytes(rest.begin(), rest.begin() + 10'000));
  ASSERT_EQ(peer.regions.invalidate(*peer.region), 0);
  peer.dut.qp->quiesce(*peer.region);
  peer.regions.release(*peer.region);
  std::fill_n(peer.target.data(), peer.target.size(), std::byte{0x77});
  peer.feed(Bytes(rest.begin() + 10'000, rest.end()));
  EXPECT_TRUE(std::all_of(peer.target.data(), peer.target.data() + peer.target.size(),
                          [](std::byte byte) { return byte == std::byte{0x77}; }));
  const auto terminate = peer.terminate();
  ASSERT_TRUE(terminate);
  EXPECT_EQ(terminate->code, TerminateCode::kDdpTaggedInvalidSTag);
}

}  // namespace
}  // namespace uwarp::sim
