// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory windows: binding, access, local and remote invalidation. RFC 5040 5.3, 8.1.1.
#include <gtest/gtest.h>

#include <functional>

#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using T = TerminateCode;
constexpr uint32_t kBindable = kAllAccess | kAccessMwBind;

struct WindowSetup {
  explicit WindowSetup(StreamConfig config = {})
      : peer(config),
        region(*table().add(peer.dut.domain, memory.data(), memory.size(), memory.address(),
                            kBindable)),
        window(*table().add_window(peer.dut.domain, RegionKind::kWindowType2)) {}
  RegionTable& table() { return peer.regions; }
  uint32_t key(uint8_t low) { return (table().window_key(*window) & ~0xFFu) | low; }
  SendRequest bind_request(uint32_t rkey, uint32_t access = kAccessRemoteWrite) {
    SendRequest request;
    request.opcode = SendOpcode::kBindWindow;
    request.flags = kSendSignaled;
    request.rkey = rkey;
    request.bind_lkey = region->key.load();
    request.remote_address = memory.address() + 100;
    request.bind_length_bytes = 200;
    request.bind_access = access;
    return request;
  }
  WcStatus post(End& end, const SendRequest& request) {
    EXPECT_EQ(end.qp->post_send(request), 0);
    peer.settle();
    const auto done = end.sends();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? WcStatus::kFatalErr : done[0].status;
  }
  WcStatus bind(uint32_t rkey, uint32_t access = kAccessRemoteWrite) {
    return post(peer.dut, bind_request(rkey, access));
  }
  WcStatus invalidate(uint32_t rkey) {
    SendRequest request;
    request.opcode = SendOpcode::kLocalInvalidate;
    request.flags = kSendSignaled;
    request.imm_or_invalidate = rkey;
    return post(peer.dut, request);
  }
  void write(uint32_t rkey, uint64_t offset, size_t size) {
    peer.send(tagged(RdmapOpcode::kWrite, STag{rkey}, offset, size));
  }

  RawPeer peer;
  GuardedMemory memory{1000};
  MemoryRegion* region;
  MemoryRegion* window;
};

struct Windows : ::testing::Test, WindowSetup {};

// V-18: bind, remote Write, Send with Invalidate, bind again with a new key.
// Proves: 5040-5.3-p 5040-5.3-r 5040-8.1.1-4 5041-8.3-2 5041-8.3-3
TEST_F(Windows, LifeOfAType2Window) {
  ASSERT_EQ(bind(key(1)), WcStatus::kSuccess);
  write(key(1), memory.address() + 100, 200);
  EXPECT_EQ(memory.data()[99], std::byte{0});
  EXPECT_EQ(memory.data()[100], std::byte{0x3C});
  EXPECT_EQ(memory.data()[299], std::byte{0x3C});
  EXPECT_EQ(memory.data()[300], std::byte{0});
  EXPECT_EQ(table().invalidate(*region), EBUSY);
  peer.post_receive(1, 100);
  peer.send(untagged(RdmapOpcode::kSendInvalidate, 0, 1, 0, 4, true, STag{key(1)}));
  const auto got = peer.dut.receives();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, WcStatus::kSuccess);
  EXPECT_EQ(got[0].wc_flags, kWcWithInvalidate);
  EXPECT_EQ(got[0].imm_or_invalidated, key(1));
  EXPECT_EQ(table().find(STag{key(1)}), nullptr);
  ASSERT_EQ(bind(key(2)), WcStatus::kSuccess);
  write(key(2), memory.address() + 100, 1);
  EXPECT_TRUE(peer.dut.events.empty());
  write(key(1), memory.address() + 100, 1);
  EXPECT_EQ(peer.terminate().value().code, T::kDdpTaggedInvalidSTag);
}

// The application chooses the low byte of the key, usually by counting up from the rkey of
// ibv_alloc_mw().
TEST_F(Windows, KeepTheLowByteOfTheirKey) {
  for (const uint8_t low : {0x5a, 0xff, 0x00}) {
    ASSERT_EQ(bind(key(low)), WcStatus::kSuccess);
    EXPECT_EQ(table().window_key(*window), key(low));
    ASSERT_EQ(invalidate(key(low)), WcStatus::kSuccess);
    EXPECT_EQ(table().window_key(*window), key(low));
  }
}

TEST_F(Windows, LocalInvalidate) {
  ASSERT_EQ(bind(key(1)), WcStatus::kSuccess);
  ASSERT_EQ(invalidate(key(1)), WcStatus::kSuccess);
  EXPECT_EQ(table().find(STag{key(1)}), nullptr);
  EXPECT_EQ(table().invalidate(*region), 0);
  EXPECT_TRUE(peer.ulpdus().empty());  // none of it is sent
}

TEST_F(Windows, ZeroBased) {
  ASSERT_EQ(bind(key(1), kAccessRemoteWrite | kAccessZeroBased), WcStatus::kSuccess);
  write(key(1), 199, 1);
  EXPECT_EQ(memory.data()[299], std::byte{0x3C});
  write(key(1), 200, 1);
  EXPECT_EQ(peer.terminate().value().code, T::kDdpTaggedBounds);
}

TEST_F(Windows, ReadsAndAtomicsThroughIt) {
  memory.data()[104] = std::byte{9};
  const uint64_t cell = (memory.address() + 100 + 7) & ~uint64_t{7};
  ASSERT_EQ(bind(key(1), kAccessRemoteRead | kAccessRemoteAtomic), WcStatus::kSuccess);
  peer.send(read_request({.sink_stag = STag{5},
                          .sink_to = 0,
                          .size = 200,
                          .source_stag = STag{key(1)},
                          .source_to = memory.address() + 100},
                         1));
  peer.send(atomic_request(
      {.request_id = 1, .remote_stag = STag{key(1)}, .remote_to = cell, .add_or_swap = 1}, 2));
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].at(TaggedHeader::kWireSize + 4), std::byte{9});
  EXPECT_EQ(opcode_of(sent[1]), RdmapOpcode::kAtomicResponse);
  write(key(1), memory.address() + 100, 1);  // not allowed
  EXPECT_EQ(peer.terminate().value().code, T::kDdpTaggedInvalidSTag);
}

// verbs-mapping 5.1: MW_BIND_ERR, T(0/0/00), no event.
TEST_F(Windows, BindingsThatAreRefused) {
  struct Case {
    const char* name;
    std::function<void(WindowSetup&, SendRequest&)> spoil;
  };
  const Case cases[] = {
      {"no such window", [](WindowSetup&, auto& r) { r.rkey ^= 0x100; }},
      {"the key of a region", [](WindowSetup& w, auto& r) { r.rkey = w.region->key.load(); }},
      {"unknown region", [](WindowSetup&, auto& r) { r.bind_lkey ^= 1; }},
      {"region without bind right",
       [](WindowSetup& w, auto& r) {
         r.bind_lkey = (*w.table().add(w.peer.dut.domain, w.memory.data(), 1000, w.memory.address(),
                                       kAllAccess))
                           ->key.load();
       }},
      {"read-only region, window for Writes",
       [](WindowSetup& w, auto& r) {
         r.bind_lkey = (*w.table().add(w.peer.dut.domain, w.memory.data(), 1000, w.memory.address(),
                                       kAccessMwBind))
                           ->key.load();
       }},
      {"region of another domain",
       [](WindowSetup& w, auto& r) {
         static ProtectionDomain other;
         r.bind_lkey = (*w.table().add(other, w.memory.data(), 1000, w.memory.address(), kBindable))
                           ->key.load();
       }},
      {"out of range", [](WindowSetup&, auto& r) { r.bind_length_bytes = 901; }},
      {"wrap", [](WindowSetup&, auto& r) { r.bind_length_bytes = ~uint64_t{0}; }},
      {"length 0 of type 2", [](WindowSetup&, auto& r) { r.bind_length_bytes = 0; }},
      {"bound already",
       [](WindowSetup& w, auto& r) { EXPECT_EQ(w.bind(r.rkey), WcStatus::kSuccess); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    WindowSetup w;
    SendRequest request = w.bind_request(w.key(1));
    c.spoil(w, request);
    EXPECT_EQ(w.post(w.peer.dut, request), WcStatus::kMwBindErr);
    const auto terminate = w.peer.terminate();
    ASSERT_TRUE(terminate.has_value());
    EXPECT_EQ(terminate->code, T::kRdmapLocalCatastrophic);
    EXPECT_TRUE(w.peer.dut.events.empty());
    EXPECT_EQ(w.peer.dut.qp->state(), QpState::kErr);
  }
}

TEST_F(Windows, InvalidationsThatAreRefused) {
  for (const bool bound_elsewhere : {false, true}) {
    WindowSetup w;
    const RemoteAccessor other{&w.peer.dut.domain, ~uint64_t{0}, 0};
    if (bound_elsewhere) {
      ASSERT_TRUE(w.table().bind(
          {STag{w.key(1)}, w.region->key.load(), w.memory.address(), 10, kAccessRemoteWrite},
          other));
    }
    const uint32_t key = bound_elsewhere ? w.key(1) : w.region->key.load();
    EXPECT_EQ(w.invalidate(key), WcStatus::kMwBindErr);
    EXPECT_NE(w.table().find(STag{key}), nullptr);
  }
}

// A window of another queue pair is not valid on this stream. 5040-8.1.1, 7.2.
// Proves: 5041-8.2-d
TEST_F(Windows, BelongToOneQueuePair) {
  const RemoteAccessor other{&peer.dut.domain, ~uint64_t{0}, 0};
  ASSERT_TRUE(table().bind(
      {STag{key(1)}, region->key.load(), memory.address(), 10, kAccessRemoteWrite}, other));
  peer.post_receive(1, 10);
  write(key(1), memory.address(), 1);
  EXPECT_EQ(peer.terminate().value().code, T::kDdpTaggedSTagNotOfStream);
}

TEST_F(Windows, OfAnotherQueuePairAreNotInvalidatedFromAfar) {
  const RemoteAccessor other{&peer.dut.domain, ~uint64_t{0}, 0};
  ASSERT_TRUE(table().bind(
      {STag{key(1)}, region->key.load(), memory.address(), 10, kAccessRemoteWrite}, other));
  peer.post_receive(1, 10);
  peer.send(untagged(RdmapOpcode::kSendInvalidate, 0, 1, 0, 4, true, STag{key(1)}));
  EXPECT_EQ(peer.terminate().value().code, T::kRdmapCannotInvalidate);
  EXPECT_EQ(peer.dut.receives().at(0).status, WcStatus::kRemInvReqErr);
  EXPECT_NE(table().find(STag{key(1)}), nullptr);
}

// Type 1: any queue pair of the domain may use it; binding it again replaces the range, length 0
// unbinds.
// Proves: 5041-8.2-d 5040-8.1.1-4
TEST_F(Windows, Type1) {
  window = *table().add_window(peer.dut.domain, RegionKind::kWindowType1);
  ASSERT_EQ(bind(key(1)), WcStatus::kSuccess);
  write(key(1), memory.address() + 100, 1);
  ASSERT_EQ(bind(key(2)), WcStatus::kSuccess);
  EXPECT_EQ(table().find(STag{key(1)}), nullptr);
  write(key(2), memory.address() + 100, 1);
  SendRequest request = bind_request(key(3));
  request.bind_length_bytes = 0;
  EXPECT_EQ(post(peer.dut, request), WcStatus::kSuccess);
  EXPECT_EQ(table().find(STag{key(3)}), nullptr);
  EXPECT_EQ(table().invalidate(*region), 0);
  EXPECT_TRUE(peer.dut.events.empty());
}

// A bind waits for all earlier requests, open Reads included, and later requests wait for the bind.
TEST_F(Windows, BindIsFenced) {
  const Sge sink{peer.base(), 8, peer.memory_region->key.load()};
  ASSERT_EQ(peer.dut.post(SendOpcode::kRead, 1, {&sink, 1}, 1, 2), 0);
  ASSERT_EQ(peer.dut.qp->post_send(bind_request(key(1))), 0);
  ASSERT_EQ(peer.dut.post(SendOpcode::kSend, 3, {}), 0);
  peer.settle();
  const auto sent = peer.ulpdus();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(table().find(STag{key(1)}), nullptr);
  const auto request = ReadRequestHeader::decode(sent[0].data() + UntaggedHeader::kWireSize);
  peer.send(tagged(RdmapOpcode::kReadResponse, request.sink_stag, 0, 8));
  EXPECT_EQ(peer.dut.sends().size(), 3u);
  EXPECT_NE(table().find(STag{key(1)}), nullptr);
  EXPECT_EQ(peer.ulpdus().size(), 1u);
}

// A responder that has not received anything yet may not send (RFC 5044 7.1.2), but it binds
// windows.
TEST(SilentResponder, BindsWindows) {
  StreamConfig config;
  config.wait_for_first_fpdu = true;
  for (const bool good : {true, false}) {
    WindowSetup setup{config};
    SendRequest request = setup.bind_request(setup.key(1));
    if (!good) request.bind_lkey ^= 1;
    EXPECT_EQ(setup.post(setup.peer.dut, request),
              good ? WcStatus::kSuccess : WcStatus::kMwBindErr);
    EXPECT_TRUE(setup.peer.ulpdus().empty());
    if (!good) continue;
    // A bind behind a request that must be sent waits.
    ASSERT_EQ(setup.peer.dut.post(SendOpcode::kSend, 3, {}), 0);
    ASSERT_EQ(setup.peer.dut.qp->post_send(setup.bind_request(setup.key(2))), 0);
    setup.peer.settle();
    EXPECT_TRUE(setup.peer.dut.sends().empty());
    EXPECT_TRUE(setup.peer.ulpdus().empty());
  }
}

// The window is invalidated in the middle of a Write: the rest of the Write is refused.
TEST_F(Windows, InvalidateInTheMiddleOfAWrite) {
  ASSERT_EQ(bind(key(1)), WcStatus::kSuccess);
  const Bytes fpdu =
      frame(tagged(RdmapOpcode::kWrite, STag{key(1)}, memory.address() + 100, 200), false);
  peer.feed(Bytes(fpdu.begin(), fpdu.begin() + 116));
  ASSERT_EQ(invalidate(key(1)), WcStatus::kSuccess);
  std::memset(memory.data(), 0x77, memory.size());
  peer.feed(Bytes(fpdu.begin() + 116, fpdu.end()));
  EXPECT_EQ(peer.terminate().value().code, T::kDdpTaggedInvalidSTag);
  for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0x77});
}

TEST_F(Windows, GoWithTheirQueuePair) {
  ASSERT_EQ(bind(key(1)), WcStatus::kSuccess);
  peer.dut.qp.reset();
  EXPECT_EQ(table().find(STag{key(1)}), nullptr);
  EXPECT_EQ(table().invalidate(*region), 0);
  table().release_window(*window);
}

}  // namespace
}  // namespace uwarp::sim
