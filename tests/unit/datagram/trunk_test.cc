// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Datagrams over trunks on loopback: within the process, and with hand-made peers that use a
// connected queue pair and may send anything.
#include "datagram/trunk.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "connect/listener.h"
#include "connect/rendezvous.h"
#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/trunk_connection.h"
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
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = IBV_QPS_INIT;
    attributes.qkey = kDatagramQkey;
    EXPECT_EQ(
        endpoint->modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        0);
    attributes.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(endpoint->modify(attributes, IBV_QP_STATE), 0);
    attributes.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(endpoint->modify(attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  ~DatagramNode() {
    endpoint->destroy();
    engine.remove_region(*region);
  }
  /// A request may wait, so the next texts do not overwrite this one.
  int send(Destination& to, Qpn number, std::string_view text, uint64_t id = 1,
           uint32_t qkey = kDatagramQkey) {
    EXPECT_LE(text.size(), kTextBytes);
    std::byte* const place = memory.data() + texts++ % kTexts * kTextBytes;
    std::memcpy(place, text.data(), text.size());
    return send_from(place, to, number, static_cast<uint32_t>(text.size()), id, qkey);
  }
  int send(Destination& to, Qpn number, uint32_t size, uint64_t id = 1) {
    return send_from(memory.data(), to, number, size, id, kDatagramQkey);
  }
  int send_from(const std::byte* bytes, Destination& to, Qpn number, uint32_t size, uint64_t id,
                uint32_t qkey) {
    const Sge one{reinterpret_cast<uintptr_t>(bytes), size, region->key.load()};
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
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = static_cast<ibv_qp_state>(state);
    EXPECT_EQ(endpoint->modify(attributes, IBV_QP_STATE), 0);
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

  /// Texts that are sent have the bytes before those that are received.
  static constexpr size_t kTexts = 256, kTextBytes = 32;

  Engine& engine = Engine::instance();
  CompletionQueue cq;
  ProtectionDomain domain;
  std::vector<std::byte> memory;
  size_t texts = 0;
  MemoryRegion* region;
  std::shared_ptr<DatagramEndpoint> endpoint;
};

IpAddress home() { return loopback_device().gids[0]; }

/// A port on which trunks are called.
struct CalledPort {
  CalledPort() {
    auto bound = bind_port(loopback_address(), {});
    listener = *Listener::start(Engine::instance().context(), *bound, requests);
    const sockaddr_storage address = listener->local_address();
    number = Qpn{uint32_t{port_of(address)} << 8};
  }
  ~CalledPort() { listener->close(); }
  uint16_t port() const { return port_of_number(number); }
  std::shared_ptr<RecordingListener> requests = std::make_shared<RecordingListener>();
  std::shared_ptr<Listener> listener;
  Qpn number;
};

std::optional<RendezvousCall> call_of(Connection& request) {
  return RendezvousCall::decode(request.request_parameters().private_data);
}
std::vector<TrunkNonce> nonces_of(Connection& request) {
  return TrunkCall::nonces_of(request.request_parameters().private_data);
}

/// One call to a trunk's port, with private data of any kind.
struct HandMadeTrunkCall : Node {
  HandMadeTrunkCall(Qpn target, std::vector<std::byte> private_data) {
    EXPECT_EQ(endpoint->init_for_cm(), 0);
    Connection::ConnectOptions options;
    options.local = loopback_address();
    options.remote = loopback_address(port_of_number(target));
    options.falls_back = false;
    ConnectParameters parameters;
    parameters.private_data = std::move(private_data);
    auto made = Connection::connect(engine.context(), endpoint, std::move(options),
                                    std::move(parameters), owner);
    EXPECT_TRUE(made.ok());
    if (made) connection = *made;
  }
  HandMadeTrunkCall(Qpn target, uint16_t own_port, TrunkNonce nonce, bool call_back = false)
      : HandMadeTrunkCall(
            target,
            TrunkCall{{home(), own_port, home(), port_of_number(target)}, call_back, {nonce}}
                .encode()) {}
  ~HandMadeTrunkCall() override {
    if (connection != nullptr) connection->abort();
  }
  /// None if the connection is accepted or ends without one.
  std::optional<RendezvousVerdict> verdict() {
    EXPECT_TRUE(
        eventually([&] { return owner->rejected + owner->established + owner->failed != 0; }));
    const auto answer = RendezvousAnswer::decode(owner->private_data());
    return answer ? std::optional(answer->verdict) : std::nullopt;
  }
  std::shared_ptr<RecordingOwner> owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Connection> connection;
};

void refuse_call_back(Connection& request) {
  RendezvousAnswer answer;
  answer.verdict = RendezvousVerdict::kNotExpected;
  EXPECT_EQ(request.reject(answer.encode()), 0);
}

/// A connected queue pair that is the end of a trunk, at a port of its own or at `port`.
struct TrunkPeer : Node {
  explicit TrunkPeer(CalledPort* port = nullptr)
      : Node(64, 64, true), port(port != nullptr ? *port : own_port.emplace()) {
    EXPECT_EQ(endpoint->init_for_cm(), 0);
  }
  ~TrunkPeer() override {
    if (connection != nullptr) connection->abort();
  }
  /// Calls, and takes the call back.
  void dial_and_wait(Qpn number) {
    const TrunkNonce nonce = draw_nonce();
    HandMadeTrunkCall call(number, port.port(), nonce);
    ASSERT_EQ(call.verdict(), RendezvousVerdict::kCallsBack);
    connection = port.requests->take();
    const auto back = call_of(*connection);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->capabilities, RendezvousCall::kTrunk | RendezvousCall::kCallBack);
    EXPECT_EQ(port_of_number(back->source), port_of_number(number));
    called = connection->request_parameters().private_data;
    EXPECT_EQ(TrunkCall::nonces_of(called), std::vector<TrunkNonce>{nonce});
    ConnectParameters parameters;
    parameters.private_data = encode_accepted(nonce);
    ASSERT_EQ(connection->accept(endpoint, parameters, owner), 0);
    ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
  }
  /// Takes a call to its port, and calls back.
  void answer() {
    const auto request = port.requests->take();
    const auto call = call_of(*request);
    ASSERT_TRUE(call.has_value());
    EXPECT_EQ(call->psn, kTrunkVersion);
    EXPECT_EQ(call->capabilities, RendezvousCall::kTrunk);
    const auto nonces = nonces_of(*request);
    ASSERT_EQ(nonces.size(), 1u);
    RendezvousAnswer answer;
    answer.verdict = RendezvousVerdict::kCallsBack;
    EXPECT_EQ(request->reject(answer.encode()), 0);
    call_back(call->source, nonces);
  }
  void call_back(Qpn number, const std::vector<TrunkNonce>& nonces) {
    Connection::ConnectOptions options;
    options.local = loopback_address();
    options.remote = loopback_address(port_of_number(number));
    options.falls_back = false;
    ConnectParameters parameters;
    parameters.private_data =
        TrunkCall{{home(), port.port(), home(), port_of_number(number)}, true, nonces}.encode();
    auto made = Connection::connect(engine.context(), endpoint, std::move(options),
                                    std::move(parameters), owner);
    ASSERT_TRUE(made.ok());
    connection = *made;
  }
  /// Puts a datagram into the peer's memory; returns the offset for the next one.
  size_t put(size_t offset, DatagramHeader header, std::string_view payload) {
    if (header.source.value == 0) header.source = port.number;
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

  std::optional<CalledPort> own_port;
  CalledPort& port;
  std::vector<std::byte> called;  // the call back's private data
  std::shared_ptr<RecordingOwner> owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Connection> connection;
};

/// Datagrams within the process arrive; they are repeated until one does.
void expect_datagrams(DatagramNode& from, DatagramNode& to) {
  Destination path(home(), home());
  ASSERT_TRUE(eventually([&] {
    (void)to.receive(7);  // an earlier datagram that waited for a receive may take it
    EXPECT_EQ(from.send(path, to.number(), "still there"), 0);
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

// Several receivers share a connection. The second one waits for its receive just as the first;
// both are told, and each holds the connection no longer than its time.
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
    })) << "the connection has stopped in round "
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

// While it lives the helper thread waits, so that only the test's thread serves the sockets.
class NoHelper {
 public:
  explicit NoHelper(Progress& progress) {
    progress.set_deadline(*source_, 1);
    EXPECT_TRUE(eventually([&] { return source_->blocks.load(); }));
  }
  ~NoHelper() { source_->over.store(true); }

 private:
  struct Blocking final : Source {
    bool ready(uint32_t) override { return false; }
    void deadline_passed() override {
      blocks.store(true);
      (void)eventually([&] { return over.load(); }, 120);
    }
    std::atomic<bool> blocks{false}, over{false};
  };
  std::shared_ptr<Blocking> source_ = std::make_shared<Blocking>();
};

// The connection within the process has two ends, which open one after the other. When the last
// queue pair goes in between, the end that opens later must not carry datagrams of new queue pairs
// to an end that has been closed. So the queue pairs go after each step of the start-up in turn.
TEST(Trunks, ConnectionsOfOldQueuePairsTakeNothingOfNewOnes) {
  std::optional<DatagramNode> node(std::in_place);
  Progress& progress = node->engine.context().progress;
  const NoHelper no_helper(progress);
  Destination to(home(), home());
  const auto arrives = [&] {
    WorkCompletion one{};
    while (node->cq.poll(&one, 1) == 1)
      if (one.wr_id == 2) return true;
    return false;
  };
  // A step is one look at what has come; `without` of them find no queue pair.
  const auto look = [&](int steps) {
    for (int i = 0; i < steps; ++i) progress.nap();
  };
  bool arrived = false;
  for (int steps = 0; !arrived; ++steps) {
    for (int without = 0; without < 6; ++without) {
      SCOPED_TRACE(std::to_string(steps) + " steps, " + std::to_string(without) + " more without");
      ASSERT_EQ(node->receive(), 0);
      ASSERT_EQ(node->send(to, node->number(), "old"), 0);
      look(steps);
      arrived = arrives();
      node.reset();
      look(without);
      node.emplace();
      for (int datagram = 0; datagram < 3; ++datagram) {
        ASSERT_EQ(node->receive(), 0);
        ASSERT_EQ(node->send(to, node->number(), "new"), 0);
        ASSERT_TRUE(eventually([&] {
          progress.nap();
          return arrives();
        })) << "number "
            << datagram << " is lost";
      }
      node.reset();  // the next round begins with a port that is called for the first time
      ASSERT_TRUE(eventually([&] {
        progress.nap();
        return Engine::instance().trunks().done();
      }));
      node.emplace();
    }
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
    TrunkPeer peer(&port);
    ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
    peer.answer();
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
  EXPECT_EQ(got.src_qp, peer.port.number.value);
}

// A fault in a frame costs the datagrams behind it in the frame; the connection goes on.
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
  CalledPort port;
  for (const uint32_t version : {1u, kTrunkVersion + 1}) {
    auto call = TrunkCall{
        {home(), port.port(), home(), port_of_number(node.number())},
        false,
        {7}}.encode();
    store_be32(&call[16], version);
    HandMadeTrunkCall made(node.number(), call);
    EXPECT_EQ(made.verdict(), RendezvousVerdict::kUnknownVersion) << version;
  }
  EXPECT_EQ(port.requests->count(), 0u) << "it was called back";
}

TEST(TrunkPeers, AreDisconnectedWithTheLastQueuePair) {
  TrunkPeer peer;
  {
    DatagramNode node;
    peer.dial_and_wait(node.number());
  }
  EXPECT_TRUE(peer.ended());
}

// Strangers that claim the port of this very process, also while it calls itself.
TEST(TrunkPeers, ThatClaimOurOwnPort) {
  DatagramNode node, other;
  Destination to(home(), home());
  for (int i = 0; i < 20; ++i) {
    HandMadeTrunkCall stranger(node.number(), port_of_number(node.number()), 1);
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
  TrunkPeer peer(&port);
  ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
  peer.answer();
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
  TrunkPeer peer(&port);  // posts no receive: its stream is held, and the socket fills up
  peer.answer();
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
    peers.push_back(std::make_unique<TrunkPeer>(&port));
    peers.back()->answer();
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
    TrunkPeer peer(&port);
    ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
    ASSERT_TRUE(eventually([&] {
      EXPECT_EQ(node.send(to, port.number, "hello"), 0);
      EXPECT_EQ(node.next().wr_id, 1u);
      return port.requests->count() != 0;
    }));
    peer.answer();
    EXPECT_EQ(peer.wait_polling().wr_id, 5u);
  }
}

// --- Who has a port

// docs/security.md: a stranger that claims the port of another process takes none of its
// datagrams, and does not speak as it.
TEST(TrunkProof, AStrangerThatClaimsAPortGetsNoLine) {
  DatagramNode node;
  CalledPort honest;
  for (TrunkNonce nonce = 1; nonce <= 10; ++nonce) {
    HandMadeTrunkCall stranger(node.number(), honest.port(), nonce);
    EXPECT_EQ(stranger.verdict(), RendezvousVerdict::kCallsBack);
    // The process that has the port did not call, and says so.
    const auto back = honest.requests->take();
    EXPECT_EQ(nonces_of(*back), std::vector<TrunkNonce>{nonce});
    refuse_call_back(*back);
    // Nor can the stranger guess what a call back to this process would have to show.
    HandMadeTrunkCall guess(node.number(), honest.port(), nonce, true);
    EXPECT_EQ(guess.verdict(), RendezvousVerdict::kNotExpected);
  }
  // What is sent to the port is sent to the process that has it.
  Destination to(home(), home());
  ASSERT_EQ(node.send(to, honest.number, "for the right one"), 0);
  TrunkPeer peer(&honest);
  ASSERT_EQ(peer.post_recv(5, 0, 10000), 0);
  peer.answer();
  EXPECT_EQ(peer.wait_polling().byte_len, DatagramHeader::kWireSize + 17);
}

// While a call back is under way, others that claim the port wait for the next one, together: a
// port is called by one connection at a time, however many ask for it.
TEST(TrunkProof, CallersShareOneCallBack) {
  DatagramNode node;
  CalledPort port;
  std::vector<std::unique_ptr<HandMadeTrunkCall>> calls;
  const auto call = [&](TrunkNonce nonce) {
    calls.push_back(std::make_unique<HandMadeTrunkCall>(node.number(), port.port(), nonce));
    EXPECT_EQ(calls.back()->verdict(), RendezvousVerdict::kCallsBack);
  };
  call(1);
  const auto first = port.requests->take();
  for (TrunkNonce nonce = 2; nonce <= 6; ++nonce) call(nonce);
  EXPECT_EQ(port.requests->count(), 0u);
  refuse_call_back(*first);
  TrunkPeer peer(&port);  // made the last call
  peer.connection = port.requests->take();
  EXPECT_EQ(nonces_of(*peer.connection), (std::vector<TrunkNonce>{2, 3, 4, 5, 6}));
  ConnectParameters parameters;
  parameters.private_data = encode_accepted(6);
  ASSERT_EQ(peer.connection->accept(peer.endpoint, parameters, peer.owner), 0);
  ASSERT_TRUE(eventually([&] { return peer.owner->established == 1; }));
  ASSERT_EQ(node.receive(), 0);
  DatagramHeader header;
  header.destination = node.number();
  ASSERT_EQ(peer.post_send(1, 0, static_cast<uint32_t>(peer.put(0, header, "proved"))), 0);
  EXPECT_EQ(node.text(node.next()), "proved");
}

TEST(TrunkProof, CallsThatAreIncompleteAreRefused) {
  DatagramNode node;
  CalledPort port;
  const TrunkKey key{home(), port.port(), home(), port_of_number(node.number())};
  const auto expect_refused = [&](const char* what, const TrunkCall& call) {
    HandMadeTrunkCall made(node.number(), call.encode());
    EXPECT_EQ(made.verdict(), RendezvousVerdict::kNotExpected) << what;
  };
  expect_refused("no nonce", {key, false, {}});
  expect_refused("a call back without nonces", {key, true, {}});
  expect_refused("no nonce is 0", {key, true, {0}});
  TrunkKey no_port = key, another_port = key;
  no_port.own_port = 0;
  another_port.port = static_cast<uint16_t>(key.port ^ 1);
  expect_refused("no port", {no_port, false, {1}});
  expect_refused("for another port than the one that was called", {another_port, false, {1}});
  EXPECT_EQ(port.requests->count(), 0u);
}

// A proved peer that names another port as the source of its datagrams.
TEST(TrunkProof, DatagramsInTheNameOfOthersAreDroppedAndCounted) {
  DatagramNode node;
  TrunkPeer peer;
  CalledPort other;
  peer.dial_and_wait(node.number());
  ASSERT_EQ(node.receive(), 0);
  DatagramHeader wrong, right;
  wrong.destination = right.destination = node.number();
  wrong.source = other.number;
  size_t size = peer.put(0, wrong, "not mine");
  size = peer.put(size, wrong, "nor this");
  size = peer.put(size, right, "mine");
  ASSERT_EQ(peer.post_send(1, 0, static_cast<uint32_t>(size)), 0);
  const WorkCompletion got = node.next();
  EXPECT_EQ(node.text(got), "mine");
  EXPECT_EQ(got.src_qp, peer.port.number.value);
  EXPECT_EQ(node.endpoint->qp().config().slot->receive.dropped.get(), 2u);
}

// A port that another process has taken over: what is sent to it goes to the new one from its first
// call on, and the old one may not speak as it any more.
TEST(TrunkProof, TheNewestProcessAtAPortIsTheOneThatCounts) {
  DatagramNode node;
  CalledPort port;
  Destination to(home(), home());
  TrunkPeer before(&port), after(&port);
  before.dial_and_wait(node.number());
  ASSERT_EQ(before.post_recv(5, 0, 10000), 0);
  ASSERT_EQ(node.send(to, port.number, "old"), 0);
  EXPECT_EQ(before.wait_polling().wr_id, 5u);
  after.dial_and_wait(node.number());
  ASSERT_EQ(after.post_recv(6, 0, 10000), 0);
  ASSERT_TRUE(eventually([&] {  // the new connection is used as soon as this process knows of it
    EXPECT_EQ(node.send(to, port.number, "new"), 0);
    WorkCompletion got{};
    return after.poll(got) && got.wr_id == 6;
  }));
  EXPECT_TRUE(before.ended());
  EXPECT_EQ(after.owner->ended, 0);
}

// A connection that is used is proved again now and then.
TEST(TrunkProof, ALineWhosePeerHasLeftItsPortIsClosed) {
  DatagramNode node;
  {
    TrunkPeer stays;
    stays.dial_and_wait(node.number());
    node.engine.trunks().prove_again();
    // It is asked by its nonce whether the connection is still its own.
    const auto asked = stays.port.requests->take();
    const auto nonces = nonces_of(*asked);
    EXPECT_EQ(nonces, TrunkCall::nonces_of(stays.called));
    RendezvousAnswer held;
    held.verdict = RendezvousVerdict::kHeld;
    EXPECT_EQ(asked->reject(held.encode()), 0);
    ASSERT_EQ(node.receive(), 0);
    DatagramHeader header;
    header.destination = node.number();
    const size_t size = stays.put(0, header, "still here");
    ASSERT_EQ(stays.post_send(1, 0, static_cast<uint32_t>(size)), 0);
    EXPECT_EQ(node.text(node.next()), "still here");
    EXPECT_EQ(stays.owner->ended, 0);
  }
  TrunkPeer leaves;
  leaves.dial_and_wait(node.number());
  leaves.port.listener->close();
  node.engine.trunks().prove_again();
  EXPECT_TRUE(leaves.ended());
}

// Between two uwarps: both know the connection, and nothing changes.
TEST(TrunkProof, ProvingAgainDisturbsNothing) {
  DatagramNode a, b;
  expect_datagrams(a, b);
  for (int i = 0; i < 10; ++i) {
    a.engine.trunks().prove_again();
    Destination to(home(), home());
    ASSERT_EQ(b.receive(), 0);
    ASSERT_EQ(a.send(to, b.number(), "goes on"), 0);
    EXPECT_EQ(b.text(b.next()), "goes on");
    EXPECT_EQ(a.next().wr_id, 1u);
  }
}

TEST(TrunkPlaces, AreAQuarterOfTheFiles) {
  EXPECT_EQ(TrunkPlaces(1024).proved, 224u);
  EXPECT_EQ(TrunkPlaces(1024).unproved, 32u);
  for (const uint64_t files : {0u, 8u, 100u, 20'000u, 1u << 30}) {
    const TrunkPlaces places(files);
    EXPECT_GE(places.unproved, 1u);
    EXPECT_GE(places.proved, 1u);
    EXPECT_LE(places.unproved, 256u);
    EXPECT_LE(places.unproved + places.proved,
              std::max<uint64_t>(2, std::min<uint64_t>(4096, files / 4)));
  }
}

// What peers have on their way, and what waits for them, is given back.
TEST(TrunkMemory, ComesBackAfterACrowd) {
  DatagramNode node(4096);
  Destination to(home(), home());
  {
    std::vector<std::unique_ptr<CalledPort>> ports;
    for (int i = 0; i < 8; ++i) ports.push_back(std::make_unique<CalledPort>());
    // None of them calls back: the frames wait.
    for (const auto& port : ports)
      for (uint64_t i = 0; i < 128; ++i) ASSERT_EQ(node.send(to, port->number, 4096u, i), 0);
    EXPECT_GE(node.engine.trunks().frames().chunks(), 8u);
  }
  EXPECT_TRUE(eventually([&] { return node.engine.trunks().frames().chunks() <= 1; }));
  {
    std::vector<std::unique_ptr<TrunkPeer>> peers;
    DatagramHeader header;
    header.destination = node.number();
    for (int i = 0; i < 200; ++i) {
      peers.push_back(std::make_unique<TrunkPeer>());
      peers.back()->dial_and_wait(node.number());
      const size_t size = peers.back()->put(0, header, "for a moment");
      ASSERT_EQ(peers.back()->post_send(1, 0, static_cast<uint32_t>(size)), 0);
    }
    EXPECT_TRUE(eventually([&] { return node.engine.trunks().buffers().chunks() >= 3; }));
  }
  // One datagram may wait for a receive, in another chunk than the one that always stays.
  EXPECT_TRUE(eventually([&] { return node.engine.trunks().buffers().chunks() <= 2; }));
}

}  // namespace
}  // namespace uwarp
