// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connections that end: calls go to the next one, which is negotiated afresh, or end with an error.
#include <atomic>
#include <map>

#include "rpcrdma/verbs/raw_peer.h"

namespace rpcrdma {
namespace {

class LostConnection : public testing::Test {
 protected:
  /// A server whose handler may be told to keep calls to itself.
  void serve(const std::string& port, const ServerOptions& options = {}) {
    server_ = std::make_unique<Server>(
        kHost, port,
        [this](Request request) {
          ++calls_;
          if (ignored_ == 0)
            answer(std::move(request));
          else
            --ignored_;
        },
        options);
  }
  void connect(const ClientOptions& options) {
    client_ = std::make_unique<Client>(kHost, std::to_string(server_->port()), options);
  }
  static ClientOptions patient() {
    ClientOptions options;
    options.retries = 1000;
    return options;
  }

  std::atomic<int> ignored_ = 0;
  std::atomic<int> calls_ = 0;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

// Proves: 8797-4-a
TEST_F(LostConnection, SettingsAreNegotiatedAfresh) {
  ServerOptions options;
  options.inline_receive = 16384;
  serve("", options);
  const std::string port = std::to_string(server_->port());
  ClientOptions client = patient();
  client.inline_send = client.inline_receive = 65536;
  connect(client);
  EXPECT_EQ(client_->settings().client_to_server, 16384u);
  EXPECT_EQ(client_->settings().server_to_client, 4096u);
  EXPECT_TRUE(client_->settings().remote_invalidation);

  server_.reset();
  options.inline_receive = 2048;
  options.inline_send = 32768;
  options.invalidation = 0;
  serve(port, options);
  const uint32_t xid = client_->next_xid();
  TestCall test(xid, pattern(10000, xid), 100, 9000);
  client_->call(test.call);
  expect_answer(test, xid, 100);
  EXPECT_EQ(client_->settings().client_to_server, 2048u);
  EXPECT_EQ(client_->settings().server_to_client, 32768u);
  EXPECT_FALSE(client_->settings().remote_invalidation);
  EXPECT_EQ(client_->statistics().connections, 2u);
  EXPECT_EQ(server_->statistics().read_chunks, 1u);
  EXPECT_EQ(server_->statistics().write_chunks, 0u);  // it fits a Send now

  server_.reset();
  options.announce = 0;
  serve(port, options);
  TestCall again(client_->next_xid(), {}, 0, 0);
  client_->call(again.call);
  EXPECT_EQ(client_->settings().client_to_server, 1024u);
  EXPECT_EQ(client_->settings().server_to_client, 1024u);
}

TEST_F(LostConnection, CallsUnderWayAreSentAgain) {
  serve("");
  const std::string port = std::to_string(server_->port());
  connect(patient());
  TestCall first(client_->next_xid(), {}, 0, 0);
  client_->call(first.call);  // many credits from here on
  constexpr int kCalls = 10;
  ignored_ = kCalls;
  calls_ = 0;
  std::vector<std::unique_ptr<TestCall>> tests;
  std::vector<uint32_t> xids;
  for (int i = 0; i < kCalls; ++i) {
    xids.push_back(client_->next_xid());
    tests.push_back(
        std::make_unique<TestCall>(xids[i], pattern(i * 1000, xids[i]), i * 1000, i * 1000));
    client_->start(tests.back()->call);
  }
  ASSERT_TRUE(eventually([this] { return calls_ == kCalls; }));
  server_.reset();
  serve(port);
  for (int i = 0; i < kCalls; ++i) {
    EXPECT_EQ(client_->wait(tests[i]->call), 0);
    expect_answer(*tests[i], xids[i], i * 1000);
  }
  EXPECT_GE(client_->statistics().retransmissions, uint64_t{kCalls});
}

// No answer in time: never again on the same connection.
TEST_F(LostConnection, TimedOutCallsAreSentOnANewOne) {
  serve("");
  connect(patient());
  ignored_ = 1;
  const uint32_t xid = client_->next_xid();
  TestCall test(xid, pattern(5000, xid), 0, 5000);
  test.call.timeout_ms = 100;
  ASSERT_EQ(rpcrdma_client_call(client_->get(), &test.call), 0);
  expect_answer(test, xid, 0);
  EXPECT_GE(client_->statistics().connections, 2u);
  EXPECT_EQ(client_->statistics().connections - 1, client_->statistics().retransmissions);
}

TEST_F(LostConnection, CallsGiveUpInTheEnd) {
  serve("");
  ClientOptions options;
  options.retries = 2;
  connect(options);
  ignored_ = 1000;
  TestCall test(client_->next_xid(), pattern(5000, 1), 0, 5000);
  test.call.timeout_ms = 50;
  EXPECT_EQ(rpcrdma_client_call(client_->get(), &test.call), -ETIMEDOUT);
  EXPECT_EQ(client_->statistics().connections, 3u);
  EXPECT_EQ(client_->statistics().retransmissions, 2u);

  server_.reset();
  TestCall next(client_->next_xid(), {}, 0, 0);
  EXPECT_EQ(rpcrdma_client_call(client_->get(), &next.call), -ECONNREFUSED);
}

TEST_F(LostConnection, CallsThatMustNotBeSentTwice) {
  serve("");
  const std::string port = std::to_string(server_->port());
  connect(patient());
  ignored_ = 1;
  TestCall test(client_->next_xid(), pattern(5000, 1), 0, 5000);
  test.call.flags = RPCRDMA_CALL_ONCE;
  client_->start(test.call);
  ASSERT_TRUE(eventually([this] { return calls_ == 1; }));
  server_.reset();
  EXPECT_EQ(client_->wait(test.call), -ECONNRESET);
}

TEST_F(LostConnection, Cancelled) {
  for (const bool windows : {true, false}) {
    serve("");
    ClientOptions options = patient();
    options.invalidation = windows;
    connect(options);
    ignored_ = 1;
    calls_ = 0;
    TestCall sent(client_->next_xid(), pattern(5000, 1), 0, 5000);
    TestCall waiting(client_->next_xid(), pattern(5000, 1), 0, 5000);
    client_->start(sent.call);
    client_->start(waiting.call);  // there is one credit only
    ASSERT_TRUE(eventually([this] { return calls_ == 1; }));
    EXPECT_EQ(rpcrdma_client_cancel(client_->get(), &waiting.call), 0);
    EXPECT_EQ(client_->wait(waiting.call), -ECANCELED);
    EXPECT_EQ(rpcrdma_client_cancel(client_->get(), &sent.call), 0);
    EXPECT_EQ(client_->wait(sent.call), -ECANCELED);
    EXPECT_EQ(rpcrdma_client_cancel(client_->get(), &sent.call), -ENOENT);
    EXPECT_EQ(calls_, 1);
  }
}

TEST_F(LostConnection, ClosedUnderCalls) {
  serve("");
  connect(patient());
  ignored_ = 1;
  TestCall test(client_->next_xid(), pattern(5000, 1), 0, 5000);
  std::atomic<int> status = 1;
  test.call.context = &status;
  test.call.done = [](rpcrdma_call* call) {
    *static_cast<std::atomic<int>*>(call->context) = call->status;
  };
  client_->start(test.call);
  ASSERT_TRUE(eventually([this] { return calls_ == 1; }));
  client_.reset();
  EXPECT_EQ(status, -ECONNABORTED);
}

TEST_F(LostConnection, ServerClosedUnderRequests) {
  std::mutex mutex;
  std::vector<Request> requests;
  auto server = std::make_unique<Server>(kHost, "", [&](Request request) {
    const std::lock_guard lock(mutex);
    requests.push_back(std::move(request));
  });
  Client client(kHost, std::to_string(server->port()), [] {
    ClientOptions options;
    options.retries = 0;
    return options;
  }());
  TestCall test(client.next_xid(), pattern(5000, 1), 0, 5000);
  client.start(test.call);
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return requests.size() == 1;
  }));
  server.reset();
  EXPECT_LT(client.wait(test.call), 0);
  // The message is still there, and the reply goes nowhere.
  EXPECT_EQ(answer(std::move(requests[0])), -ENOTCONN);
}

TEST_F(LostConnection, NoServerListens) {
  serve("");
  const std::string port = std::to_string(server_->port());
  server_.reset();
  rpcrdma_client* client = nullptr;
  EXPECT_EQ(rpcrdma_client_connect(&client, kHost, port.c_str(), nullptr), -ECONNREFUSED);
}

}  // namespace
}  // namespace rpcrdma
