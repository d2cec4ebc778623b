// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Service ID resolution over real sockets on loopback: a requester, a listener, and hand-made
// peers.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "connect/sidr_listener.h"
#include "connect/sidr_query.h"
#include "unit/connect/node.h"

namespace uwarp {
namespace {

constexpr uint16_t kUdpPortSpace = 0x0111;

std::vector<std::byte> sidr_bytes(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

UdpSocket udp_at(const sockaddr_storage& address) {
  BindOptions options;
  options.datagram = true;
  auto bound = bind_port(address, options);
  EXPECT_TRUE(bound);
  return UdpSocket(std::move(*bound));
}

/// Records the events of the active side; the helper thread makes the calls.
class AskingOwner : public ConnectionOwner {
 public:
  void connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage&,
                              const ConnectParameters& peer) override {
    const std::lock_guard guard(mutex);
    told = peer;
    ++calls;
  }
  void connection_rejected(const std::shared_ptr<Connection>&, int why,
                           std::span<const std::byte> private_data) override {
    const std::lock_guard guard(mutex);
    status = why;
    told.private_data.assign(private_data.begin(), private_data.end());
    ++calls;
  }
  void connection_failed(const std::shared_ptr<Connection>&, int why) override {
    status = why;
    ++calls;
  }
  void connection_ended(const std::shared_ptr<Connection>&) override {
    ADD_FAILURE() << "there is no connection";
  }

  std::mutex mutex;
  ConnectParameters told;
  std::atomic<int> status{0};
  std::atomic<int> calls{0};
};

class AskedOwner : public SidrListenerOwner {
 public:
  bool sidr_requested(std::shared_ptr<SidrCall> call) override {
    const std::lock_guard guard(mutex);
    if (room) calls.push_back(std::move(call));
    ++count;
    return room;
  }
  std::shared_ptr<SidrCall> next() {
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard guard(mutex);
      return !calls.empty();
    }));
    const std::lock_guard guard(mutex);
    auto first = calls.front();
    calls.erase(calls.begin());
    return first;
  }

  std::mutex mutex;
  std::vector<std::shared_ptr<SidrCall>> calls;
  std::atomic<int> count{0};
  bool room = true;
};

class Sidr : public ::testing::Test {
 protected:
  ConnectContext& context() { return engine_.context(); }

  void listen(const sockaddr_storage& address = loopback_address()) {
    auto started = SidrListener::start(context(), udp_at(address), kUdpPortSpace, asked_);
    ASSERT_TRUE(started);
    listener_ = *started;
  }
  /// Makes `listener_` listen on a free port. Returns its address.
  sockaddr_storage listen_somewhere() {
    UdpSocket port = udp_at(loopback_address());
    const sockaddr_storage at = port.local_address();
    auto started = SidrListener::start(context(), std::move(port), kUdpPortSpace, asked_);
    EXPECT_TRUE(started);
    listener_ = *started;
    return at;
  }
  std::shared_ptr<SidrQuery> ask(const sockaddr_storage& at, const std::string& data = "",
                                 uint16_t port_space = kUdpPortSpace) {
    auto query = SidrQuery::start(context(), udp_at(loopback_address()), at,
                                  {0, port_space, sidr_bytes(data)}, asking_);
    EXPECT_TRUE(query);
    return *query;
  }
  bool told() {
    return eventually([&] { return asking_->calls > 0; });
  }

  /// A hand-made peer.
  static std::vector<std::byte> receive(UdpSocket& socket, UdpPath& path) {
    std::byte bytes[512];
    ssize_t length = -EAGAIN;
    EXPECT_TRUE(eventually([&] { return (length = socket.receive(bytes, path)) >= 0; }));
    return {bytes, bytes + std::max<ssize_t>(length, 0)};
  }
  static void send(UdpSocket& socket, std::span<const std::byte> bytes,
                   const sockaddr_storage& to) {
    UdpPath path;
    path.peer = to;
    EXPECT_EQ(socket.send(bytes, path), static_cast<ssize_t>(bytes.size()));
  }
  static bool silent(UdpSocket& socket) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::byte bytes[512];
    UdpPath path;
    return socket.receive(bytes, path) == -EAGAIN;
  }

  Engine engine_;
  std::shared_ptr<AskedOwner> asked_ = std::make_shared<AskedOwner>();
  std::shared_ptr<AskingOwner> asking_ = std::make_shared<AskingOwner>();
  std::shared_ptr<SidrListener> listener_;
};

TEST_F(Sidr, AQuestionAndItsAnswer) {
  const sockaddr_storage at = listen_somewhere();
  const auto query = ask(at, "who");
  const auto call = asked_->next();
  EXPECT_EQ(call->private_data(), sidr_bytes("who"));
  EXPECT_EQ(port_of(call->local_address()), port_of(at));
  EXPECT_EQ(ip_of(call->local_address()), ip_of(at));
  EXPECT_EQ(port_of(call->remote_address()), port_of(query->local_address()));
  EXPECT_EQ(call->answer({0, SidrStatus::kSuccess, 0x123456, 0x1234, sidr_bytes("me")}), 0);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, 0);
  EXPECT_EQ(asking_->told.qp_number, 0x123456u);
  EXPECT_EQ(asking_->told.qkey, 0x1234u);
  EXPECT_EQ(asking_->told.private_data, sidr_bytes("me"));
  EXPECT_EQ(call->answer({}), EINVAL) << "once";
}

TEST_F(Sidr, ANoWithAReason) {
  const auto query = ask(listen_somewhere());
  EXPECT_EQ(asked_->next()->answer({0, SidrStatus::kRejected, 0, 0, sidr_bytes("busy")}), 0);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, static_cast<int>(SidrStatus::kRejected));
  EXPECT_EQ(asking_->told.private_data, sidr_bytes("busy"));
}

TEST_F(Sidr, ARequestThatIsDroppedIsRejected) {
  const auto query = ask(listen_somewhere());
  (void)asked_->next();
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, static_cast<int>(SidrStatus::kRejected));
}

TEST_F(Sidr, WithoutRoomItIsRejected) {
  asked_->room = false;
  const auto query = ask(listen_somewhere());
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, static_cast<int>(SidrStatus::kRejected));
}

TEST_F(Sidr, AnotherPortSpaceIsNotServed) {
  const auto query = ask(listen_somewhere(), "", 0x013f);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, static_cast<int>(SidrStatus::kUnsupported));
  EXPECT_EQ(asked_->count, 0);
}

TEST_F(Sidr, NoServerListens) {
  // Its socket is closed again.
  const sockaddr_storage at = udp_at(loopback_address()).local_address();
  const auto query = ask(at);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, static_cast<int>(SidrStatus::kUnsupported));
}

TEST_F(Sidr, AServerThatListensALittleLaterIsFound) {
  const sockaddr_storage at = udp_at(loopback_address()).local_address();
  const auto query = ask(at);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  listen(at);
  EXPECT_EQ(asked_->next()->answer({0, SidrStatus::kSuccess, 1, 1, {}}), 0);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, 0);
}

TEST_F(Sidr, ALostRequestIsSentAgain) {
  UdpSocket server = udp_at(loopback_address());
  const auto query = ask(server.local_address());
  UdpPath path;
  const auto first = receive(server, path);
  const auto second = receive(server, path);
  EXPECT_EQ(first, second);
  SidrReply reply;
  reply.transaction = SidrRequest::decode(second)->transaction;
  reply.qp_number = 7;
  // Unknown bytes, and a reply to another request.
  send(server, sidr_bytes("garbage"), path.peer);
  reply.transaction ^= 1;
  send(server, reply.encode(), path.peer);
  reply.transaction ^= 1;
  send(server, reply.encode(), path.peer);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->told.qp_number, 7u);
  send(server, reply.encode(), path.peer);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(asking_->calls, 1);
}

TEST_F(Sidr, OnlyThePeerIsListenedTo) {
  UdpSocket server = udp_at(loopback_address());
  UdpSocket stranger = udp_at(loopback_address());
  const auto query = ask(server.local_address());
  UdpPath path;
  SidrReply reply;
  reply.transaction = SidrRequest::decode(receive(server, path))->transaction;
  send(stranger, reply.encode(), path.peer);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(asking_->calls, 0);
}

TEST_F(Sidr, ARepeatedRequestIsReportedOnceAndAnsweredAgain) {
  const sockaddr_storage at = listen_somewhere();
  UdpSocket client = udp_at(loopback_address());
  const auto request = SidrRequest{77, kUdpPortSpace, {}}.encode();
  send(client, request, at);
  send(client, request, at);
  const auto call = asked_->next();
  EXPECT_TRUE(silent(client));
  EXPECT_EQ(asked_->count, 1);
  EXPECT_EQ(call->answer({0, SidrStatus::kSuccess, 5, 6, {}}), 0);
  UdpPath path;
  const auto reply = receive(client, path);
  EXPECT_LE(reply.size(), request.size());
  send(client, request, at);
  EXPECT_EQ(receive(client, path), reply);
  EXPECT_EQ(asked_->count, 1);
}

TEST_F(Sidr, WhatIsNoRequestGetsNoAnswer) {
  const sockaddr_storage at = listen_somewhere();
  UdpSocket client = udp_at(loopback_address());
  send(client, {}, at);
  send(client, sidr_bytes("hello"), at);
  send(client, sidr_bytes(std::string(2'000, 'x')), at);
  send(client, SidrReply{}.encode(), at);
  const auto request = SidrRequest{77, kUdpPortSpace, {}}.encode();
  send(client, std::span(request).first(255), at);
  EXPECT_TRUE(silent(client));
  EXPECT_EQ(asked_->count, 0);
}

TEST_F(Sidr, AnotherVersionIsAnsweredWithAnError) {
  const sockaddr_storage at = listen_somewhere();
  UdpSocket client = udp_at(loopback_address());
  auto request = SidrRequest{78, kUdpPortSpace, {}}.encode();
  request[4] = std::byte{9};
  send(client, request, at);
  UdpPath path;
  const auto reply = SidrReply::decode(receive(client, path));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, SidrStatus::kUnknownVersion);
  EXPECT_EQ(reply->transaction, 78u);
  EXPECT_EQ(asked_->count, 0);
}

// The reply must come from the address that the request was sent to, or the peer would not accept
// it.
TEST_F(Sidr, AListenerOnAWildcardAnswersFromTheAddressThatWasAsked) {
  for (const char* wildcard : {"0.0.0.0", "::"}) {
    sockaddr_storage any{};
    (void)IpAddress::from_string(wildcard)->to_sockaddr(any, 0);
    UdpSocket bound = udp_at(any);
    const uint16_t port = port_of(bound.local_address());
    auto started = SidrListener::start(context(), std::move(bound), kUdpPortSpace, asked_);
    ASSERT_TRUE(started);
    sockaddr_storage to{};
    (void)IpAddress::from_string("127.0.0.9")->to_sockaddr(to, port);
    asking_ = std::make_shared<AskingOwner>();
    const auto query = ask(to);
    const auto call = asked_->next();
    EXPECT_EQ(ip_of(call->local_address()), ip_of(to)) << wildcard;
    EXPECT_EQ(ip_of(call->remote_address()).to_string(), "127.0.0.1") << wildcard;
    EXPECT_EQ(call->answer({0, SidrStatus::kSuccess, 5, 6, {}}), 0);
    ASSERT_TRUE(told()) << wildcard;
    (*started)->close();
  }
}

TEST_F(Sidr, AClosedListenerStillAnswersWhatItWasAsked) {
  const sockaddr_storage at = listen_somewhere();
  const auto query = ask(at);
  auto call = asked_->next();
  listener_->close();
  EXPECT_EQ(call->answer({0, SidrStatus::kSuccess, 5, 6, {}}), 0);
  ASSERT_TRUE(told());
  EXPECT_EQ(asking_->status, 0);
  // After that its port is free.
  BindOptions options;
  options.datagram = true;
  EXPECT_TRUE(bind_port(at, options));
}

TEST_F(Sidr, AQueryThatHasEndedIsNotCalled) {
  const sockaddr_storage at = listen_somewhere();
  const auto query = ask(at);
  const auto call = asked_->next();
  query->abort();
  query->abort();
  EXPECT_EQ(call->answer({}), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(asking_->calls, 0);
}

// Each request gets its own number and reply, in any order of serving.
TEST_F(Sidr, ManyAtOnce) {
  constexpr int kMany = 200;
  const sockaddr_storage at = listen_somewhere();
  std::vector<std::shared_ptr<AskingOwner>> owners;
  std::vector<std::shared_ptr<SidrQuery>> queries;
  for (int i = 0; i < kMany; ++i) {
    owners.push_back(asking_ = std::make_shared<AskingOwner>());
    queries.push_back(ask(at, std::to_string(i)));
  }
  for (int i = 0; i < kMany; ++i) {
    const auto call = asked_->next();
    EXPECT_EQ(call->answer({0, SidrStatus::kSuccess, 1, 1, call->private_data()}), 0);
  }
  for (int i = 0; i < kMany; ++i) {
    EXPECT_TRUE(eventually([&] { return owners[i]->calls > 0; })) << i;
    EXPECT_EQ(owners[i]->told.private_data, sidr_bytes(std::to_string(i)));
  }
  EXPECT_EQ(asked_->count, kMany);
}

}  // namespace
}  // namespace uwarp
