// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pairs that connect without rdma_cm, over real sockets on loopback.
#include "connect/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <stop_token>
#include <thread>

#include "connect/rendezvous_port.h"
#include "protocol/mpa/handshake.h"
#include "unit/connect/node.h"

namespace uwarp {
namespace {

using namespace std::chrono_literals;

void expect_traffic(Node& a, Node& b, bool polling = true) {
  std::memset(b.memory.data(), 0, 8192);
  std::memcpy(a.memory.data(), "over the wire", 13);
  ASSERT_EQ(b.post_recv(7, 4096, 64), 0);
  ASSERT_EQ(a.post_send(8, 0, 13), 0);
  const WorkCompletion sent = polling ? a.wait_polling() : a.wait_passive();
  EXPECT_EQ(sent.wr_id, 8u);
  EXPECT_EQ(sent.status, WcStatus::kSuccess);
  const WorkCompletion received = polling ? b.wait_polling() : b.wait_passive();
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(received.byte_len, 13u);
  EXPECT_EQ(std::memcmp(b.memory.data() + 4096, "over the wire", 13), 0);
}

void connect(Node& a, Node& b) {
  for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(b.rts(), 0);
}

TEST(Rendezvous, BothReadyBeforeTheFirstRequest) {
  Node a, b;
  ASSERT_NO_FATAL_FAILURE(connect(a, b));
  expect_traffic(a, b);
  expect_traffic(b, a);
  expect_traffic(a, b, false);
  EXPECT_TRUE(a.events().empty());
  EXPECT_TRUE(b.events().empty());
}

TEST(Rendezvous, OneSideStaysInRtr) {
  for (const bool a_dials : {true, false}) {
    Node first, second;
    Node& a = a_dials ? first : second;
    Node& b = a_dials ? second : first;
    ASSERT_EQ(a.init(), 0);
    ASSERT_EQ(b.init(), 0);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    expect_traffic(a, b);
    EXPECT_EQ(b.state(), QpState::kRtr) << "in the state that the application has set";
    ASSERT_EQ(b.rts(), 0);
    EXPECT_EQ(b.state(), QpState::kRts);
    expect_traffic(b, a);
  }
}

TEST(Rendezvous, OneSideWaitsInSqd) {
  Node a, b;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(b.init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(a.move(QpState::kSqd), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(b.rts(), 0);
  ASSERT_TRUE(eventually([&] { return a.endpoint->connected() && b.endpoint->connected(); }));
  EXPECT_EQ(a.state(), QpState::kSqd);
  expect_traffic(b, a);
  ASSERT_EQ(a.move(QpState::kRts), 0);
  expect_traffic(a, b);
}

// The event is only for queue pairs in RTR that get the peer's first message.
TEST(Rendezvous, NoCommunicationEstablishedInRts) {
  Node a, b;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(b.init(), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_TRUE(eventually([&] { return a.endpoint->connected() && b.endpoint->connected(); }));
  ASSERT_EQ(b.rts(), 0);
  expect_traffic(a, b);
  EXPECT_EQ(b.communication_established, 0);
}

TEST(Rendezvous, CallsAreHeldBelowRtrAndRequestsWait) {
  for (const bool listens_first : {true, false}) {
    Node a, b;
    ASSERT_EQ(a.init(), 0);
    if (listens_first) {
      ASSERT_EQ(b.init(), 0);
    }
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    std::memcpy(a.memory.data(), "early", 5);
    ASSERT_EQ(a.post_send(1, 0, 5), 0);
    std::this_thread::sleep_for(100ms);
    if (!listens_first) {
      ASSERT_EQ(b.init(), 0);
    }
    ASSERT_EQ(b.post_recv(2, 0, 64), 0);
    std::this_thread::sleep_for(20ms);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    EXPECT_EQ(b.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(a.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(b.memory.data(), "early", 5), 0);
  }
}

TEST(Rendezvous, ReadsAndWritesBothWays) {
  Node a, b;
  for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(b.rts(), 0);
  ASSERT_EQ(a.rts(), 0);
  for (size_t i = 0; i < 200'000; ++i) a.memory[i] = static_cast<std::byte>(i * 7);
  ASSERT_EQ(a.post_rdma(SendOpcode::kWrite, 1, 0, 200'000, b, 1000), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  ASSERT_EQ(a.post_rdma(SendOpcode::kRead, 2, 200'000, 50'000, b, 1000), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  // A receive completion at the target shows that the Writes before it are in memory.
  ASSERT_EQ(b.post_recv(3, 0, 0), 0);
  ASSERT_EQ(a.post_send(4, 0, 0), 0);
  EXPECT_EQ(b.wait_polling().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data() + 1000, 200'000), 0);
  EXPECT_EQ(std::memcmp(a.memory.data(), a.memory.data() + 200'000, 50'000), 0);
}

TEST(Rendezvous, BothDialAtTheSameTimeManyTimes) {
  for (int round = 0; round < 50; ++round) {
    Node a, b;
    for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
    const auto connect = [](Node& self, Node& peer) {
      ASSERT_EQ(self.rtr(peer.endpoint->number()), 0);
      ASSERT_EQ(self.rts(), 0);
    };
    std::thread other([&] { connect(b, a); });
    connect(a, b);
    other.join();
    expect_traffic(a, b);
    expect_traffic(b, a);
    if (HasFailure()) FAIL() << "in round " << round;
  }
}

TEST(Rendezvous, ToItself) {
  Node a;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(a.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(a.post_recv(1, 4096, 64), 0);
  std::memcpy(a.memory.data(), "to myself", 9);
  ASSERT_EQ(a.post_send(2, 0, 9), 0);
  bool sent = false, received = false;
  for (int i = 0; i < 2; ++i) {
    const WorkCompletion done = a.wait_polling();
    EXPECT_EQ(done.status, WcStatus::kSuccess);
    (done.wr_id == 1 ? received : sent) = true;
  }
  EXPECT_TRUE(sent && received);
  EXPECT_EQ(std::memcmp(a.memory.data() + 4096, "to myself", 9), 0);
  ASSERT_EQ(a.post_rdma(SendOpcode::kRead, 3, 8192, 9, a, 0), 0);
  EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(a.memory.data() + 8192, "to myself", 9), 0);
}

TEST(Rendezvous, ThePeerNeverAnswers) {
  Node a;
  uint32_t nowhere;
  {
    Node gone;
    nowhere = gone.endpoint->number().value;
  }
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(a.rtr(Qpn{nowhere}), 0);
  ASSERT_EQ(a.rts(1), 0);
  EXPECT_EQ(a.state(), QpState::kRts);
  ASSERT_EQ(a.post_recv(1, 0, 8), 0);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  ASSERT_EQ(a.post_send(3, 0, 8), 0);
  // Both queues share a completion queue here; the completion with the reason comes first.
  EXPECT_EQ(a.wait_passive().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(a.wait_passive().status, WcStatus::kWrFlushErr);
  EXPECT_EQ(a.wait_passive().status, WcStatus::kWrFlushErr);
  EXPECT_EQ(a.state(), QpState::kErr);
}

// TCP has brought the call to a process that does not serve it: there an adapter's own processor
// would. It waits beyond the queue pair's timeout and its least, 5 s.
TEST(Rendezvous, APeerWithoutAProcessorIsWaitedFor) {
  Node a;
  const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(peer, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(getsockname(peer, reinterpret_cast<sockaddr*>(&at), &size), 0);
  ASSERT_EQ(listen(peer, 1), 0);
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(a.rtr(Qpn{uint32_t{ntohs(at.sin_port)} << 8}), 0);
  ASSERT_EQ(a.rts(1), 0);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  std::this_thread::sleep_for(6s);
  EXPECT_EQ(a.state(), QpState::kRts) << "it has not given up";
  close(peer);  // with the call that waits in it, which is reset
  EXPECT_EQ(a.wait_passive().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(a.state(), QpState::kErr);
}

// A queue pair in INIT holds a call for a while only, as its application may never go on.
TEST(Rendezvous, APeerThatStaysInInitIsGivenUp) {
  Node a, b;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(b.init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(a.rts(1), 0);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  EXPECT_EQ(a.wait_passive().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(a.state(), QpState::kErr);
}

TEST(Rendezvous, WrongPsnIsRefused) {
  Node a, b;
  for (Node* node : {&a, &b}) ASSERT_EQ(node->init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number(), 0x777777), 0);
  ASSERT_EQ(a.rts(1), 0);
  ASSERT_EQ(a.post_send(1, 0, 8), 0);
  EXPECT_EQ(a.wait_passive().status, WcStatus::kRetryExcErr);
  EXPECT_EQ(b.state(), QpState::kRtr);
}

/// A hand-made call, from any address of this machine.
class HandMadeCall {
 public:
  HandMadeCall(const char* from, const RendezvousCall& call)
      : HandMadeCall(from, call.target, call.encode()) {}
  HandMadeCall(const char* from, Qpn target, std::vector<std::byte> private_data)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage own{}, peer{};
    (void)IpAddress::from_string(from).value().to_sockaddr(own, 0);
    (void)loopback_device().gids[0].to_sockaddr(peer, port_of_number(target));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(sockaddr_in)), 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&peer), sizeof(sockaddr_in)), 0);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    MpaInitiator::Config config;
    config.private_data = private_data;
    initiator_.emplace(config);
    const auto request = initiator_->request();
    EXPECT_EQ(send(fd_, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  }
  ~HandMadeCall() { ::close(fd_); }
  HandMadeCall(const HandMadeCall&) = delete;
  HandMadeCall& operator=(const HandMadeCall&) = delete;

  bool readable() const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, 0) == 1;
  }
  /// The target's verdict; none if it sends nothing or something else.
  std::optional<RendezvousVerdict> verdict() {
    MpaInitiator::Verdict verdict;
    while (verdict.state == MpaInitiator::State::kNeedMore) {
      std::byte byte;
      if (recv(fd_, &byte, 1, 0) != 1) return std::nullopt;
      verdict = initiator_->on_bytes({&byte, 1});
    }
    const auto answer = RendezvousAnswer::decode(initiator_->private_data());
    return answer ? std::optional(answer->verdict) : std::nullopt;
  }

 private:
  const int fd_;
  std::optional<MpaInitiator> initiator_;
};

// docs/security.md: which calls may take the place of the expected peer.
TEST(Rendezvous, OnlyTheExpectedPeerIsTaken) {
  Node target;
  const Qpn own = target.endpoint->number();
  const Qpn peer{own.value ^ 0x100};
  const RendezvousCall right{.source = peer, .target = own, .psn = 0x123456};
  ASSERT_EQ(target.init(), 0);
  ASSERT_EQ(target.rtr(peer), 0);
  RendezvousCall wrong = right;
  wrong.source = Qpn{peer.value ^ 1};
  EXPECT_EQ(HandMadeCall("127.0.0.1", wrong).verdict(), RendezvousVerdict::kNotExpected);
  wrong = right;
  wrong.psn ^= 1;
  EXPECT_EQ(HandMadeCall("127.0.0.1", wrong).verdict(), RendezvousVerdict::kNotExpected);
  wrong = right;
  wrong.transport = Transport::kUc;
  EXPECT_EQ(HandMadeCall("127.0.0.1", wrong).verdict(), RendezvousVerdict::kNotExpected);
  EXPECT_EQ(HandMadeCall("127.0.0.2", right).verdict(), RendezvousVerdict::kNotExpected);
  wrong = right;
  wrong.target = Qpn{own.value ^ 1};
  EXPECT_EQ(HandMadeCall("127.0.0.1", wrong).verdict(), RendezvousVerdict::kNoSuchQp);
  HandMadeCall expected("127.0.0.1", right);
  EXPECT_EQ(expected.verdict(), RendezvousVerdict::kAccepted);
  EXPECT_EQ(HandMadeCall("127.0.0.1", right).verdict(), RendezvousVerdict::kBusy);
}

// docs/wire.md: what a later uwarp may send to this one.
TEST(Rendezvous, OldAgainstNew) {
  Node target;
  const Qpn own = target.endpoint->number();
  const Qpn peer{own.value ^ 0x100};
  ASSERT_EQ(target.init(), 0);
  ASSERT_EQ(target.rtr(peer), 0);
  auto call = RendezvousCall{.source = peer, .target = own, .psn = 0x123456}.encode();
  call[20] = std::byte{0xff};  // capabilities that are not defined yet
  call[23] = std::byte{0xfe};
  call.resize(64, std::byte{0xee});  // and new fields
  auto later = call;
  later[4] = std::byte{2};
  EXPECT_EQ(HandMadeCall("127.0.0.1", own, later).verdict(), RendezvousVerdict::kUnknownVersion);
  HandMadeCall expected("127.0.0.1", own, call);
  EXPECT_EQ(expected.verdict(), RendezvousVerdict::kAccepted);
}

TEST(Rendezvous, FewCallsAreHeld) {
  Node target;
  const Qpn own = target.endpoint->number();
  const RendezvousCall call{.source = Qpn{own.value ^ 0x100}, .target = own, .psn = 0x123456};
  ASSERT_EQ(target.init(), 0);
  std::vector<std::unique_ptr<HandMadeCall>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(std::make_unique<HandMadeCall>("127.0.0.1", call));
  int refused = 0;
  ASSERT_TRUE(eventually([&] {
    refused = 0;
    for (const auto& one : calls) refused += one->readable();
    return refused > 0;
  }));
  EXPECT_EQ(refused, 1);
  for (const auto& one : calls) {
    if (one->readable()) {
      EXPECT_EQ(one->verdict(), RendezvousVerdict::kTooMany);
    }
  }
}

/// A process that calls with guessed PSNs, as fast as it is answered.
class Guesser {
 public:
  Guesser(Qpn target, Qpn source)
      : thread_([=, this](const std::stop_token& stop) {
          for (uint32_t psn = 1; !stop.stop_requested(); ++psn) {
            HandMadeCall call("127.0.0.1", {.source = source, .target = target, .psn = psn});
            const auto verdict = call.verdict();
            if (verdict == RendezvousVerdict::kNotExpected) ++judged;
            ++made;
          }
        }) {}
  std::atomic<int> made{0}, judged{0};

 private:
  std::jthread thread_;
};

// docs/security.md: the rate at which a PSN can be guessed.
TEST(Rendezvous, WrongCallsAreRateLimited) {
  Node target;
  const Qpn own = target.endpoint->number();
  const Qpn peer{own.value ^ 0x100};
  ASSERT_EQ(target.init(), 0);
  ASSERT_EQ(target.rtr(peer), 0);
  const uint64_t start = now_ns();
  std::vector<std::unique_ptr<HandMadeCall>> calls;
  for (uint32_t psn = 1; psn <= 200; ++psn)
    calls.push_back(std::make_unique<HandMadeCall>(
        "127.0.0.1", RendezvousCall{.source = peer, .target = own, .psn = psn}));
  int judged = 0, too_many = 0;
  for (const auto& call : calls) {
    const auto verdict = call->verdict();
    judged += verdict == RendezvousVerdict::kNotExpected;
    too_many += verdict == RendezvousVerdict::kTooMany;
  }
  EXPECT_EQ(judged + too_many, 200);
  EXPECT_GE(judged, static_cast<int>(Rendezvous::kWrongCalls));
  // The limit holds however long the loop has taken.
  const uint64_t intervals = (now_ns() - start) / Rendezvous::kWrongCallNs;
  EXPECT_LE(judged, static_cast<int>(Rendezvous::kWrongCalls + intervals + 1));
  // The right call waits for its turn.
  HandMadeCall expected("127.0.0.1", {.source = peer, .target = own, .psn = 0x123456});
  EXPECT_EQ(expected.verdict(), RendezvousVerdict::kAccepted);
}

TEST(Rendezvous, WrongCallsDoNotDelayOtherQueuePairs) {
  Node guessed, honest;
  ASSERT_EQ(guessed.init(), 0);
  ASSERT_EQ(guessed.rtr(honest.endpoint->number()), 0);
  const Guesser guesser(guessed.endpoint->number(), honest.endpoint->number());
  ASSERT_TRUE(eventually([&] { return guesser.made > static_cast<int>(Rendezvous::kWrongCalls); }));
  for (int i = 0; i < 5; ++i) {
    Node a, b;
    ASSERT_NO_FATAL_FAILURE(connect(a, b));
    expect_traffic(a, b);
  }
  // The peer itself is not disturbed either; its call waits behind one guess.
  ASSERT_EQ(honest.init(), 0);
  ASSERT_EQ(honest.rtr(guessed.endpoint->number()), 0);
  ASSERT_EQ(honest.rts(), 0);
  expect_traffic(honest, guessed);
}

TEST(Rendezvous, OtherAddressesDoNotUseUpTheCallsOfThePeer) {
  Node target;
  const Qpn own = target.endpoint->number();
  const RendezvousCall right{.source = Qpn{own.value ^ 0x100}, .target = own, .psn = 0x123456};
  ASSERT_EQ(target.init(), 0);
  ASSERT_EQ(target.rtr(right.source), 0);
  for (uint32_t i = 0; i < 4 * Rendezvous::kWrongCalls; ++i) {
    EXPECT_EQ(HandMadeCall("127.0.0.2", right).verdict(), RendezvousVerdict::kNotExpected);
  }
  RendezvousCall wrong = right;
  wrong.psn ^= 1;
  for (uint32_t i = 0; i < Rendezvous::kWrongCalls - 1; ++i) {
    EXPECT_EQ(HandMadeCall("127.0.0.1", wrong).verdict(), RendezvousVerdict::kNotExpected);
  }
  EXPECT_EQ(HandMadeCall("127.0.0.1", right).verdict(), RendezvousVerdict::kAccepted);
}

TEST(Rendezvous, StopWithCallsThatWait) {
  Node target;
  const Qpn own = target.endpoint->number();
  const RendezvousCall wrong{.source = Qpn{own.value ^ 0x100}, .target = own, .psn = 1};
  ASSERT_EQ(target.init(), 0);
  ASSERT_EQ(target.rtr(wrong.source), 0);
  std::vector<std::unique_ptr<HandMadeCall>> calls;
  for (uint32_t i = 0; i < Rendezvous::kWrongCalls + 3; ++i)
    calls.push_back(std::make_unique<HandMadeCall>("127.0.0.1", wrong));
  EXPECT_TRUE(calls.front()->verdict().has_value());
  ASSERT_EQ(target.move(QpState::kErr), 0);
  for (size_t i = 1; i < calls.size(); ++i) EXPECT_TRUE(calls[i]->verdict().has_value()) << i;
}

TEST(Rendezvous, AnEndInOrderIsSilent) {
  Node a;
  std::chrono::steady_clock::time_point end;
  {
    Node b;
    ASSERT_NO_FATAL_FAILURE(connect(a, b));
    expect_traffic(a, b);
    ASSERT_EQ(a.post_recv(1, 0, 8), 0);
    end = std::chrono::steady_clock::now();
  }
  std::this_thread::sleep_for(50ms);
  WorkCompletion none;
  EXPECT_FALSE(a.poll(none)) << "no flush";
  EXPECT_TRUE(a.events().empty()) << "no event";
  EXPECT_EQ(a.state(), QpState::kRts);
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  const WorkCompletion first = a.wait_polling(), second = a.wait_polling();
  EXPECT_TRUE(first.status == WcStatus::kRetryExcErr || second.status == WcStatus::kRetryExcErr);
  EXPECT_GE(std::chrono::steady_clock::now() - end, 100ms) << "as if it had been repeated";
  EXPECT_EQ(a.state(), QpState::kErr);
}

// The peer has closed, and a request is sent before any thread here has read the end.
TEST(Rendezvous, AResetBehindTheEndIsReported) {
  Node a;
  std::optional<HandoffLock::Turn> turn;
  {
    Node b;
    ASSERT_NO_FATAL_FAILURE(connect(a, b));
    expect_traffic(a, b);
    ASSERT_EQ(a.post_recv(1, 0, 8), 0);
    ASSERT_TRUE(eventually([&] {
      turn.emplace(a.endpoint->qp().receive_side().try_begin());
      return bool{*turn};
    }));
  }
  ASSERT_EQ(a.post_send(2, 0, 8), 0);
  // The FIN has come before the post, and by now the reset that answers the post.
  std::this_thread::sleep_for(50ms);
  (void)turn->end();
  (void)a.endpoint->stream().poll();
  EXPECT_EQ(a.wait_passive().wr_id, 2u) << "the socket took it";
  const WorkCompletion flushed = a.wait_passive();
  EXPECT_EQ(flushed.wr_id, 1u);
  EXPECT_EQ(flushed.status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(eventually([&] { return a.events() == std::vector{QpEvent::kFatal}; }));
  EXPECT_EQ(a.state(), QpState::kErr);
}

TEST(Rendezvous, DestroyInEveryState) {
  for (int depth = 0; depth < 4; ++depth) {
    Node a, b;
    if (depth >= 1) {
      ASSERT_EQ(a.init(), 0);
    }
    if (depth >= 2) {
      ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    }
    if (depth >= 3) {
      ASSERT_EQ(a.rts(), 0);
    }
    a.endpoint->destroy();
    a.endpoint->destroy();
    EXPECT_EQ(a.engine.endpoints().find(a.endpoint->number()), nullptr);
    EXPECT_EQ(a.init(), EINVAL);
  }
}

TEST(Rendezvous, ResetAndConnectAgain) {
  Node a, b;
  for (int round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(connect(a, b));
    expect_traffic(a, b);
    expect_traffic(b, a);
    for (Node* node : {&a, &b}) ASSERT_EQ(node->move(QpState::kReset), 0);
    EXPECT_EQ(a.state(), QpState::kReset);
  }
}

TEST(Rendezvous, ManyQueuePairsOfOneProcess) {
  constexpr int kPairs = 150;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 2 * kPairs; ++i) nodes.push_back(std::make_unique<Node>(4, 4));
  for (auto& node : nodes) ASSERT_EQ(node->init(), 0);
  for (int i = 0; i < kPairs; ++i) {
    ASSERT_EQ(nodes[2 * i]->rtr(nodes[2 * i + 1]->endpoint->number()), 0);
    ASSERT_EQ(nodes[2 * i + 1]->rtr(nodes[2 * i]->endpoint->number()), 0);
  }
  for (auto& node : nodes) ASSERT_EQ(node->rts(), 0);
  for (int i = 0; i < kPairs; ++i) {
    expect_traffic(*nodes[2 * i], *nodes[2 * i + 1]);
    expect_traffic(*nodes[2 * i + 1], *nodes[2 * i]);
    if (HasFailure()) FAIL() << "pair " << i;
  }
}

TEST(RendezvousMessage, RoundTripAndRefusals) {
  RendezvousCall call{.source = Qpn{0x123456},
                      .target = Qpn{0xABCDEF},
                      .transport = Transport::kUc,
                      .psn = 0x654321};
  const auto bytes = call.encode();
  ASSERT_EQ(bytes.size(), RendezvousCall::kWireSize);
  const auto decoded = RendezvousCall::decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->source, call.source);
  EXPECT_EQ(decoded->target, call.target);
  EXPECT_EQ(decoded->transport, call.transport);
  EXPECT_EQ(decoded->psn, call.psn);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(RendezvousCall::decode(std::span(bytes).first(size)).has_value());
  auto longer = bytes;
  longer.resize(40);
  EXPECT_TRUE(RendezvousCall::decode(longer).has_value()) << "room for a later version's fields";
  auto newer = bytes;
  newer[4] = std::byte{2};
  EXPECT_FALSE(RendezvousCall::decode(newer).has_value());
  RendezvousAnswer answer;
  answer.verdict = RendezvousVerdict::kCollision;
  auto later = answer.encode();
  EXPECT_EQ(RendezvousAnswer::decode(later)->verdict, RendezvousVerdict::kCollision);
  // A later version's answer has its verdict on this version's call in the same place.
  later[4] = std::byte{2};
  later[5] = static_cast<std::byte>(RendezvousVerdict::kUnknownVersion);
  later.resize(40, std::byte{0xee});
  EXPECT_EQ(RendezvousAnswer::decode(later)->verdict, RendezvousVerdict::kUnknownVersion);
}

}  // namespace
}  // namespace uwarp
