// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A server of librpcrdma while threads and files run out: it refuses one client and serves the
// next.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "faults/denied_calls.h"
#include "rpcrdma/rpcrdma.hpp"
#include "verbs/verbs_fixture.h"

namespace {

constexpr char kHost[] = "127.0.0.1";

class RpcServer : public testing::Test {
 protected:
  void SetUp() override { nothing_denied = true; }
  void TearDown() override { nothing_denied = false; }

  rpcrdma::Client connect() {
    rpcrdma::ClientOptions options;
    options.retries = 1000;
    return {kHost, std::to_string(server_.port()), options};
  }
  /// The server echoes the message.
  static void expect_answer(rpcrdma::Client& client) {
    const std::array<uint32_t, 2> sent{htonl(client.next_xid()), 0};
    std::array<uint32_t, 2> got{};
    const rpcrdma_piece piece = rpcrdma::piece(std::as_bytes(std::span(sent)));
    rpcrdma_call call{};
    call.pieces = &piece;
    call.piece_count = 1;
    call.reply = got.data();
    call.reply_size = call.reply_max = sizeof got;
    client.call(call);
    EXPECT_EQ(got, sent);
  }

  rpcrdma::Server server_{kHost, "", [](rpcrdma::Request request) {
                            const rpcrdma_piece all = rpcrdma::piece(request.message());
                            (void)request.reply({&all, 1});
                          }};
};

TEST_F(RpcServer, WithoutAThreadForAClient) {
  no_threads = true;
  rpcrdma::Client client = connect();
  EXPECT_TRUE(wait_until([] { return denied_calls() != 0; }));
  EXPECT_TRUE(wait_until([&] { return server_.connections() == 0; }));
  no_threads = false;
  expect_answer(client);  // over a new connection of the client
}

TEST_F(RpcServer, WithoutAnEventfdForAClient) {
  no_eventfds = true;
  try {
    connect();
    ADD_FAILURE() << "accepted";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ECONNREFUSED);
  }
  no_eventfds = false;
  rpcrdma::Client client = connect();
  expect_answer(client);
}

TEST(RpcEnds, WithoutAnEventfdOfTheirOwn) {
  no_eventfds = true;
  rpcrdma_server* server = nullptr;
  const auto ignore = [](rpcrdma_request*, void*) {};
  EXPECT_EQ(rpcrdma_server_listen(&server, kHost, nullptr, nullptr, ignore, nullptr), -EMFILE);
  rpcrdma_client* client = nullptr;
  EXPECT_EQ(rpcrdma_client_connect(&client, kHost, "1", nullptr), -EMFILE);
  no_eventfds = false;
}

}  // namespace
