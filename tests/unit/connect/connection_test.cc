// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connections as rdma_cm makes them: between two endpoints, and with hand-made MPA peers on plain
// sockets.
#include "connect/connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/bytes.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/control_writes.h"
#include "unit/connect/node.h"
#include "unit/one_core.h"

namespace uwarp {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

ConnectParameters parameters(std::string_view private_data = {}, uint16_t depth = 4) {
  ConnectParameters made;
  made.initiator_depth = made.responder_resources = depth;
  made.private_data = bytes_of(private_data);
  return made;
}

/// Moves a queue pair to INIT as rdma_create_qp() does.
void cm_init(Node& node) { ASSERT_EQ(node.endpoint->init_for_cm(), 0); }

uint16_t port_of(const sockaddr_storage& address) {
  return uwarp::port_of(reinterpret_cast<const sockaddr*>(&address));
}

/// Two endpoints and the events of their owners.
class ConnectedPair : public ::testing::Test {
 protected:
  void SetUp() override {
    cm_init(active);
    cm_init(passive);
    auto bound = bind_port(loopback_address(), {});
    ASSERT_TRUE(bound.ok());
    auto started = Listener::start(engine().context(), *bound, requests);
    ASSERT_TRUE(started.ok());
    listener = std::move(*started);
  }
  void TearDown() override {
    listener->close();
    if (client) client->abort();
    if (server) server->abort();
  }
  Engine& engine() { return Engine::instance(); }

  void dial(ConnectParameters offered, uint32_t timeout_ms = 0) {
    Connection::ConnectOptions options;
    options.remote = listener->local_address();
    options.timeout_ms = timeout_ms;
    auto made = Connection::connect(engine().context(), active.endpoint, std::move(options),
                                    std::move(offered), client_owner);
    ASSERT_TRUE(made.ok());
    client = std::move(*made);
  }
  void establish() {
    dial(parameters("hello"));
    server = requests->take();
    ASSERT_NE(server, nullptr);
    ASSERT_EQ(server->accept(passive.endpoint, parameters("world"), server_owner), 0);
    ASSERT_TRUE(eventually(
        [&] { return client_owner->established == 1 && server_owner->established == 1; }));
  }

  Node active, passive;
  std::shared_ptr<RecordingListener> requests = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingOwner> client_owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<RecordingOwner> server_owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Connection> client, server;
};

/// A stream on `own` core knows that what was sent on that core comes from there.
bool knows_where_the_peer_is(const Stream& stream, int own) {
  if (stream.peer_elsewhere()) return false;
  for (const int other : usable_cores()) {
    const OneCore place(other);
    if (stream.peer_elsewhere() != (other != own)) return false;
  }
  return true;
}

// The helper thread moves to the core of the thread that wakes it, and a poller with one core gives
// it to a peer that needs it, with every carrier.
TEST_F(ConnectedPair, KnowsFromWhichCoreThePeerSent) {
  establish();
  const auto send_one = [&] {
    ASSERT_EQ(passive.post_recv(1, 0, 8), 0);
    ASSERT_EQ(active.post_send(2, 0, 8), 0);
    EXPECT_EQ(passive.wait_passive().wr_id, 1u);
    EXPECT_EQ(active.wait_passive().wr_id, 2u);
  };
  const auto check_each_core = [&] {
    for (const int core : usable_cores()) {
      const OneCore place(core);
      // A timer of TCP may send from another core in between.
      EXPECT_TRUE(eventually([&] {
        send_one();
        return server->waker_core() == core &&
               knows_where_the_peer_is(passive.endpoint->stream(), core);
      }));
    }
  };
  ASSERT_FALSE(passive.endpoint->stream().on_ring());
  check_each_core();
  for (int i = 0; i < 1000 && !passive.endpoint->stream().on_ring(); ++i) send_one();
  ASSERT_TRUE(passive.endpoint->stream().on_ring());
  ASSERT_TRUE(eventually([&] { return active.endpoint->stream().on_ring(); }));
  check_each_core();
}

// Proves: 5044-7.1.2-d 6581-6-d 6581-9.1-g
TEST_F(ConnectedPair, PrivateDataAndDepthsReachBothSides) {
  std::string longest;
  for (int i = 0; i < 255; ++i) longest += static_cast<char>(i);
  dial(parameters(longest, 3));
  server = requests->take();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->request_parameters().private_data, bytes_of(longest));
  EXPECT_EQ(server->request_parameters().initiator_depth, 3);
  EXPECT_EQ(server->request_parameters().responder_resources, 3);
  EXPECT_EQ(port_of(server->local_address()), port_of(listener->local_address()));
  EXPECT_EQ(client_owner->established, 0);
  ASSERT_EQ(server->accept(passive.endpoint, parameters(longest, 2), server_owner), 0);
  ASSERT_TRUE(
      eventually([&] { return client_owner->established == 1 && server_owner->established == 1; }));
  EXPECT_EQ(client_owner->parameters().private_data, bytes_of(longest));
  EXPECT_EQ(client_owner->parameters().responder_resources, 2) << "own ORD, cut to the peer's IRD";
  EXPECT_EQ(active.state(), QpState::kRts);
  EXPECT_EQ(passive.state(), QpState::kRts);
  EXPECT_EQ(port_of(client->local_address()), port_of(server->remote_address()));
}

TEST_F(ConnectedPair, ThePassiveSideMaySendFirst) {
  establish();
  std::memcpy(passive.memory.data(), "first", 5);
  ASSERT_EQ(active.post_recv(1, 0, 16), 0);
  ASSERT_EQ(passive.post_send(2, 0, 5), 0);
  EXPECT_EQ(active.wait_passive().status, WcStatus::kSuccess);
  EXPECT_EQ(passive.wait_passive().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(active.memory.data(), "first", 5), 0);
}

TEST_F(ConnectedPair, TheyRecogniseEachOther) {
  establish();
  EXPECT_TRUE(eventually([&] {
    return active.endpoint->qp().peer_is_uwarp() && passive.endpoint->qp().peer_is_uwarp();
  }));
}

TEST_F(ConnectedPair, LibrdmacmsOwnTransitionsAreHarmless) {
  establish();
  for (const QpState to : {QpState::kInit, QpState::kRtr}) {
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = static_cast<ibv_qp_state>(to);
    EXPECT_EQ(passive.endpoint->modify(attributes, 0x29), 0);
  }
  ibv_qp_attr attributes = initial_attributes();
  EXPECT_EQ(passive.endpoint->modify(attributes, IBV_QP_PORT), 0);
  EXPECT_EQ(passive.endpoint->modify(attributes, IBV_QP_MIN_RNR_TIMER), 0);
  EXPECT_EQ(passive.state(), QpState::kRts);
}

TEST_F(ConnectedPair, OrderlyDisconnectLosesNothing) {
  establish();
  constexpr int kMessages = 50;
  for (int i = 0; i < kMessages; ++i) ASSERT_EQ(passive.post_recv(i, 0, 4096), 0);
  for (int i = 0; i < kMessages; ++i) ASSERT_EQ(active.post_send(i, 0, 4096), 0);
  // As rdma_disconnect() does.
  EXPECT_EQ(active.move(QpState::kSqd), 0);
  EXPECT_EQ(client->disconnect(), 0);
  ASSERT_TRUE(eventually([&] { return client_owner->ended == 1 && server_owner->ended == 1; }));
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(active.wait_passive().status, WcStatus::kSuccess);
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(passive.wait_passive().status, WcStatus::kSuccess);
  EXPECT_EQ(active.state(), QpState::kErr);
  EXPECT_EQ(passive.state(), QpState::kErr);
  EXPECT_TRUE(active.events().empty());
  EXPECT_TRUE(passive.events().empty());
  EXPECT_EQ(client->disconnect(), 0);
  EXPECT_EQ(server->disconnect(), 0);
  EXPECT_EQ(active.move(QpState::kSqd), 0);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(client_owner->ended, 1);
  EXPECT_EQ(server_owner->ended, 1);
  EXPECT_EQ(client_owner->failed + server_owner->failed, 0);
}

TEST_F(ConnectedPair, DisconnectFlushesReceives) {
  establish();
  ASSERT_EQ(active.post_recv(1, 0, 16), 0);
  ASSERT_EQ(passive.post_recv(2, 0, 16), 0);
  EXPECT_EQ(server->disconnect(), 0);
  EXPECT_EQ(active.wait_passive().status, WcStatus::kWrFlushErr);
  EXPECT_EQ(passive.wait_passive().status, WcStatus::kWrFlushErr);
}

TEST_F(ConnectedPair, RejectCarriesPrivateData) {
  dial(parameters("may I?"));
  server = requests->take();
  ASSERT_NE(server, nullptr);
  ASSERT_EQ(server->reject(bytes_of("no")), 0);
  EXPECT_EQ(server->reject({}), EINVAL);
  EXPECT_EQ(server->accept(passive.endpoint, {}, server_owner), EINVAL);
  ASSERT_TRUE(eventually([&] { return client_owner->rejected == 1; }));
  EXPECT_EQ(client_owner->private_data(), bytes_of("no"));
  EXPECT_EQ(active.state(), QpState::kInit) << "may connect again";
}

TEST_F(ConnectedPair, DroppedAndRefusedRequestsAreRejected) {
  dial(parameters());
  requests->take().reset();
  ASSERT_TRUE(eventually([&] { return client_owner->rejected == 1; }));
  requests->refuse = true;
  dial(parameters());
  ASSERT_TRUE(eventually([&] { return client_owner->rejected == 2; }));
}

TEST_F(ConnectedPair, NoServerListens) {
  const sockaddr_storage where = listener->local_address();
  listener->close();
  Connection::ConnectOptions options;
  options.remote = where;
  auto made = Connection::connect(engine().context(), active.endpoint, std::move(options),
                                  parameters(), client_owner);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(eventually([&] { return client_owner->rejected == 1; }));
  EXPECT_EQ(client_owner->status, -ECONNREFUSED);
}

TEST_F(ConnectedPair, ThePeerLeavesBeforeTheReply) {
  dial(parameters());
  server = requests->take();
  ASSERT_NE(server, nullptr);
  client->abort();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(server->accept(passive.endpoint, parameters(), server_owner), ECONNRESET);
  EXPECT_EQ(client_owner->established + client_owner->rejected + client_owner->failed, 0);
}

TEST_F(ConnectedPair, AbortIsAnEndForThePeer) {
  establish();
  ASSERT_EQ(passive.post_recv(1, 0, 16), 0);
  client->abort();
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1; }));
  EXPECT_EQ(passive.wait_passive().status, WcStatus::kWrFlushErr);
  EXPECT_EQ(passive.state(), QpState::kErr);
  EXPECT_EQ(active.state(), QpState::kErr);
  EXPECT_EQ(client_owner->ended, 0) << "no calls after abort()";
}

TEST_F(ConnectedPair, DestroyedQueuePairEndsTheConnection) {
  establish();
  active.endpoint->destroy();
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1 && client_owner->ended == 1; }));
}

TEST_F(ConnectedPair, ASendWaitsForItsReceive) {
  establish();
  std::memcpy(active.memory.data(), "patience", 8);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(active.post_send(1, 0, 8), 0);
    EXPECT_EQ(active.wait_passive().status, WcStatus::kSuccess);
    ASSERT_TRUE(eventually([&] { return passive.endpoint->qp().receiver().rnr_blocked(); }));
    std::this_thread::sleep_for(50ms);
    ASSERT_EQ(passive.post_recv(2, 0, 16), 0);
    EXPECT_EQ(passive.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(passive.memory.data(), "patience", 8), 0);
  }
}

TEST_F(ConnectedPair, ASendWithoutReceiveTerminatesInTheEnd) {
  establish();
  ASSERT_EQ(active.post_send(1, 0, 8), 0);
  EXPECT_EQ(active.wait_passive().status, WcStatus::kSuccess);
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1 && client_owner->ended == 1; }));
  EXPECT_EQ(passive.events(), std::vector{QpEvent::kFatal});
  EXPECT_EQ(active.events(), std::vector{QpEvent::kFatal});
}

TEST_F(ConnectedPair, AHeldStreamNoticesItsEnd) {
  establish();
  ASSERT_EQ(active.post_send(1, 0, 8), 0);
  ASSERT_TRUE(eventually([&] { return passive.endpoint->qp().receiver().rnr_blocked(); }));
  const uint64_t start = now_ns();
  ASSERT_EQ(client->disconnect(), 0);
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1; }));
  EXPECT_LT(now_ns() - start, 900 * kNsPerMs) << "before the grace time is over";
  // Bytes that had arrived before can still be delivered.
  ASSERT_EQ(passive.post_recv(2, 0, 16), 0);
  EXPECT_EQ(passive.wait_passive().status, WcStatus::kSuccess);
  ASSERT_TRUE(eventually([&] { return passive.state() == QpState::kErr; }));
  EXPECT_EQ(server_owner->ended, 1);
}

TEST_F(ConnectedPair, AccessViolationTerminatesBothSides) {
  establish();
  SendRequest request;
  request.opcode = SendOpcode::kRead;
  request.wr_id = 9;
  request.rkey = 0x12345678;
  ASSERT_EQ(active.post(request, 0, 64), 0);
  EXPECT_EQ(active.wait_passive().status, WcStatus::kRemAccessErr);
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1 && client_owner->ended == 1; }));
  EXPECT_EQ(passive.state(), QpState::kErr);
}

class PolledPair : public ConnectedPair {
 protected:
  void SetUp() override {
    ConnectedPair::SetUp();
    establish();
    become_quiet();
  }
  // Polls without a pause; after a pause the helper thread would assume that polling has stopped.
  void become_quiet() {
    for (int i = 0; i < 200'000 && !is_quiet(); ++i) exchange();
    ASSERT_TRUE(is_quiet());
  }
  bool is_quiet() const { return passive.endpoint->stream().quiet(); }
  void send() {
    ASSERT_EQ(passive.post_recv(1, 0, 64), 0);
    ASSERT_EQ(active.post_send(2, 0, 64), 0);
  }
  void exchange() {
    send();
    EXPECT_EQ(active.wait_polling().status, WcStatus::kSuccess);
    EXPECT_EQ(passive.wait_polling().status, WcStatus::kSuccess);
  }
};

// While a thread polls a busy stream all the time, epoll does not report the stream's data. Other
// threads must not notice.
TEST_F(PolledPair, TheHelperIsWokenByDataWhenPollingStops) {
  send();
  EXPECT_EQ(passive.wait_passive().status, WcStatus::kSuccess);
  EXPECT_TRUE(eventually([&] { return !is_quiet(); }));
  EXPECT_EQ(active.wait_passive().status, WcStatus::kSuccess);
  become_quiet();
}

TEST_F(PolledPair, PollingAnotherQueueServesItToo) {
  Node other;
  const auto poll_other = [&] {
    for (int i = 0; i < 100; ++i) engine().poller().poll(other.cq);
  };
  ASSERT_TRUE(eventually([&] { return poll_other(), !is_quiet(); }));
  send();
  WorkCompletion done;
  EXPECT_TRUE(eventually([&] { return poll_other(), passive.cq.poll(&done, 1) == 1; }));
}

TEST_F(PolledPair, ItsEndIsNoticed) {
  EXPECT_EQ(client->disconnect(), 0);
  EXPECT_TRUE(eventually([&] { return server_owner->ended == 1 && client_owner->ended == 1; }));
}

TEST_F(PolledPair, TheQueuePairMayGo) {
  passive.endpoint->destroy();
  EXPECT_TRUE(eventually([&] { return client_owner->ended == 1; }));
}

// No thread polls. At each end one thread sends and another receives on the same socket; each goes
// on when it has received the other's last message.
TEST_F(ConnectedPair, MuchIsSentWhileMuchComes) {
  constexpr uint32_t kBytes = 64 * 1024, kPostsAtATime = 16;
  constexpr uint64_t kRounds = 100;
  establish();
  const auto exchange = [&](Node& own, Node& peer) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      ASSERT_EQ(own.post_recv(round, kBytes, 8), 0);
      for (uint32_t i = 0; i < kPostsAtATime; ++i)
        ASSERT_EQ(own.post_rdma(SendOpcode::kWrite, round, 0, kBytes, peer, 2 * kBytes), 0);
      ASSERT_EQ(own.post_send(round, 0, 8), 0);
      for (uint32_t i = 0; i < kPostsAtATime + 2; ++i)
        ASSERT_EQ(own.wait_passive().status, WcStatus::kSuccess);
    }
  };
  std::thread other([&] { exchange(passive, active); });
  exchange(active, passive);
  other.join();
}

TEST_F(ConnectedPair, PostsDoNotCallAFullSocket) {
  constexpr uint32_t kBytes = 192 * 1024;
  constexpr uint64_t kLast = 60;
  establish();
  // Without a receive the peer stops reading.
  ASSERT_EQ(active.post_send(0, 0, 8), 0);
  ASSERT_TRUE(eventually([&] { return passive.endpoint->qp().receiver().rnr_blocked(); }));
  Counter& waits = active.endpoint->qp().slot().transmit.waits;
  uint64_t id = 0;
  const auto write = [&] {
    ASSERT_EQ(active.post_rdma(SendOpcode::kWrite, ++id, 0, kBytes, passive, 0), 0);
  };
  while (waits.get() == 0 && id < kLast - 10) write();
  if (waits.get() == 0) GTEST_SKIP() << "the socket takes more than can be posted";
  // The kernel still moves bytes to the peer's socket buffer, which makes room again. Wait until
  // that stops.
  uint64_t before = 0;
  ASSERT_TRUE(eventually([&] {
    before = waits.get();
    std::this_thread::sleep_for(20ms);
    return waits.get() == before;
  }));
  while (id < kLast) write();
  EXPECT_EQ(waits.get(), before);
  ASSERT_EQ(passive.post_recv(1, 0, 8), 0);
  for (uint64_t i = 0; i <= kLast; ++i) {
    const WorkCompletion done = active.wait_passive();
    EXPECT_EQ(done.wr_id, i);
    EXPECT_EQ(done.status, WcStatus::kSuccess);
  }
}

TEST_F(ConnectedPair, AListOfReceivesResumesOnce) {
  establish();
  constexpr uint64_t kMessages = 32;
  for (uint64_t i = 0; i < kMessages; ++i) ASSERT_EQ(active.post_send(i, 0, 8), 0);
  Counter& held = passive.endpoint->qp().slot().receive.held;
  ASSERT_TRUE(eventually([&] { return held.get() == 1; }));
  for (uint64_t i = 0; i < kMessages / 2; ++i) {
    const Sge one = passive.sge(0, 8);
    ASSERT_EQ(passive.endpoint->post_recv(i, {&one, 1}), 0);
  }
  passive.endpoint->receives_posted();
  for (uint64_t i = 0; i < kMessages / 2; ++i) EXPECT_EQ(passive.wait_passive().wr_id, i);
  EXPECT_TRUE(eventually([&] { return held.get() == 2; }));
}

TEST_F(ConnectedPair, PostingPollingAndEndingAtTheSameTime) {
  establish();
  for (int i = 0; i < 60; ++i) ASSERT_EQ(passive.post_recv(i, 0, 2048), 0);
  std::atomic<bool> stop{false};
  const auto poll = [&](Node& node) {
    WorkCompletion done;
    while (!stop)
      if (node.poll(done) && done.status == WcStatus::kSuccess && done.opcode == WcOpcode::kRecv)
        (void)node.post_recv(done.wr_id, 0, 2048);
  };
  std::thread first([&] { poll(passive); });
  std::thread second([&] { poll(passive); });
  std::thread third([&] { poll(active); });
  for (int i = 0; i < 2000 && client_owner->ended == 0; ++i) {
    (void)active.post_send(1000 + i, 0, static_cast<uint32_t>(i % 2048));
    if (i == 1500) (void)server->disconnect();
  }
  EXPECT_TRUE(eventually([&] { return server_owner->ended == 1; }));
  EXPECT_TRUE(eventually([&] { return client_owner->ended == 1; }));
  stop = true;
  first.join();
  second.join();
  third.join();
}

// --- Hand-made peers
// ------------------------------------------------------------------------------

/// A blocking socket with a time limit, in case the test hangs.
class Plain {
 public:
  explicit Plain(int fd) : fd_(fd) { give_up_after({.tv_sec = 15, .tv_usec = 0}); }
  Plain(Plain&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Plain() { close(); }
  static Plain dial(const sockaddr_storage& where, const sockaddr_storage* from = nullptr) {
    Plain made(socket(AF_INET, SOCK_STREAM, 0));
    if (from != nullptr) {
      EXPECT_EQ(bind(made.fd_, reinterpret_cast<const sockaddr*>(from), sizeof(sockaddr_in)), 0);
    }
    EXPECT_EQ(connect(made.fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(sockaddr_in)), 0);
    return made;
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void write(std::string_view text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  /// Sets how long read() waits for more bytes.
  void give_up_after(timeval silence) const {
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
  }
  /// Reads `size` bytes; fewer at the end of the stream.
  std::string read(size_t size) const {
    std::string text(size, 0);
    size_t got = 0;
    while (got < size) {
      const ssize_t count = recv(fd_, text.data() + got, size - got, 0);
      if (count <= 0) break;
      got += static_cast<size_t>(count);
    }
    text.resize(got);
    return text;
  }
  /// True if the stream has ended, with a FIN or a RST.
  bool at_end() const {
    char byte;
    const ssize_t count = recv(fd_, &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }
  bool silent() const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, 0) == 0;
  }
  std::string read_frame() const {
    std::string frame = read(20);
    if (frame.size() < 20) return frame;
    return frame + read(load_be16(frame.data() + 18));
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string frame(bool reply, uint8_t flags, uint8_t revision, std::string_view private_data) {
  std::string made = reply ? "MPA ID Rep Frame" : "MPA ID Req Frame";
  made += static_cast<char>(flags);
  made += static_cast<char>(revision);
  made += static_cast<char>(private_data.size() >> 8);
  made += static_cast<char>(private_data.size());
  made += private_data;
  return made;
}

constexpr std::string_view kPeerToPeerWord("\x80\x04\xC0\x04", 4);   // A, IRD 4; Write or Read RTR
constexpr std::string_view kPeerToPeerReply("\x80\x04\x80\x04", 4);  // Write chosen

/// The FPDU of a Send of `text`, without CRC.
std::string send_fpdu(std::string_view text, uint32_t msn) {
  std::string made(2 + 18, 0);
  store_be16(made.data(), static_cast<uint16_t>(18 + text.size()));
  made[2] = 0x41;
  made[3] = 0x43;
  store_be32(made.data() + 2 + 10, msn);
  made += text;
  while (made.size() % 4 != 0) made += '\0';
  return made + std::string(4, '\0');
}

/// The FPDU of an empty Write to STag 0, without CRC.
std::string rtr_fpdu() {
  std::string made(20, 0);
  store_be16(made.data(), 14);
  made[2] = static_cast<char>(0xC1);
  made[3] = 0x40;
  return made;
}

class HandMadeInitiator : public ConnectedPair {
 protected:
  Plain dial_plain() { return Plain::dial(listener->local_address()); }
  Plain dial_from(const std::string& address) {
    sockaddr_storage from{};
    (void)IpAddress::from_string(address).value().to_sockaddr(from, 0);
    return Plain::dial(listener->local_address(), &from);
  }
};

// Proves: 5044-7.1.1-a 5044-7.1.1-b 5044-7.1.1-d
TEST_F(HandMadeInitiator, GarbageAndWrongFramesAreClosed) {
  for (const std::string& bad :
       {std::string(64, 'G'), std::string("GET / HTTP/1.0\r\n\r\n"), frame(true, 0, 1, ""),
        frame(false, 0, 0, ""), frame(false, 0, 3, ""),
        frame(false, 0, 1, std::string(513, 'p'))}) {
    Plain peer = dial_plain();
    peer.write(bad);
    EXPECT_TRUE(peer.at_end());
  }
  EXPECT_EQ(requests->count(), 0u);
}

// Proves: 5044-4.3-a
TEST_F(HandMadeInitiator, MarkersAreRejected) {
  Plain peer = dial_plain();
  peer.write(frame(false, 0x80, 1, ""));
  const std::string reply = peer.read_frame();
  ASSERT_EQ(reply.size(), 20u);
  EXPECT_NE(reply[16] & 0x20, 0);
  EXPECT_TRUE(peer.at_end());
}

TEST_F(HandMadeInitiator, ARequestInSingleBytes) {
  Plain peer = dial_plain();
  const std::string request = frame(false, 0x10, 2, std::string(kPeerToPeerWord) + "slow");
  for (const char byte : request) {
    peer.write({&byte, 1});
    std::this_thread::sleep_for(1ms);
  }
  server = requests->take();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->request_parameters().private_data, bytes_of("slow"));
  ASSERT_EQ(server->accept(passive.endpoint, parameters("fine"), server_owner), 0);
  const std::string reply = peer.read_frame();
  ASSERT_EQ(reply.size(), 28u);
  EXPECT_EQ(reply.substr(24), "fine");
  EXPECT_EQ(reply.substr(20, 4), kPeerToPeerReply);
  EXPECT_EQ(server_owner->established, 0) << "the RTR has not come";
  // An RTR Write with any STag, then a Send.
  ASSERT_EQ(passive.post_recv(1, 0, 16), 0);
  peer.write(rtr_fpdu());
  ASSERT_TRUE(eventually([&] { return server_owner->established == 1; }));
  peer.write(send_fpdu("hi there", 1));
  const WorkCompletion received = passive.wait_passive();
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  EXPECT_EQ(received.byte_len, 8u);
  EXPECT_FALSE(passive.endpoint->qp().peer_is_uwarp());
  peer.close();
  ASSERT_TRUE(eventually([&] { return server_owner->ended == 1; }));
}

// One thread may read the first frame and the fault behind it, another the end. The events come in
// order all the same.
TEST_F(HandMadeInitiator, AFailureRightBehindTheFirstFrame) {
  std::string bad = send_fpdu("bad", 1);
  bad[2] = 0x40;  // DDP version 0
  const std::jthread poller([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) Engine::instance().poller().poll(passive.cq);
  });
  for (int i = 0; i < 200; ++i) {
    Node node;
    cm_init(node);
    const auto owner = std::make_shared<RecordingOwner>();
    Plain peer = dial_plain();
    peer.write(frame(false, 0x10, 2, kPeerToPeerWord));
    const auto request = requests->take();
    ASSERT_NE(request, nullptr);
    ASSERT_EQ(request->accept(node.endpoint, parameters(), owner), 0);
    ASSERT_EQ(peer.read_frame().size(), 24u);
    peer.write(rtr_fpdu() + bad);
    (void)peer.read(20);  // the start of the Terminate
    peer.close();
    ASSERT_TRUE(eventually([&] { return owner->ended + owner->failed == 1; }));
    ASSERT_EQ(owner->established, 1) << i;
    ASSERT_EQ(owner->failed, 0) << i;
  }
}

// Proves: 5044-7.1.2-g 4296-3.1-a
TEST_F(HandMadeInitiator, BytesBehindTheRequestAreFatal) {
  Plain peer = dial_plain();
  peer.write(frame(false, 0, 1, "") + "x");
  server = requests->take();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->accept(passive.endpoint, parameters(), server_owner), ECONNRESET);
  EXPECT_TRUE(peer.at_end());
  EXPECT_EQ(passive.state(), QpState::kInit);
}

// Proves: 5044-7.1.2-c
TEST_F(HandMadeInitiator, RevisionOneWithoutRtr) {
  Plain peer = dial_plain();
  peer.write(frame(false, 0, 1, "old"));
  server = requests->take();
  ASSERT_NE(server, nullptr);
  EXPECT_GT(server->request_parameters().initiator_depth, 0) << "nothing limits it on the wire";
  ASSERT_EQ(server->accept(passive.endpoint, parameters(), server_owner), 0);
  EXPECT_EQ(peer.read_frame()[17], 1);
  ASSERT_TRUE(eventually([&] { return server_owner->established == 1; }));
  // The responder sends nothing until the initiator has sent something.
  ASSERT_EQ(passive.post_send(1, 0, 4), 0);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(recv(peer.fd(), nullptr, 0, MSG_PEEK | MSG_DONTWAIT), -1);
  ASSERT_EQ(passive.post_recv(2, 0, 16), 0);
  peer.write(send_fpdu("go", 1));
  EXPECT_EQ(peer.read(28).size(), 28u);
}

// Proves: 5044-7.1.2-b
TEST_F(HandMadeInitiator, NothingIsSentBeforeTheRequest) {
  Plain peer = dial_plain();
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(peer.silent());
  peer.write(frame(false, 0, 1, "old").substr(0, 19));
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(peer.silent());
  EXPECT_EQ(requests->count(), 0u);
}

// Proves: 5044-7.1.1-c
TEST_F(HandMadeInitiator, ReservedFlagsAreIgnored) {
  for (const uint8_t revision : {uint8_t{1}, uint8_t{2}}) {
    Plain peer = dial_plain();
    peer.write(frame(false, 0x4F, revision, ""));
    const auto request = requests->take();
    ASSERT_NE(request, nullptr);
    ASSERT_EQ(request->reject({}), 0);
    const std::string reply = peer.read_frame();
    ASSERT_GE(reply.size(), 20u);
    EXPECT_EQ(reply[16] & 0x0F, 0);
  }
}

// Proves: 5044-7.1.2-f
TEST_F(HandMadeInitiator, SilentPeersDoNotDelayOthers) {
  std::vector<Plain> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(dial_plain());
  establish();
  EXPECT_EQ(requests->count(), 0u);
}

// docs/security.md: one address cannot keep the others out.
TEST_F(HandMadeInitiator, ManySilentPeersLeaveRoomForOthers) {
  const Plain early = dial_from("127.0.0.3");
  std::vector<Plain> crowd;
  const size_t surplus = 40;
  for (size_t i = 0; i < Listener::kMaxHalfOpen - 1 + surplus; ++i)
    crowd.push_back(dial_from("127.0.0.2"));
  const Plain late = dial_from("127.0.0.4");
  late.write(frame(false, 0, 1, "late"));
  server = requests->take();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->request_parameters().private_data, bytes_of("late"));
  for (size_t i = 0; i <= surplus; ++i) EXPECT_TRUE(crowd[i].at_end()) << i;
  EXPECT_TRUE(early.silent()) << "another address keeps its place";
  for (size_t i = surplus + 1; i < crowd.size(); ++i) EXPECT_TRUE(crowd[i].silent()) << i;
}

TEST_F(HandMadeInitiator, NewcomersConnectDuringAFlood) {
  constexpr size_t kCrowd = 2 * Listener::kMaxHalfOpen;
  std::atomic<size_t> dialled{0};
  const std::jthread flood([&](const std::stop_token& stop) {
    std::deque<Plain> silent;
    while (!stop.stop_requested()) {
      silent.push_back(dial_from("127.0.0.2"));
      if (silent.size() > kCrowd) silent.pop_front();
      ++dialled;
      std::this_thread::sleep_for(500us);  // so that even the slowest machine can accept them all
    }
  });
  ASSERT_TRUE(eventually([&] { return dialled > kCrowd; }));
  for (int i = 0; i < 50; ++i) {
    const Plain newcomer = dial_from("127.0.0." + std::to_string(3 + i));
    newcomer.write(frame(false, 0, 1, std::to_string(i)));
    const auto request = requests->take();
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->request_parameters().private_data, bytes_of(std::to_string(i)));
  }
}

// The Request of an honest peer may wait in its socket while other peers of its address connect.
TEST_F(HandMadeInitiator, AWholeRequestIsNotDropped) {
  for (int round = 0; round < 5; ++round) {
    const Plain honest = dial_from("127.0.0.2");
    honest.write(frame(false, 0, 1, "honest"));
    std::vector<Plain> crowd;
    for (size_t i = 0; i < Listener::kMaxHalfOpen; ++i) crowd.push_back(dial_from("127.0.0.2"));
    const auto request = requests->take();
    ASSERT_NE(request, nullptr) << round;
    EXPECT_EQ(request->request_parameters().private_data, bytes_of("honest"));
  }
}

/// While this exists, the process may open only a few files.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(rlim_t files) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit now{.rlim_cur = files, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~OpenFilesLimit() { (void)setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// docs/security.md: peers that violate the protocol and keep their end open.
TEST_F(HandMadeInitiator, ConnectionsThatDrainAreBounded) {
  constexpr size_t kFiles = 256;
  const size_t places = draining_places(kFiles);
  const OpenFilesLimit limit(kFiles);
  std::vector<Plain> peers;
  std::string bad = send_fpdu("bad", 1);
  bad[2] = 0x40;  // DDP version 0
  for (size_t i = 0; i < places + 20; ++i) {
    Node node(4, 4);
    cm_init(node);
    const auto owner = std::make_shared<RecordingOwner>();
    peers.push_back(dial_plain());
    const Plain& peer = peers.back();
    peer.write(frame(false, 0x10, 2, kPeerToPeerWord));
    const auto request = requests->take();
    ASSERT_NE(request, nullptr);
    ASSERT_EQ(request->accept(node.endpoint, parameters(), owner), 0);
    ASSERT_EQ(peer.read_frame().size(), 24u);
    peer.write(rtr_fpdu() + bad);
    while (!peer.read(1).empty()) {  // the Terminate and the FIN behind it
    }
  }
  // poll() reports both directions as closed only after a reset. The last connection may be about
  // to take the place of another.
  const auto open = std::count_if(peers.begin(), peers.end(), [](const Plain& peer) {
    pollfd entry{.fd = peer.fd(), .events = 0, .revents = 0};
    return poll(&entry, 1, 0) == 0;
  });
  EXPECT_LE(static_cast<size_t>(open), places + 1);
}

class HandMadeResponder : public ::testing::Test {
 protected:
  void SetUp() override {
    cm_init(node);
    const sockaddr_storage any = loopback_address();
    listener_fd_ = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(listener_fd_, reinterpret_cast<const sockaddr*>(&any), sizeof(sockaddr_in)), 0);
    ASSERT_EQ(listen(listener_fd_, 8), 0);
    socklen_t length = sizeof where_;
    getsockname(listener_fd_, reinterpret_cast<sockaddr*>(&where_), &length);
  }
  void TearDown() override {
    Engine::instance().context().startup_modes.forget(
        where_);  // so that another test may use the port
    ::close(listener_fd_);
    if (client) client->abort();
  }
  void dial(uint32_t timeout_ms = 0, std::string_view private_data = "hello") {
    Connection::ConnectOptions options;
    options.remote = where_;
    options.timeout_ms = timeout_ms;
    auto made = Connection::connect(Engine::instance().context(), node.endpoint, std::move(options),
                                    parameters(private_data), owner);
    ASSERT_TRUE(made.ok());
    client = std::move(*made);
  }
  Plain accept_one() const {
    pollfd entry{.fd = listener_fd_, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, 15'000), 1) << "no peer has connected";
    return Plain(accept(listener_fd_, nullptr, nullptr));
  }

  Node node;
  std::shared_ptr<RecordingOwner> owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Connection> client;
  int listener_fd_ = -1;
  sockaddr_storage where_{};
};

// Proves: 6581-10-a
TEST_F(HandMadeResponder, TheLastModeIsRevisionOne) {
  dial();
  {
    const Plain peer = accept_one();
    const std::string request = peer.read_frame();
    EXPECT_EQ(request[17], 2);
    EXPECT_NE(request[20] & 0x80, 0) << "peer-to-peer";
    EXPECT_EQ(request.substr(24), "hello");
  }
  {
    const Plain peer = accept_one();
    const std::string request = peer.read_frame();
    EXPECT_EQ(request[17], 2);
    EXPECT_EQ(request[20] & 0x80, 0) << "plain";
  }
  const Plain peer = accept_one();
  const std::string request = peer.read_frame();
  EXPECT_EQ(request[17], 1);
  EXPECT_EQ(request.substr(20), "hello");
  peer.write(frame(true, 0, 1, "at last"));
  ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
  EXPECT_EQ(owner->parameters().private_data, bytes_of("at last"));
  // The initiator sends nothing before the application does.
  ASSERT_EQ(node.post_send(1, 0, 4), 0);
  EXPECT_EQ(peer.read(28).substr(2, 2), std::string("\x41\x43"));
}

TEST_F(HandMadeResponder, ThePeersModeIsRemembered) {
  dial();
  for (const int revision : {2, 2, 1}) {
    const Plain peer = accept_one();
    ASSERT_EQ(peer.read_frame()[17], revision);
    if (revision == 1) peer.write(frame(true, 0x20, 1, "busy"));
  }
  ASSERT_TRUE(eventually([&] { return owner->rejected == 1; }));
  dial();
  const Plain peer = accept_one();
  EXPECT_EQ(peer.read_frame()[17], 1) << "straight away";
  peer.write(frame(true, 0, 1, ""));
  ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
}

TEST_F(HandMadeResponder, AWrongRememberedModeLeadsBackToTheFirst) {
  for (const StartupMode wrong : {StartupMode::kRevision1, StartupMode::kPlain}) {
    Engine::instance().context().startup_modes.remember(where_, wrong, now_ns());
    const int rejected = owner->rejected;
    dial();
    EXPECT_EQ(accept_one().read_frame()[17], wrong == StartupMode::kPlain ? 2 : 1);
    {
      const Plain peer = accept_one();
      const std::string request = peer.read_frame();
      EXPECT_EQ(request[17], 2);
      EXPECT_NE(request[20] & 0x80, 0) << "peer-to-peer";
      peer.write(frame(true, 0x30, 2, std::string(4, '\0')));
    }
    ASSERT_TRUE(eventually([&] { return owner->rejected == rejected + 1; }));
    EXPECT_EQ(Engine::instance().context().startup_modes.first_for(where_, now_ns()),
              StartupMode::kPeerToPeer);
  }
}

TEST_F(HandMadeResponder, AFailureOnTheRememberedModeForgetsIt) {
  Engine::instance().context().startup_modes.remember(where_, StartupMode::kRevision1, now_ns());
  dial(1000);
  const Plain peer = accept_one();
  const std::string request = peer.read_frame();
  ASSERT_GE(request.size(), 20u);
  EXPECT_EQ(request[17], 1);
  ASSERT_TRUE(eventually([&] { return owner->failed == 1; })) << "it sends nothing";
  EXPECT_EQ(Engine::instance().context().startup_modes.first_for(where_, now_ns()),
            StartupMode::kPeerToPeer);
}

TEST_F(HandMadeResponder, PrivateDataThatMayHaveBeenTooLongIsNoReasonToRemember) {
  dial(0, std::string(253, 'p'));
  for (const int revision : {2, 2, 1}) {
    const Plain peer = accept_one();
    ASSERT_EQ(peer.read_frame()[17], revision);
    if (revision == 1) peer.write(frame(true, 0x20, 1, ""));
  }
  ASSERT_TRUE(eventually([&] { return owner->rejected == 1; }));
  EXPECT_EQ(Engine::instance().context().startup_modes.first_for(where_, now_ns()),
            StartupMode::kPeerToPeer);
}

// Proves: 6581-6-b
TEST_F(HandMadeResponder, AReplyOfRevisionOneLeadsThereAtOnce) {
  dial();
  {
    const Plain peer = accept_one();
    ASSERT_EQ(peer.read_frame()[17], 2);
    peer.write(frame(true, 0, 1, ""));
    EXPECT_TRUE(peer.at_end());
  }
  const Plain peer = accept_one();
  ASSERT_EQ(peer.read_frame()[17], 1);
  peer.write(frame(true, 0, 1, ""));
  ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
}

TEST_F(HandMadeResponder, AfterTheLastModeTheAttemptFails) {
  dial();
  for (int mode = 0; mode < 3; ++mode) {
    const Plain peer = accept_one();
    peer.read_frame();
  }
  ASSERT_TRUE(eventually([&] { return owner->rejected == 1; }));
  EXPECT_EQ(owner->status, -ECONNRESET);
  EXPECT_EQ(owner->established + owner->failed, 0);
}

// Proves: 6581-9.2-d
TEST_F(HandMadeResponder, RtrThenASecondFrameForForeignPeers) {
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  const std::string rtr = peer.read(20);
  ASSERT_EQ(rtr.size(), 20u);
  EXPECT_EQ(load_be16(rtr.data()), 14);
  EXPECT_EQ(load_be32(rtr.data() + 4), kPeerMagicStag.value);
  EXPECT_EQ(load_be64(rtr.data() + 8), kPeerMagicOffset);
  const std::string second = peer.read(20);
  ASSERT_EQ(second.size(), 20u) << "the peer may miss a first frame that comes alone";
  EXPECT_EQ(load_be16(second.data()), 14);
}

TEST_F(HandMadeResponder, ASilentResponderGetsMoreFrames) {
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  EXPECT_EQ(peer.read(80).size(), 80u) << "more frames follow, as it may have missed the first";
}

// A target of Writes says nothing but what it is, and it may do so late.
TEST_F(HandMadeResponder, SharedMemoryIsOfferedToAPeerThatShowsItselfLate) {
  if (settings().why_only_tcp() != nullptr) GTEST_SKIP() << "all connections stay on TCP";
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
  constexpr int kMany = 64;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_EQ(node.post_send(i, 0, 4), 0);
    ASSERT_EQ(node.wait_passive().status, WcStatus::kSuccess);
  }
  std::string magic = rtr_fpdu();
  store_be32(magic.data() + 4, kPeerMagicStag.value);
  store_be64(magic.data() + 8, kPeerMagicOffset);
  peer.write(magic);
  peer.give_up_after({.tv_sec = 5, .tv_usec = 0});
  bool mailbox = false, number = false;
  while (!mailbox || !number) {
    const std::string length = peer.read(2);
    ASSERT_EQ(length.size(), 2u) << "nothing was offered";
    const std::string fpdu = length + peer.read(fpdu_size(load_be16(length.data())) - 2);
    if ((fpdu[3] & 0x0f) != 0 || fpdu.size() != 20) continue;  // no empty Write
    const auto mark = CarrierWrite::decode(
        TaggedHeader::decode(reinterpret_cast<const std::byte*>(fpdu.data()) + kFpduLengthSize));
    mailbox |= mark && mark->kind == CarrierWrite::Kind::kMailbox;
    number |= mark && mark->kind == CarrierWrite::Kind::kNumber;
  }
}

// siw may have missed the first two frames. If the FIN came right behind them, it would lose them.
TEST_F(HandMadeResponder, TheFirstNudgeIsSentBeforeTheEnd) {
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  const uint64_t began_ns = now_ns();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  ASSERT_TRUE(eventually([&] { return owner->established == 1; }));
  ASSERT_EQ(node.post_send(1, 0, 4), 0);
  ASSERT_EQ(client->disconnect(), 0);
  if (now_ns() - began_ns > 5'000'000) GTEST_SKIP() << "too slow: the reminder was sent before";
  const std::string all = peer.read(1000);
  EXPECT_TRUE(peer.at_end());
  ASSERT_GE(all.size(), 20u + 28 + 20) << "RTR, Send, empty Write";
  EXPECT_EQ(load_be16(all.data() + all.size() - 20), 14) << "the Send is not the last";
}

TEST_F(HandMadeResponder, AResponderThatHasSentIsNotNudged) {
  ASSERT_EQ(node.post_recv(1, 0, 64), 0);
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply) + send_fpdu("awake", 1));
  ASSERT_EQ(node.wait_passive().status, WcStatus::kSuccess);
  peer.give_up_after({.tv_sec = 0, .tv_usec = 200'000});
  EXPECT_LE(peer.read(80).size(), 40u);
}

// Proves: 5044-7.1.2-a
TEST_F(HandMadeResponder, NothingButTheRequestBeforeTheReply) {
  dial();
  const Plain peer = accept_one();
  EXPECT_EQ(peer.read_frame().size(), 29u);
  EXPECT_EQ(node.post_send(1, 0, 4), EINVAL) << "not connected";
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(peer.silent());
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  EXPECT_EQ(peer.read(20).size(), 20u);
}

/// A Reply that asks for something impossible ends the start-up with a Terminate of the MPA layer.
struct Unservable {
  std::string_view word;
  const char* code;
};

// Proves: 6581-8-a 6581-9.1-f 6581-9.2-c
TEST_F(HandMadeResponder, UnservableRepliesAreTerminated) {
  const Unservable replies[] = {
      {{"\x80\x04\xBF\xFE", 4}, "\x20\x06"},  // ORD 0x3FFE
      {{"\xC0\x04\x00\x04", 4}, "\x20\x07"},  // a Send as RTR, which was not offered
      {{"\x80\x04\x00\x04", 4}, "\x20\x07"},  // no RTR at all
  };
  int failed = 0;
  for (const Unservable& reply : replies) {
    dial();
    const Plain peer = accept_one();
    peer.read_frame();
    peer.write(frame(true, 0x10, 2, reply.word));
    const std::string terminate = peer.read(28);
    ASSERT_EQ(terminate.size(), 28u);
    EXPECT_EQ(terminate.substr(0, 4), std::string("\0\x16\x41\x47", 4));
    EXPECT_EQ(terminate.substr(20, 2), reply.code);
    EXPECT_EQ(terminate.substr(22, 2), std::string(2, '\0'));
    EXPECT_TRUE(peer.at_end());
    ++failed;
    ASSERT_TRUE(eventually([&] { return owner->failed == failed; }));
    EXPECT_EQ(owner->established + owner->rejected, 0);
    EXPECT_EQ(node.state(), QpState::kInit);
  }
}

// Proves: 5041-6.1-a
TEST_F(HandMadeResponder, FramesRightBehindTheReplyAreNotLost) {
  ASSERT_EQ(node.post_recv(1, 0, 64), 0);
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, std::string(kPeerToPeerReply) + "data") + send_fpdu("early", 1));
  EXPECT_EQ(node.wait_passive().status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(node.memory.data(), "early", 5), 0);
}

// Proves: 5044-7.1.1-a
TEST_F(HandMadeResponder, GarbageInsteadOfAReply) {
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(std::string(64, 'G'));
  ASSERT_TRUE(eventually([&] { return owner->failed == 1; }));
  EXPECT_EQ(node.state(), QpState::kInit);
}

// Proves: 5044-7.1.2-e
TEST_F(HandMadeResponder, ASilentPeerTimesOut) {
  dial(100);
  const Plain peer = accept_one();
  ASSERT_TRUE(eventually([&] { return owner->failed == 1; }));
  EXPECT_EQ(owner->status, -ETIMEDOUT);
}

// Proves: 5044-7.1.1-e
TEST_F(HandMadeResponder, ARejectingPeer) {
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x30, 2, std::string("\0\0\0\0", 4) + "go away"));
  ASSERT_TRUE(eventually([&] { return owner->rejected == 1; }));
  EXPECT_EQ(owner->private_data(), bytes_of("go away"));
}

TEST_F(HandMadeResponder, MalformedFrameInTheStream) {
  ASSERT_EQ(node.post_recv(1, 0, 64), 0);
  dial();
  const Plain peer = accept_one();
  peer.read_frame();
  peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
  peer.read(40);
  std::string bad = send_fpdu("bad", 1);
  bad[2] = 0x40;  // DDP version 0
  peer.write(bad);
  EXPECT_EQ(node.wait_passive().status, WcStatus::kWrFlushErr);
  ASSERT_TRUE(eventually([&] { return owner->ended == 1; }));
  const std::string terminate = peer.read(28);
  ASSERT_GE(terminate.size(), 20u);
  EXPECT_EQ(terminate[3] & 0x0F, 0x7) << "a Terminate";
  EXPECT_EQ(node.events().size(), 1u);
}

TEST_F(HandMadeResponder, EndInsideAFrameIsAnError) {
  ASSERT_EQ(node.post_recv(1, 0, 64), 0);
  dial();
  {
    const Plain peer = accept_one();
    peer.read_frame();
    peer.write(frame(true, 0x10, 2, kPeerToPeerReply));
    peer.read(40);
    peer.write(send_fpdu("half", 1).substr(0, 10));
  }
  EXPECT_EQ(node.wait_passive().status, WcStatus::kWrFlushErr);
  ASSERT_TRUE(eventually([&] { return owner->ended == 1; }));
  EXPECT_EQ(node.events(), std::vector{QpEvent::kFatal});
}

}  // namespace
}  // namespace uwarp
