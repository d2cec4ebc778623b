// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Datagrams over trunks on loopback: within the process, and with hand-made peers that use a
// connected queue pair and may send anything.
#include "datagram/trunk.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "connect/bound_port.h"
#include "connect/rendezvous_message.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/destination.h"
#include "datagram/trunks.h"
#include "unit/connect/node.h"

namespace uwarp {
namespace {

constexpr uint32_t kDatagramQkey = 0x1234;
constexpr uint32_t kRouteBytes = DatagramQueuePair::kRouteHeaderBytes;

/// A datagram queue pair with its own queues and memory.
class DatagramNode {
 public:
  explicit DatagramNode(uint32_t depth = 256) : cq(4 * depth, nullptr), memory(1 << 16) {
    region = engine.regions()
                 .add(domain, memory.data(), memory.size(),
                      reinterpret_cast<uintptr_t>(memory.data()), kAccessLocalWrite)
                 .value();
    QpConfig config;
    config.transport = Transport::kUd;
    config.domain = &domain;
    config.send_cq = config.recv_cq = &cq;
    config.regions = &engine.regions();
    config.max_send_wr = config.max_recv_wr = depth;
    config.max_send_sge = config.max_recv_sge = 1;
    endpoint = DatagramEndpoint::create(
                   engine.trunks(), std::make_shared<const NetDevice>(loopback_device()), config)
                   .value();
    QpAttributes attributes;
    attributes.state = QpState::kInit;
    attributes.qkey = kDatagramQkey;
    EXPECT_EQ(endpoint->modify(attributes, kAttrState | kAttrPkeyIndex | kAttrPort | kAttrQkey), 0);
    attributes.state = QpState::kRtr;
    EXPECT_EQ(endpoint->modify(attributes, kAttrState), 0);
    attributes.state = QpState::kRts;
    EXPECT_EQ(endpoint->modify(attributes, kAttrState | kAttrSqPsn), 0);
  }
  ~DatagramNode() {
    endpoint->destroy();
    engine.remove_region(*region);
  }
  int send(Destination& to, Qpn number, std::string_view text, uint64_t id = 1,
           uint32_t qkey = kDatagramQkey) {
    std::memcpy(memory.data(), text.data(), text.size());
    return send(to, number, static_cast<uint32_t>(text.size()), id, qkey);
  }
  int send(Destination& to, Qpn number, uint32_t size, uint64_t id = 1,
           uint32_t qkey = kDatagramQkey) {
    const Sge one{reinterpret_cast<uintptr_t>(memory.data()), size, region->key.load()};
    SendRequest request;
    request.wr_id = id;
    request.flags = kSendSignaled;
    request.sges = {&one, 1};
    DatagramEndpoint::Poster poster(*endpoint);
    return poster.post(request, to, number, qkey);
  }
  int receive(uint64_t id = 2, size_t offset = 8192, uint32_t length = 4136) {
    const Sge one{reinterpret_cast<uintptr_t>(memory.data()) + offset, length, region->key.load()};
    return endpoint->qp().post_recv(id, {&one, 1});
  }
  void move(QpState state) {
    QpAttributes attributes;
    attributes.state = state;
    EXPECT_EQ(endpoint->modify(attributes, kAttrState), 0);
  }
  /// The next completion; polls if `drive`. The id is ~0 if none comes.
  WorkCompletion next(bool drive = true, int seconds = 20) {
    WorkCompletion out{};
    const bool came = eventually(
        [&] {
          if (cq.poll(&out, 1) == 1) return true;
          if (drive) engine.poller().poll(cq);
          return cq.poll(&out, 1) == 1;
        },
        seconds);
    if (!came) out.wr_id = ~uint64_t{0};
    return out;
  }
  std::string text(const WorkCompletion& completion, size_t offset = 8192) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset + kRouteBytes,
            completion.byte_len - kRouteBytes};
  }
  Qpn number() const { return endpoint->number(); }

  Engine& engine = Engine::instance();
  CompletionQueue cq;
  ProtectionDomain domain;
  std::vector<std::byte> memory;
  MemoryRegion* region;
  std::shared_ptr<DatagramEndpoint> endpoint;
};

IpAddress home() { return loopback_device().gids[0]; }

/// A connected queue pair that claims to be the end of a trunk.
struct TrunkPeer : Node {
  explicit TrunkPeer() : Node(64, 64, true) {
    QpAttributes attributes;
    attributes.state = QpState::kInit;
    EXPECT_EQ(endpoint->modify(attributes, kAttrState | kAttrAccess | kAttrPort), 0);
  }
  ~TrunkPeer() override {
    if (connection != nullptr) connection->abort();
  }
  static ConnectParameters call(uint16_t own_port, uint32_t version = kTrunkVersion) {
    RendezvousCall made;
    made.source = Qpn{uint32_t{own_port} << 8};
    made.psn = version;
    made.capabilities = RendezvousCall::kTrunk;
    ConnectParameters parameters;
    parameters.private_data = made.encode();
    parameters.initiator_depth = parameters.responder_resources = 4;
    return parameters;
  }
  void dial(Qpn number, uint16_t own_port = 1, uint32_t version = kTrunkVersion) {
    Connection::ConnectOptions options;
    options.local = loopback_address();
    options.remote = loopback_address(static_cast<uint16_t>(number.value >> 8));
    auto made = Connection::connect(engine.context(), endpoint, std::move(options),
                                    call(own_port, version), owner);
    ASSERT_TRUE(made.ok());
    connection = *made;
  }
  void dial_and_wait(Qpn number) {
    dial(number);
    ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
  }
  /// Puts a datagram into the peer's memory; returns the offset for the next one.
  size_t put(size_t offset, DatagramHeader header, std::string_view payload) {
    header.source = Qpn{0x100};
    header.qkey = kDatagramQkey;
    if (header.payload_bytes == 0) header.payload_bytes = static_cast<uint16_t>(payload.size());
    header.encode(memory.data() + offset);
    offset += DatagramHeader::kWireSize;
    std::memcpy(memory.data() + offset, payload.data(), payload.size());
    return offset + payload.size();
  }
  bool ended() {
    return eventually([&] { return owner->ended == 1; });
  }

  std::shared_ptr<RecordingOwner> owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Connection> connection;
};

/// A port that trunks are dialled to.
struct CalledPort {
  CalledPort() {
    auto bound = bind_port(loopback_address(), {});
    listener = *Listener::start(Engine::instance().context(), *bound, requests);
    const sockaddr_storage address = listener->local_address();
    number = Qpn{uint32_t{port_of(reinterpret_cast<const sockaddr*>(&address))} << 8};
  }
  ~CalledPort() { listener->close(); }
  void answer(TrunkPeer& peer) {
    peer.connection = requests->take();
    ConnectParameters parameters;
    parameters.private_data = RendezvousAnswer{}.encode();
    ASSERT_EQ(peer.connection->accept(peer.endpoint, parameters, peer.owner), 0);
  }
  std::shared_ptr<RecordingListener> requests = std::make_shared<RecordingListener>();
  std::shared_ptr<Listener> listener;
  Qpn number;
};

/// Datagrams within the process arrive; they are repeated until one does.
void expect_datagrams(DatagramNode& from, DatagramNode& to) {
  Destination way(home(), home());
  ASSERT_TRUE(eventually([&] {
    (void)to.receive(7);  // an earlier datagram that waited for a receive may take it
    EXPECT_EQ(from.send(way, to.number(), "still there"), 0);
    EXPECT_EQ(from.next().wr_id, 1u);
    const WorkCompletion got = to.next(true, 1);
    return got.wr_id == 7 && to.text(got) == "still there";
  }));
}

TEST(Trunks, OneSendsToItself) {
  DatagramNode node;
  Destination to(home(), home());
  ASSERT_EQ(node.receive(), 0);
  ASSERT_EQ(node.send(to, node.number(), "myself"), 0);
  EXPECT_EQ(node.next().wr_id, 1u);
  const WorkCompletion got = node.next();
  EXPECT_EQ(got.wr_id, 2u);
  EXPECT_EQ(got.src_qp, node.number().value);
  EXPECT_EQ(node.text(got), "myself");
  EXPECT_EQ(node.memory[8192 + 20], std::byte{0x45});
}

TEST(Trunks, NoThreadHasToPoll) {
  DatagramNode a, b;
  Destination to(home(), home());
  ASSERT_EQ(b.receive(), 0);
  ASSERT_EQ(a.send(to, b.number(), "passive"), 0);
  const WorkCompletion got = b.next(false);
  EXPECT_EQ(b.text(got), "passive");
}

TEST(Trunks, ManyAreCollectedAndKeepTheirOrder) {
  DatagramNode a, b;
  Destination to(home(), home());
  constexpr uint64_t kCount = 200;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(b.receive(1000 + i, 8192 + 64 * i, 64), 0);
  for (uint64_t i = 0; i < kCount; ++i)
    ASSERT_EQ(a.send(to, b.number(), "number " + std::to_string(i), i), 0);
  for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(a.next().wr_id, i);
  for (uint64_t i = 0; i < kCount; ++i) {
    const WorkCompletion got = b.next();
    ASSERT_EQ(got.wr_id, 1000 + i);
    EXPECT_EQ(b.text(got, 8192 + 64 * i), "number " + std::to_string(i));
  }
}

TEST(Trunks, LargeOnesWaitForRoomAndAllArrive) {
  DatagramNode a, b;
  Destination to(home(), home());
  constexpr int kCount = 2000;
  int posted = 0, sent = 0, received = 0, receives = 0;
  ASSERT_TRUE(eventually([&] {
    while (receives < received + 250 && receives < kCount && b.receive() == 0) ++receives;
    while (posted < kCount && posted < received + 200 && a.send(to, b.number(), 4096u) == 0)
      ++posted;
    a.engine.poller().poll(a.cq);
    b.engine.poller().poll(b.cq);
    WorkCompletion one{};
    while (a.cq.poll(&one, 1) == 1) {
      EXPECT_EQ(one.status, WcStatus::kSuccess);
      ++sent;
    }
    while (b.cq.poll(&one, 1) == 1) {
      EXPECT_EQ(one.byte_len, 4096 + kRouteBytes);
      ++received;
    }
    return received == kCount;
  })) << posted
      << " posted, " << sent << " sent, " << received << " received";
  EXPECT_EQ(sent, kCount);
}

// A datagram that cannot be delivered to one queue pair does not affect others.
TEST(Trunks, DropsDelayNoOtherReceiver) {
  DatagramNode a, b, deaf;
  Destination to(home(), home());
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(b.receive(2), 0);
    ASSERT_EQ(a.send(to, deaf.number(), "nobody listens"), 0);
    ASSERT_EQ(a.send(to, Qpn{b.number().value ^ 0x80}, "nobody there"), 0);
    ASSERT_EQ(a.send(to, b.number(), "wrong key", 1, 99), 0);
    ASSERT_EQ(a.send(to, b.number(), "right"), 0);
    for (int sent = 0; sent < 4; ++sent) EXPECT_EQ(a.next().wr_id, 1u);
    EXPECT_EQ(b.text(b.next()), "right");
  }
}

// Several receivers share a line. The second one waits for its receive just as the first; both are
// told, and each holds the line no longer than its time.
TEST(Trunks, TwoReceiversThatAreLate) {
  DatagramNode a, b, c;
  Destination to(home(), home());
  expect_datagrams(a, b);
  expect_datagrams(a, c);
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(a.send(to, b.number(), "lost"), 0);  // there is no receive for it
    ASSERT_EQ(a.send(to, c.number(), "lost"), 0);
    ASSERT_EQ(c.receive(3), 0);
    WorkCompletion got{};
    ASSERT_TRUE(eventually([&] {
      EXPECT_EQ(a.send(to, c.number(), "found"), 0);
      got = c.next(false, 1);
      return got.wr_id == 3;
    })) << "the line has stopped in round "
        << round;
  }
}

TEST(Trunks, WaitingWorkIsFlushedOrDroppedOnce) {
  for (const bool reset : {false, true}) {
    DatagramNode a, b;
    Destination to(home(), home());
    a.move(QpState::kSqd);
    for (uint64_t id = 0; id < 200; ++id) ASSERT_EQ(a.send(to, b.number(), 4096u, id), 0);
    EXPECT_EQ(a.cq.poll(nullptr, 0), 0);
    a.move(reset ? QpState::kReset : QpState::kErr);
    WorkCompletion one{};
    uint64_t flushed = 0;
    for (; a.cq.poll(&one, 1) == 1; ++flushed) {
      EXPECT_EQ(one.wr_id, flushed);
      EXPECT_EQ(one.status, WcStatus::kWrFlushErr);
    }
    EXPECT_EQ(flushed, reset ? 0u : 200u);
  }
}

TEST(Trunks, AnAddressOutlivesItsQueuePairs) {
  Destination to(home(), home());
  for (int round = 0; round < 20; ++round) {
    DatagramNode a, b;
    expect_datagrams(a, b);
    ASSERT_EQ(b.receive(), 0);
    ASSERT_EQ(a.send(to, b.number(), "again"), 0);
    EXPECT_EQ(b.next(true, 5).wr_id, 2u) << round;
  }
}

// A process may end after its last send, even if its call has not been answered yet.
TEST(Trunks, WhatWasSentArrivesAfterTheSendersEnd) {
  for (int round = 0; round < 20; ++round) {
    CalledPort port;
    Destination to(home(), home());
    {
      DatagramNode node;
      ASSERT_EQ(node.send(to, port.number, "last words"), 0);
      EXPECT_EQ(node.next().wr_id, 1u);
    }
    TrunkPeer peer;
    ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
    port.answer(peer);
    EXPECT_EQ(peer.wait_polling().byte_len, DatagramHeader::kWireSize + 10);
    EXPECT_TRUE(peer.ended());
  }
}

TEST(Trunks, NothingKeepsAQueuePairThatIsGone) {
  DatagramNode a;
  std::weak_ptr<DatagramEndpoint> gone;
  {
    DatagramNode b;
    expect_datagrams(a, b);
    gone = b.endpoint;
  }
  EXPECT_TRUE(eventually([&] { return gone.expired(); }));
}

// --- Hand-made peers

TEST(TrunkPeers, ExchangeFramesMadeByHand) {
  DatagramNode node;
  TrunkPeer peer;
  peer.dial_and_wait(node.number());
  ASSERT_EQ(node.receive(), 0);
  DatagramHeader header;
  header.destination = node.number();
  const size_t size = peer.put(0, header, "by hand");
  ASSERT_EQ(peer.post_send(1, 0, static_cast<uint32_t>(size)), 0);
  const WorkCompletion got = node.next();
  EXPECT_EQ(node.text(got), "by hand");
  EXPECT_EQ(got.src_qp, 0x100u);
}

// A fault in a frame costs the datagrams behind it in the frame; the line goes on.
TEST(TrunkPeers, FramesThatAreWrong) {
  DatagramNode node;
  TrunkPeer peer;
  peer.dial_and_wait(node.number());
  const auto check = [&] {
    ASSERT_EQ(node.receive(), 0);
    DatagramHeader good;
    good.destination = node.number();
    const size_t size = peer.put(0, good, "good");
    ASSERT_EQ(peer.post_send(1, 0, static_cast<uint32_t>(size)), 0);
    EXPECT_EQ(node.text(node.next()), "good");
  };
  for (uint32_t size : {0u, 1u, 23u, 24u, 8240u}) {
    std::memset(peer.memory.data(), 0xFF, kFrameBytes);  // lengths of 65535
    ASSERT_EQ(peer.post_send(1, 0, size), 0) << size;
    check();
  }
  std::memset(peer.memory.data(), 0, kFrameBytes);  // as many as possible, to no queue pair
  ASSERT_EQ(peer.post_send(1, 0, kFrameBytes), 0);
  check();
  DatagramHeader longer;  // longer than the frame
  longer.destination = node.number();
  longer.payload_bytes = 100;
  ASSERT_EQ(peer.post_send(1, 0, static_cast<uint32_t>(peer.put(0, longer, "short"))), 0);
  longer.payload_bytes = kMaxDatagramBytes + 1;
  (void)peer.put(0, longer, "short");
  ASSERT_EQ(peer.post_send(1, 0, kFrameBytes), 0);
  check();
}

TEST(TrunkPeers, OtherMessagesEndTheConnection) {
  DatagramNode node, other;
  const auto attempt = [&](const char* what, auto post) {
    TrunkPeer peer;
    peer.dial_and_wait(node.number());
    EXPECT_EQ(post(peer), 0) << what;
    EXPECT_TRUE(peer.ended()) << what;
  };
  attempt("too long", [](TrunkPeer& peer) { return peer.post_send(1, 0, kFrameBytes + 1); });
  attempt("solicited", [](TrunkPeer& peer) {
    SendRequest request;
    request.flags = kSendSolicited;
    return peer.post(request, 0, 24);
  });
  attempt("invalidates", [](TrunkPeer& peer) {
    SendRequest request;
    request.opcode = SendOpcode::kSendWithInvalidate;
    request.imm_or_invalidate = 0x100;
    return peer.post(request, 0, 24);
  });
  for (const SendOpcode opcode : {SendOpcode::kWrite, SendOpcode::kRead}) {
    attempt("touches memory", [&](TrunkPeer& peer) {
      // The memory is registered, but not for peers.
      SendRequest request;
      request.opcode = opcode;
      request.remote_address = reinterpret_cast<uintptr_t>(node.memory.data());
      request.rkey = node.region->key.load();
      return peer.post(request, 0, 24);
    });
  }
  expect_datagrams(node, other);
}

TEST(TrunkPeers, OfAnotherVersionAreRefused) {
  DatagramNode node;
  TrunkPeer peer;
  peer.dial(node.number(), 1, kTrunkVersion + 1);
  ASSERT_TRUE(eventually([&] { return peer.owner->rejected == 1; }));
  const auto answer = RendezvousAnswer::decode(peer.owner->private_data());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->verdict, RendezvousVerdict::kUnknownVersion);
}

TEST(TrunkPeers, AreDisconnectedWithTheLastQueuePair) {
  TrunkPeer peer;
  {
    DatagramNode node;
    peer.dial_and_wait(node.number());
  }
  EXPECT_TRUE(peer.ended());
}

// The same port many times, also while this process calls the peer.
TEST(TrunkPeers, ThatConnectManyTimes) {
  DatagramNode node, other;
  Destination to(home(), home());
  for (int i = 0; i < 20; ++i) {
    TrunkPeer peer;
    peer.dial(node.number(), static_cast<uint16_t>(node.number().value >> 8));
    EXPECT_EQ(node.send(to, other.number(), "meanwhile"), 0);
    EXPECT_EQ(node.next().wr_id, 1u);
  }
  expect_datagrams(node, other);
}

TEST(TrunkPeers, GetWhatWasSentBeforeTheyAnswered) {
  DatagramNode node;
  CalledPort port;
  Destination to(home(), home());
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(node.send(to, port.number, "early", i), 0);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(node.next().wr_id, i);
  TrunkPeer peer;
  ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
  port.answer(peer);
  const WorkCompletion frame = peer.wait_polling();
  EXPECT_EQ(frame.wr_id, 5u);
  EXPECT_EQ(frame.byte_len, 10 * (DatagramHeader::kWireSize + 5));
  EXPECT_EQ(DatagramHeader::decode(peer.memory.data()).destination, port.number);
}

TEST(TrunkPeers, ThatAreNotReachableDelayNothing) {
  DatagramNode node, other;
  Qpn nobody;
  {
    CalledPort port;
    nobody = port.number;
  }
  Destination to(home(), home());
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(node.send(to, nobody, 4096u, i), 0);
    const WorkCompletion done = node.next();
    ASSERT_EQ(done.wr_id, i);
    ASSERT_EQ(done.status, WcStatus::kSuccess);
  }
  expect_datagrams(node, other);
}

// A peer that posts no receive causes one pause of a quarter of a second; after that, datagrams to
// it are dropped.
TEST(TrunkPeers, ThatReadNothingCostOnePause) {
  DatagramNode node(4096), other;
  CalledPort port;
  Destination to(home(), home());
  ASSERT_EQ(node.send(to, port.number, "first"), 0);
  EXPECT_EQ(node.next().wr_id, 1u);
  TrunkPeer peer;  // posts no receive: its stream is held, and the socket fills up
  port.answer(peer);
  ASSERT_TRUE(eventually([&] { return peer.owner->established == 1; }));
  for (int round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(node.send(to, port.number, 4096u, i), 0);
    for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(node.next().wr_id, i);
  }
  expect_datagrams(node, other);
  // The queue pair is destroyed while requests wait: nothing hangs.
  for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(node.send(to, port.number, 4096u, i), 0);
}

// A peer that ends each call at once is not called again for each datagram.
TEST(TrunkPeers, ThatEndEachCallAreLeftAlone) {
  DatagramNode node;
  CalledPort port;
  Destination to(home(), home());
  size_t calls = 0;
  std::vector<std::unique_ptr<TrunkPeer>> peers;
  const uint64_t end = now_ns() + kNsPerSecond;
  while (now_ns() < end) {
    ASSERT_EQ(node.send(to, port.number, "hello"), 0);
    EXPECT_EQ(node.next().wr_id, 1u);
    if (port.requests->count() == 0) continue;
    ++calls;
    peers.push_back(std::make_unique<TrunkPeer>());
    port.answer(*peers.back());
    EXPECT_TRUE(eventually([&] { return peers.back()->owner->established == 1; }));
    peers.back()->connection->abort();
  }
  EXPECT_GE(calls, 2u);
  EXPECT_LE(calls, 10u);
}

TEST(TrunkPeers, ThatHaveGoneAreCalledAgain) {
  DatagramNode node;
  CalledPort port;
  Destination to(home(), home());
  for (int round = 0; round < 3; ++round) {
    TrunkPeer peer;
    ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
    ASSERT_TRUE(eventually([&] {
      EXPECT_EQ(node.send(to, port.number, "hello"), 0);
      EXPECT_EQ(node.next().wr_id, 1u);
      return port.requests->count() != 0;
    }));
    port.answer(peer);
    EXPECT_EQ(peer.wait_polling().wr_id, 5u);
  }
}

}  // namespace
}  // namespace uwarp
