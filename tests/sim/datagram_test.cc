// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair for datagrams. Both its network and the datagrams that it receives are made up.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>

#include "protocol/wire/global_route_header.h"
#include "qp/datagram_queue_pair.h"
#include "sim/sim_pair.h"

namespace uwarp::sim {
namespace {

constexpr uint32_t kQkey = 0x1111;
constexpr uint32_t kRoute = DatagramQueuePair::kRouteHeaderBytes;

/// Keeps the datagrams that it is given.
struct MadeUpPath : DatagramPath {
  Taken append(const DatagramHeader& header, BufferList& payload) override {
    if (answer != Taken::kYes || went.size() == room)
      return answer != Taken::kYes ? answer : Taken::kFull;
    std::string bytes(header.payload_bytes, '?');
    if (!payload.copy_out(0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size()))
      return Taken::kFault;
    went.push_back({header, bytes});
    return Taken::kYes;
  }
  bool wait_for_space(std::shared_ptr<DatagramWaiter>) override { return false; }
  void flush() override {}
  void flush_soon() override {}

  struct One {
    DatagramHeader header;
    std::string payload;
  };
  std::deque<One> went;
  size_t room = 1000;
  Taken answer = Taken::kYes;
};

struct Holder : PendingDatagram {
  void receive_came() override { ++told; }
  int told = 0;
};

struct Datagrams : ::testing::Test, QpEventListener {
  static QpConfig shape() {
    QpConfig config = End::default_shape();
    config.transport = Transport::kUd;
    config.max_send_wr = 8;
    config.max_recv_wr = 8;
    return config;
  }
  Datagrams() { make(""); }
  /// Makes the queue pair with these faults (UWARP_FAULT).
  void make(std::string_view faults) {
    QpConfig config = shape();
    if (!faults.empty()) {
      std::string error;
      const FaultPlan plan = FaultPlan::parse(faults, error);
      ASSERT_EQ(error, "");
      config.script = std::make_shared<FaultScript>(plan, 1, nullptr, FaultScript::Of::kDatagrams);
    }
    config.domain = &domain;
    config.send_cq = &send_cq;
    config.recv_cq = &recv_cq;
    config.regions = &regions;
    config.listener = this;
    config.slot = &slot;
    config.number = Qpn{0x123456};
    qp = std::make_unique<DatagramQueuePair>(config);
    if (region != nullptr) return;
    region =
        *regions.add(domain, memory.data(), memory.size(), memory.address(), kAccessLocalWrite);
    for (size_t i = 0; i < 5000; ++i) memory.data()[i] = static_cast<std::byte>('a' + i % 26);
  }
  ~Datagrams() override { EXPECT_TRUE(memory.intact()); }
  void qp_event(QpEvent event) override { events.push_back(event); }

  void to(QpState state) { qp->move_to(state); }
  void ready() {
    to(QpState::kInit);
    qp->set_qkey(kQkey);
    to(QpState::kRtr);
    to(QpState::kRts);
  }
  Sge sge(size_t offset, uint32_t length) {
    return {memory.address() + offset, length, region->key.load()};
  }
  int post(SendRequest request, std::vector<Sge> sges, uint32_t qkey = kQkey) {
    request.sges = sges;
    DatagramTarget target;
    target.path = path;
    target.number = Qpn{0x777};
    target.qkey = qkey;
    target.traffic_class = 12;
    target.hop_limit = 34;
    const std::lock_guard lock(qp->post_lock());
    return qp->post_send_locked(request, target);
  }
  int send(uint64_t id, size_t offset = 0, uint32_t length = 10) {
    SendRequest request;
    request.wr_id = id;
    request.flags = kSendSignaled;
    return post(request, {sge(offset, length)});
  }
  void go_on() {
    const std::lock_guard lock(qp->post_lock());
    qp->send_waiting_locked([&](const auto&) { ++flushes; });
  }
  std::shared_ptr<DatagramPath> blocked_on() {
    const std::lock_guard lock(qp->post_lock());
    return qp->blocked_on();
  }
  int receive(uint64_t id, size_t offset = 8000, uint32_t length = 1000) {
    const Sge one = sge(offset, length);
    return qp->post_recv(id, {&one, 1});
  }
  static DatagramHeader header(const std::string& payload) {
    DatagramHeader made;
    made.payload_bytes = static_cast<uint16_t>(payload.size());
    made.source = Qpn{0x999};
    made.qkey = kQkey;
    return made;
  }
  DatagramQueuePair::Delivery deliver(const DatagramHeader& made, const std::string& payload) {
    return qp->deliver(made, route.of(made.payload_bytes, 0, 0),
                       reinterpret_cast<const std::byte*>(payload.data()));
  }
  DatagramQueuePair::Delivery deliver(const std::string& payload = "hello") {
    return deliver(header(payload), payload);
  }
  static WorkCompletion next(CompletionQueue& cq) {
    WorkCompletion out{};
    out.wr_id = 9999;
    EXPECT_EQ(cq.poll(&out, 1), 1);
    return out;
  }
  static bool none(CompletionQueue& cq) {
    WorkCompletion out{};
    return cq.poll(&out, 1) == 0;
  }

  using Delivery = DatagramQueuePair::Delivery;
  RegionTable regions;
  ProtectionDomain domain;
  CompletionQueue send_cq{16, nullptr};
  CompletionQueue recv_cq{16, nullptr};
  QueuePairSlot slot{};
  GuardedMemory memory{20000};
  MemoryRegion* region = nullptr;
  GlobalRouteHeader route{{0xFE, 0x80, 1}, {0xFE, 0x80, 2}};
  std::shared_ptr<MadeUpPath> path = std::make_shared<MadeUpPath>();
  std::unique_ptr<DatagramQueuePair> qp;
  std::vector<QpEvent> events;
  int flushes = 0;
};

// --- Sending

TEST_F(Datagrams, HeaderAndPayloadGoToTheWay) {
  ready();
  SendRequest request;
  request.wr_id = 5;
  request.opcode = SendOpcode::kSendWithImm;
  request.imm_or_invalidate = 0xAABBCCDD;
  request.flags = kSendSignaled | kSendSolicited;
  ASSERT_EQ(post(request, {sge(0, 3), sge(26, 0), sge(5, 2)}), 0);
  ASSERT_EQ(path->went.size(), 1u);
  const auto& [header, payload] = path->went[0];
  EXPECT_EQ(payload, "abcfg");
  EXPECT_EQ(header.payload_bytes, 5);
  EXPECT_EQ(header.flags, DatagramHeader::kImmediate | DatagramHeader::kSolicited);
  EXPECT_EQ(header.immediate, 0xAABBCCDDu);
  EXPECT_EQ(header.destination, Qpn{0x777});
  EXPECT_EQ(header.source, Qpn{0x123456});
  EXPECT_EQ(header.qkey, kQkey);
  EXPECT_EQ(header.traffic_class, 12);
  EXPECT_EQ(header.hop_limit, 34);
  const WorkCompletion done = next(send_cq);
  EXPECT_EQ(done.wr_id, 5u);
  EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_EQ(done.opcode, WcOpcode::kSend);
  EXPECT_EQ(done.qp_num, 0x123456u);
  EXPECT_EQ(slot.transmit.bytes.get(), 5u);
  EXPECT_EQ(slot.transmit.messages[static_cast<size_t>(MessageKind::kSend)].get(), 1u);
}

TEST_F(Datagrams, AControlledQkeyStandsForTheOwnOne) {
  ready();
  for (const uint32_t qkey : {0x80000000u, 0xFFFFFFFFu, 0x7FFFFFFFu, 0u})
    ASSERT_EQ(post({}, {}, qkey), 0);
  const uint32_t expected[] = {kQkey, kQkey, 0x7FFFFFFFu, 0u};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(path->went[i].header.qkey, expected[i]) << i;
}

TEST_F(Datagrams, WhatNoDatagramCanDoFailsWhenItIsSent) {
  ready();
  const auto fails = [&](SendOpcode opcode, uint32_t bytes, WcStatus status) {
    SendRequest request;
    request.opcode = opcode;
    ASSERT_EQ(post(request, {sge(0, bytes)}), 0) << static_cast<int>(opcode);
    EXPECT_EQ(next(send_cq).status, status) << static_cast<int>(opcode);
    EXPECT_EQ(qp->state(), QpState::kSqe);
    qp->move_to(QpState::kRts);
  };
  for (const SendOpcode opcode : {SendOpcode::kWrite, SendOpcode::kWriteWithImm, SendOpcode::kRead,
                                  SendOpcode::kCompareSwap, SendOpcode::kFetchAdd})
    fails(opcode, 8, WcStatus::kLocQpOpErr);
  fails(SendOpcode::kSend, kMaxDatagramBytes + 1, WcStatus::kLocLenErr);
  EXPECT_TRUE(path->went.empty());
}

TEST_F(Datagrams, OtherOpcodesAreRefused) {
  ready();
  for (const SendOpcode opcode :
       {SendOpcode::kSendWithInvalidate, SendOpcode::kLocalInvalidate, SendOpcode::kBindWindow}) {
    SendRequest request;
    request.opcode = opcode;
    EXPECT_EQ(post(request, {sge(0, 8)}), EINVAL) << static_cast<int>(opcode);
  }
  EXPECT_EQ(send(1, 0, kMaxDatagramBytes), 0);
  EXPECT_EQ(path->went.back().payload.size(), kMaxDatagramBytes);
  EXPECT_EQ(post({}, std::vector<Sge>(5, sge(0, 1))), EINVAL);  // four is the limit
  EXPECT_EQ(post({}, {}), 0);
  EXPECT_EQ(path->went.size(), 2u);
}

TEST_F(Datagrams, InlineDataNeedsNoKey) {
  ready();
  char text[] = "inline";
  SendRequest request;
  request.flags = kSendInline | kSendSignaled;
  EXPECT_EQ(post(request, {{reinterpret_cast<uint64_t>(text), 6, 0}}), 0);
  EXPECT_EQ(path->went.at(0).payload, "inline");
  EXPECT_EQ(post(request, {sge(0, 257)}), EINVAL);
  // An inline request that waits has its own copy of the bytes.
  path->room = 1;
  EXPECT_EQ(post(request, {{reinterpret_cast<uint64_t>(text), 6, 0}}), 0);
  text[0] = 'X';
  path->room = 10;
  go_on();
  EXPECT_EQ(path->went.at(1).payload, "inline");
}

TEST_F(Datagrams, SentMemoryNeedsNoRights) {
  ready();
  const MemoryRegion* const read_only =
      *regions.add(domain, memory.data(), memory.size(), memory.address(), 0);
  ASSERT_EQ(post({}, {{memory.address(), 8, read_only->key.load()}}), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(path->went.at(0).payload, "abcdefgh");
}

// Later Sends are flushed until the application sets RTS again. Receives go on.
TEST_F(Datagrams, AWrongKeyCompletesWithAnError) {
  ready();
  ASSERT_EQ(post({}, {{memory.address(), 8, region->key.load() + 1}}), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kLocProtErr);
  EXPECT_EQ(qp->state(), QpState::kSqe);
  ASSERT_EQ(send(2), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kWrFlushErr);
  ASSERT_EQ(receive(1), 0);
  EXPECT_EQ(deliver(), Delivery::kTaken);
  to(QpState::kRts);
  ASSERT_EQ(post({}, {sge(19999, 2)}), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kLocProtErr);
  EXPECT_TRUE(path->went.empty());
  to(QpState::kRts);
  ASSERT_EQ(send(3), 0);
  EXPECT_EQ(next(send_cq).wr_id, 3u);
}

TEST_F(Datagrams, WhatHasNoWayIsDroppedAndCounted) {
  ready();
  path->answer = DatagramPath::Taken::kDropped;
  ASSERT_EQ(send(1), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(slot.transmit.dropped.get(), 1u);
  path->answer = DatagramPath::Taken::kFault;
  ASSERT_EQ(send(2), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kLocProtErr);
}

TEST_F(Datagrams, SendsInEachState) {
  EXPECT_EQ(send(0), EINVAL);
  to(QpState::kInit);
  EXPECT_EQ(send(0), EINVAL);
  to(QpState::kRtr);
  ready();
  to(QpState::kSqd);
  EXPECT_EQ(send(1), 0);
  EXPECT_EQ(send(2), 0);
  EXPECT_TRUE(path->went.empty());
  go_on();
  EXPECT_TRUE(path->went.empty());
  to(QpState::kRts);
  go_on();
  EXPECT_EQ(path->went.size(), 2u);
  EXPECT_EQ(next(send_cq).wr_id, 1u);
  EXPECT_EQ(next(send_cq).wr_id, 2u);
  qp->to_error();
  EXPECT_EQ(send(3), 0);
  const WorkCompletion flushed = next(send_cq);
  EXPECT_EQ(flushed.wr_id, 3u);
  EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
  to(QpState::kRts);  // only RESET leaves ERR
  EXPECT_EQ(qp->state(), QpState::kErr);
  qp->to_reset();
  EXPECT_EQ(slot.state.load(), static_cast<uint32_t>(QpState::kReset));
  EXPECT_EQ(send(4), EINVAL);
}

// Requests behind the first one that found no room wait too, and keep their order.
TEST_F(Datagrams, WhatFindsNoRoomWaits) {
  ready();
  path->room = 1;
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(send(id, id), 0);
  EXPECT_EQ(blocked_on(), path);
  EXPECT_EQ(next(send_cq).wr_id, 0u);
  EXPECT_TRUE(none(send_cq));
  // A request for another destination, which has room, also waits behind it.
  const auto first = std::exchange(path, std::make_shared<MadeUpPath>());
  ASSERT_EQ(send(4), 0);
  EXPECT_TRUE(path->went.empty());
  first->room = 3;
  go_on();
  EXPECT_EQ(first->went.size(), 3u);
  EXPECT_EQ(blocked_on(), first);
  first->room = 9;
  go_on();
  EXPECT_EQ(blocked_on(), nullptr);
  EXPECT_EQ(path->went.size(), 1u);
  EXPECT_EQ(flushes, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(first->went[i].payload[0], static_cast<char>('a' + i));
  for (uint64_t id = 1; id < 5; ++id) EXPECT_EQ(next(send_cq).wr_id, id);
  EXPECT_TRUE(none(send_cq));
  // The queue pair keeps no reference to either destination.
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(path.use_count(), 1);
}

TEST_F(Datagrams, TheQueueIsFullWhenAllWait) {
  ready();
  path->room = 0;
  for (uint64_t id = 0; id < 8; ++id) ASSERT_EQ(send(id), 0);
  EXPECT_EQ(send(8), ENOMEM);
  SendRequest request;
  const std::lock_guard lock(qp->post_lock());
  EXPECT_EQ(qp->admits_locked({&request, 1}), ENOMEM);
}

TEST_F(Datagrams, WhatWaitsIsFlushedOnce) {
  ready();
  path->room = 1;
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(send(id), 0);
  ASSERT_EQ(receive(50), 0);
  qp->to_error();
  EXPECT_EQ(blocked_on(), nullptr);
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
  for (uint64_t id = 1; id < 4; ++id) {
    const WorkCompletion flushed = next(send_cq);
    EXPECT_EQ(flushed.wr_id, id);
    EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
  }
  EXPECT_EQ(next(recv_cq).status, WcStatus::kWrFlushErr);
  EXPECT_EQ(slot.transmit.posted.get(), 4u);
  EXPECT_EQ(slot.receive.flushed.get(), 1u);
  path->room = 9;
  go_on();
  qp->to_error();
  EXPECT_TRUE(none(send_cq));
  EXPECT_TRUE(none(recv_cq));
  EXPECT_EQ(path->went.size(), 1u);
  EXPECT_EQ(path.use_count(), 1);
}

TEST_F(Datagrams, ResetDropsAllAndBeginsAnew) {
  ready();
  path->room = 1;
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(send(id), 0);
  ASSERT_EQ(receive(50), 0);
  ASSERT_EQ(receive(51), 0);
  EXPECT_EQ(deliver(), Delivery::kTaken);
  qp->to_reset();
  EXPECT_TRUE(none(send_cq));
  EXPECT_TRUE(none(recv_cq));
  EXPECT_EQ(path.use_count(), 1);
  EXPECT_EQ(deliver(), Delivery::kDropped);
  path->room = 9;
  ready();
  go_on();
  EXPECT_EQ(path->went.size(), 1u);
  ASSERT_EQ(send(9), 0);
  EXPECT_EQ(next(send_cq).wr_id, 9u);
  EXPECT_EQ(deliver(), Delivery::kNoReceive);
}

struct UnsignaledDatagrams : Datagrams {
  UnsignaledDatagrams() {
    QpConfig config = qp->config();
    config.signal_all = false;
    qp = std::make_unique<DatagramQueuePair>(config);
  }
};

// An unsignaled request frees its place when the next signaled one is polled.
TEST_F(UnsignaledDatagrams, KeepTheirPlacesUntilOneIsSignaled) {
  ready();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 7; ++i) ASSERT_EQ(post({}, {}), 0) << round << " " << i;
    EXPECT_TRUE(none(send_cq));
    ASSERT_EQ(send(7), 0);
    EXPECT_EQ(send(8), ENOMEM);
    EXPECT_EQ(next(send_cq).wr_id, 7u);
  }
}

// --- Receiving

TEST_F(Datagrams, ARouteHeaderStandsBeforeThePayload) {
  ready();
  ASSERT_EQ(receive(7), 0);
  DatagramHeader made = header("hello");
  made.flags = DatagramHeader::kImmediate | 0x80;  // and one bit that is not defined yet
  made.immediate = 0x01020304;
  EXPECT_EQ(deliver(made, "hello"), Delivery::kTaken);
  const WorkCompletion done = next(recv_cq);
  EXPECT_EQ(done.wr_id, 7u);
  EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_EQ(done.opcode, WcOpcode::kRecv);
  EXPECT_EQ(done.byte_len, kRoute + 5);
  EXPECT_EQ(done.src_qp, 0x999u);
  EXPECT_EQ(done.wc_flags, kWcGrh | kWcWithImm);
  EXPECT_EQ(done.imm_or_invalidated, 0x01020304u);
  EXPECT_EQ(done.sl, 0x9);
  const auto expected = route.of(5, 0, 0);
  EXPECT_EQ(std::memcmp(memory.data() + 8000, expected.data(), kRoute), 0);
  EXPECT_EQ(std::memcmp(memory.data() + 8000 + kRoute, "hello", 5), 0);
  EXPECT_EQ(memory.data()[8000 + kRoute + 5], std::byte{0});
}

TEST_F(Datagrams, ReceivesOfSeveralRanges) {
  ready();
  const Sge sges[] = {sge(6000, 30), sge(7000, 12), sge(8000, 3)};
  ASSERT_EQ(qp->post_recv(1, sges), 0);
  EXPECT_EQ(deliver("12345"), Delivery::kTaken);
  EXPECT_EQ(next(recv_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(memory.data() + 7010, "12", 2), 0);
  EXPECT_EQ(std::memcmp(memory.data() + 8000, "345", 3), 0);
}

TEST_F(Datagrams, AReceiveThatIsTooShort) {
  ready();
  ASSERT_EQ(receive(1, 8000, kRoute + 4), 0);
  ASSERT_EQ(receive(2, 8000, 0), 0);
  ASSERT_EQ(receive(3, 8000, kRoute + 5), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(deliver(), Delivery::kDropped);
  EXPECT_EQ(deliver("four"), Delivery::kTaken) << "it stays for one that fits";
  const WorkCompletion got = next(recv_cq);
  EXPECT_EQ(got.status, WcStatus::kSuccess);
  EXPECT_EQ(got.wr_id, 1u);
  EXPECT_EQ(deliver(), Delivery::kDropped) << "the next one is too short as well";
  EXPECT_EQ(qp->state(), QpState::kRts);
  qp->to_error();
  EXPECT_EQ(next(recv_cq).wr_id, 2u);
  EXPECT_EQ(next(recv_cq).wr_id, 3u);
}

TEST_F(Datagrams, AReceiveWithAWrongKey) {
  ready();
  const Sge wrong{memory.address(), 1000, region->key.load() + 1};
  ASSERT_EQ(qp->post_recv(1, {&wrong, 1}), 0);
  EXPECT_EQ(deliver(), Delivery::kTaken);
  EXPECT_EQ(next(recv_cq).status, WcStatus::kLocProtErr);
  EXPECT_EQ(memory.data()[0], std::byte{'a'});
}

TEST_F(Datagrams, AnotherQkeyIsRefused) {
  ready();
  ASSERT_EQ(receive(1), 0);
  DatagramHeader made = header("hello");
  for (const uint32_t qkey : {0u, kQkey + 1, kQkey | 0x80000000}) {
    made.qkey = qkey;
    EXPECT_EQ(deliver(made, "hello"), Delivery::kDropped);
  }
  EXPECT_TRUE(none(recv_cq));
  EXPECT_EQ(slot.receive.refused.get(), 3u);
  EXPECT_EQ(deliver(), Delivery::kTaken);
}

TEST_F(Datagrams, ReceivesInEachState) {
  EXPECT_EQ(receive(0), EINVAL);
  to(QpState::kInit);
  qp->set_qkey(kQkey);
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(receive(id), 0);
  EXPECT_EQ(deliver(), Delivery::kDropped);
  for (const QpState state : {QpState::kRtr, QpState::kRts, QpState::kSqd}) {
    to(state);
    EXPECT_EQ(deliver(), Delivery::kTaken);
  }
  qp->to_error();
  EXPECT_EQ(deliver(), Delivery::kDropped);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(recv_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(next(recv_cq).status, WcStatus::kWrFlushErr);
  ASSERT_EQ(receive(9), 0);
  EXPECT_EQ(next(recv_cq).status, WcStatus::kWrFlushErr);
}

TEST_F(Datagrams, ASolicitedOneWakes) {
  struct Notifier : CompletionNotifier {
    void completion_event() override { ++told; }
    void completion_overrun() override {}
    int told = 0;
  } notifier;
  CompletionQueue cq{16, &notifier};
  QpConfig config = qp->config();
  config.recv_cq = &cq;
  qp = std::make_unique<DatagramQueuePair>(config);
  ready();
  ASSERT_EQ(receive(1), 0);
  ASSERT_EQ(receive(2), 0);
  ASSERT_FALSE(cq.arm(true));  // the queue is still empty
  EXPECT_EQ(deliver(), Delivery::kTaken);
  EXPECT_EQ(notifier.told, 0);
  DatagramHeader made = header("hello");
  made.flags = DatagramHeader::kSolicited;
  EXPECT_EQ(deliver(made, "hello"), Delivery::kTaken);
  EXPECT_EQ(notifier.told, 1);
}

// --- Waiting for a receive

TEST_F(Datagrams, GraceIsGivenOncePerPost) {
  ready();
  EXPECT_EQ(deliver(), Delivery::kNoReceive);
  EXPECT_TRUE(qp->claim_grace());
  EXPECT_FALSE(qp->claim_grace());
  ASSERT_EQ(receive(1), 0);
  EXPECT_TRUE(qp->claim_grace());
  qp->count_drop();
  EXPECT_EQ(slot.receive.dropped.get(), 1u);
}

TEST_F(Datagrams, HoldersAreNotifiedOfTheNextReceive) {
  ready();
  const auto a = std::make_shared<Holder>(), b = std::make_shared<Holder>(),
             c = std::make_shared<Holder>();
  EXPECT_TRUE(qp->wait_for_receive(a));
  EXPECT_TRUE(qp->wait_for_receive(b));
  EXPECT_TRUE(qp->wait_for_receive(c));
  EXPECT_TRUE(qp->stop_waiting(*b));
  EXPECT_FALSE(qp->stop_waiting(*b));
  ASSERT_EQ(receive(1), 0);
  EXPECT_EQ(a->told, 1);
  EXPECT_EQ(b->told, 0);
  EXPECT_EQ(c->told, 1);
  EXPECT_FALSE(qp->stop_waiting(*a));
  EXPECT_FALSE(qp->wait_for_receive(a));  // a receive is posted
  ASSERT_EQ(receive(2), 0);
  EXPECT_EQ(a->told, 1);
  EXPECT_EQ(a.use_count(), 1);
  EXPECT_EQ(b.use_count(), 1);
}

TEST_F(Datagrams, NothingIsHeldForAQueuePairThatTakesNothing) {
  const auto holder = std::make_shared<Holder>();
  EXPECT_FALSE(qp->wait_for_receive(holder));
  to(QpState::kInit);
  EXPECT_FALSE(qp->wait_for_receive(holder));
  ready();
  EXPECT_TRUE(qp->wait_for_receive(holder));
  qp->to_error();
  EXPECT_EQ(holder->told, 1);
  EXPECT_FALSE(qp->wait_for_receive(holder));
  qp->to_reset();
  EXPECT_EQ(holder->told, 1);
  ready();
  EXPECT_TRUE(qp->wait_for_receive(holder));
  qp->to_reset();
  EXPECT_EQ(holder->told, 2);
  EXPECT_FALSE(qp->wait_for_receive(holder));
  EXPECT_EQ(holder.use_count(), 1);
}

// --- A shared receive queue

struct SharedDatagrams : Datagrams {
  SharedDatagrams() {
    QpConfig config = qp->config();
    config.srq = &srq;
    qp = std::make_unique<DatagramQueuePair>(config);
  }
  ~SharedDatagrams() override { qp = nullptr; }
  SharedReceiveQueue srq{4, 1};
};

TEST_F(SharedDatagrams, ReceivesComeFromTheSharedQueue) {
  ready();
  EXPECT_EQ(receive(1), EINVAL);
  EXPECT_EQ(deliver(), Delivery::kNoReceive);
  EXPECT_FALSE(qp->claim_grace());
  const Sge one = sge(8000, 100);
  ASSERT_EQ(srq.post(4, {&one, 1}), 0);
  EXPECT_EQ(deliver(), Delivery::kTaken);
  EXPECT_EQ(next(recv_cq).wr_id, 4u);
  ASSERT_EQ(srq.post(5, {&one, 1}), 0);
  qp->to_error();
  EXPECT_TRUE(none(recv_cq));  // the receive belongs to no queue pair
  EXPECT_EQ(deliver(), Delivery::kDropped);
  EXPECT_FALSE(srq.empty());
}

// --- A completion queue that is full

TEST_F(Datagrams, AnOverrunOfReceivesEndsTheQueuePair) {
  CompletionQueue small{1, nullptr};
  QpConfig config = qp->config();
  config.recv_cq = &small;
  qp = std::make_unique<DatagramQueuePair>(config);
  ready();
  for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(receive(id), 0);
  while (qp->state() == QpState::kRts) ASSERT_EQ(deliver(), Delivery::kTaken);
  EXPECT_EQ(qp->state(), QpState::kErr);
  EXPECT_EQ(events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(deliver(), Delivery::kDropped);
  ASSERT_EQ(send(5), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kWrFlushErr);
}

TEST_F(Datagrams, AnOverrunOfSendsEndsTheQueuePair) {
  CompletionQueue small{1, nullptr};
  QpConfig config = qp->config();
  config.send_cq = &small;
  qp = std::make_unique<DatagramQueuePair>(config);
  ready();
  path->room = 2;
  for (uint64_t id = 0; id < 6; ++id) ASSERT_EQ(send(id), 0);
  path->room = 9;
  go_on();
  EXPECT_EQ(qp->state(), QpState::kErr);
  EXPECT_EQ(events, std::vector{QpEvent::kFatal});
  EXPECT_EQ(blocked_on(), nullptr);
  EXPECT_LT(path->went.size(), 6u);
  EXPECT_EQ(path.use_count(), 1);
}

// --- UWARP_FAULT

TEST_F(Datagrams, AreLostAsAskedFor) {
  make("lose every=2");
  ready();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(send(id, id, 1), 0);
  ASSERT_EQ(path->went.size(), 2u);
  EXPECT_EQ(path->went[0].payload, "b");
  EXPECT_EQ(path->went[1].payload, "d");
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
}

TEST_F(Datagrams, GoTwiceAsAskedFor) {
  make("duplicate nth=2");
  ready();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(send(id, id, 1), 0);
  ASSERT_EQ(path->went.size(), 4u);
  EXPECT_EQ(path->went[1].payload + path->went[2].payload, "cc");
}

TEST_F(Datagrams, GoBehindTheNextAsAskedFor) {
  make("reorder nth=1");
  ready();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(send(id, id, 1), 0);
  ASSERT_EQ(path->went.size(), 3u);
  EXPECT_EQ(path->went[0].payload + path->went[1].payload + path->went[2].payload, "cbd");
}

TEST_F(Datagrams, AreLostOrDoubledOnArrivalAsAskedFor) {
  make("lose op=recv nth=1; duplicate op=recv nth=2");
  ready();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(receive(id), 0);
  EXPECT_EQ(deliver("one"), Delivery::kDropped);
  EXPECT_EQ(slot.receive.dropped.get(), 1u);
  EXPECT_EQ(deliver("two"), Delivery::kTaken);
  EXPECT_EQ(deliver("three"), Delivery::kTaken);
  EXPECT_EQ(next(recv_cq).byte_len, kRoute + 3);
  EXPECT_EQ(next(recv_cq).byte_len, kRoute + 3);
  EXPECT_EQ(next(recv_cq).byte_len, kRoute + 5);
  EXPECT_TRUE(none(recv_cq));
}

TEST_F(Datagrams, WhatWaitsBehindOneThatFailsIsFlushed) {
  make("wc-error status=LOC_QP_OP_ERR nth=2");
  ready();
  path->room = 0;
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(send(id), 0);
  path->room = 10;
  go_on();
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(next(send_cq).status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(next(send_cq).status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(none(send_cq));
}

TEST_F(Datagrams, FailAsAskedFor) {
  make("wc-error status=LOC_QP_OP_ERR nth=2");
  ready();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(send(id), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
  EXPECT_EQ(next(send_cq).status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(next(send_cq).status, WcStatus::kWrFlushErr);
  EXPECT_EQ(qp->state(), QpState::kSqe);
  to(QpState::kRts);
  ASSERT_EQ(send(4), 0);
  EXPECT_EQ(next(send_cq).status, WcStatus::kSuccess);
}

}  // namespace
}  // namespace uwarp::sim
