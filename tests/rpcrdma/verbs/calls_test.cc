// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Calls of every shape from a client to a server of this library: inline, with each kind of chunk,
// many at a time, with and without memory windows.
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "rpcrdma/verbs/rpcrdma_fixture.h"

extern "C" int c_interface_works(void);

namespace rpcrdma {
namespace {

TEST(CInterface, Works) { EXPECT_TRUE(c_interface_works()); }

class Calls : public testing::Test {
 protected:
  void begin(const ClientOptions& client = {}, const ServerOptions& server = {}) {
    client_.reset();
    server_ = std::make_unique<Server>(
        kHost, "", [](Request request) { EXPECT_EQ(answer(std::move(request)), 0); }, server);
    client_ = std::make_unique<Client>(kHost, std::to_string(server_->port()), client);
  }
  /// One call, with its answer checked.
  void call(size_t data, uint32_t filler, uint32_t result, unsigned flags = 0) {
    const uint32_t xid = client_->next_xid();
    TestCall test(xid, pattern(data, xid), filler, result);
    test.call.flags = flags;
    ASSERT_EQ(rpcrdma_client_call(client_->get(), &test.call), 0);
    expect_answer(test, xid, filler);
  }
  /// Calls of many sizes, around the thresholds too.
  void call_all_shapes() {
    for (const size_t data : {0, 1, 900, 998, 4000, 4043, 4044, 4045, 50001})
      for (const uint32_t filler : {0u, 980u, 4052u, 4056u, 20000u})
        for (const uint32_t result : {0u, 1u, 3000u, 4096u, 65537u}) {
          call(data, filler, result);
          if (HasFatalFailure()) return;
        }
  }
  static ClientOptions with_thresholds(uint32_t size) {
    ClientOptions options;
    options.inline_send = options.inline_receive = size;
    return options;
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(Calls, ShortOnesAreOneSendEachWay) {
  begin();
  call(100, 40, 60);
  const auto client = client_->statistics();
  EXPECT_EQ(client.sends, 1u);
  EXPECT_EQ(client.segments, 0u);
  EXPECT_EQ(server_->statistics().sends, 1u);
  EXPECT_EQ(server_->statistics().rdma_writes, 0u);
}

TEST_F(Calls, EveryKindOfChunk) {
  begin();
  call(10000, 0, 0);  // Read chunk
  call(10001, 0, 0);  // with its padding
  call(0, 0, 70000);  // Write chunk
  call(0, 9000, 0);   // Reply chunk
  call(30001, 9000, 5003);
  const auto client = client_->statistics();
  EXPECT_EQ(client.read_chunks, 3u);
  EXPECT_EQ(client.write_chunks_used, 2u);
  EXPECT_EQ(client.reply_chunks_used, 2u);
  EXPECT_EQ(client.long_calls, 0u);
  const auto server = server_->statistics();
  EXPECT_EQ(server.rdma_reads, 3u);
  EXPECT_EQ(server.rdma_writes, 4u);
  EXPECT_EQ(server.sends, 5u);
}

TEST_F(Calls, AllShapes) {
  begin();
  call_all_shapes();
}

TEST_F(Calls, AllShapesAtOtherThresholds) {
  begin(with_thresholds(1024));
  call_all_shapes();
  ServerOptions large;
  large.inline_send = large.inline_receive = 262144;
  begin(with_thresholds(262144), large);
  call_all_shapes();
  EXPECT_EQ(client_->statistics().segments, 0u);
}

// Proves: 8797-1-a 8797-3.1-a 8797-5.1-a
TEST_F(Calls, WithoutPrivateData) {
  for (const bool client : {false, true}) {
    ClientOptions client_options;
    client_options.announce = client;
    ServerOptions server_options;
    server_options.announce = !client;
    begin(client_options, server_options);
    const rpcrdma_settings settings = client_->settings();
    EXPECT_EQ(settings.client_to_server, 1024u);
    EXPECT_EQ(settings.server_to_client, 1024u);
    EXPECT_FALSE(settings.remote_invalidation);
    call_all_shapes();
    EXPECT_EQ(client_->statistics().remote_invalidations, 0u);
  }
}

// Each direction has its own threshold.
// Proves: 8797-4.2-d 8797-4.2-e 8797-4-j 8797-4-b
TEST_F(Calls, ThresholdsOfBothDirections) {
  ClientOptions client;
  client.inline_send = 16384;
  client.inline_receive = 2048;
  ServerOptions server;
  server.inline_send = 8192;
  server.inline_receive = 6000;  // rounded down
  begin(client, server);
  const rpcrdma_settings before = client_->settings();
  EXPECT_EQ(before.client_to_server, 5120u);
  EXPECT_EQ(before.server_to_client, 2048u);
  EXPECT_EQ(before.peer_send, 8192u);
  EXPECT_EQ(before.peer_receive, 5120u);
  call(5120 - 28 - 24, 0, 0);
  call(0, 2048 - 28 - 16, 0);
  EXPECT_EQ(client_->statistics().segments, 0u);
  call(5120 - 28 - 23, 0, 0);
  call(0, 2048 - 28 - 12, 0);
  EXPECT_EQ(client_->statistics().read_chunks, 1u);
  EXPECT_EQ(client_->statistics().reply_chunks, 1u);
  const rpcrdma_settings after = client_->settings();
  EXPECT_EQ(after.client_to_server, before.client_to_server);
  EXPECT_EQ(after.server_to_client, before.server_to_client);
  EXPECT_EQ(after.remote_invalidation, before.remote_invalidation);
}

// What the thresholds are for: a call whose reply may have 2,000 bytes is two Sends at 4,096, and
// takes a Reply chunk at 1,024.
// Proves: 8797-4.2-e
TEST_F(Calls, SendsAndChunksOfAShortReplyThatMightBeLonger) {
  for (const auto& [threshold, chunks] : {std::pair(1024u, 1u), std::pair(4096u, 0u)}) {
    begin(with_thresholds(threshold));
    const uint32_t xid = client_->next_xid();
    TestCall test(xid, {}, 100, 0, 2000);
    test.call.reply_max = 2000;
    client_->call(test.call);
    expect_answer(test, xid, 100);
    EXPECT_EQ(client_->statistics().reply_chunks, chunks);
    EXPECT_EQ(client_->statistics().sends, 1u);
    EXPECT_EQ(server_->statistics().sends, 1u);
    EXPECT_EQ(server_->statistics().rdma_writes, 0u);
  }
}

TEST_F(Calls, ChunksWhereTheyAreAskedFor) {
  begin();
  call(100, 0, 100, RPCRDMA_CALL_CHUNKS);
  EXPECT_EQ(client_->statistics().read_chunks, 1u);
  EXPECT_EQ(client_->statistics().write_chunks_used, 1u);
}

TEST_F(Calls, LongCalls) {
  begin();
  const auto long_call = [this](unsigned flags) {
    const uint32_t xid = client_->next_xid();
    TestCall test(xid, pattern(70000, xid), 0, 0);
    test.pieces[1].flags = flags;
    client_->call(test.call);
    expect_answer(test, xid, 0);
  };
  long_call(0);
  EXPECT_EQ(client_->statistics().long_calls, 1u);
  EXPECT_EQ(client_->statistics().read_chunks, 0u);
  long_call(RPCRDMA_PIECE_DDP);
  EXPECT_EQ(client_->statistics().long_calls, 1u);
  EXPECT_EQ(client_->statistics().read_chunks, 1u);
}

// An item and a result of many pieces, of odd lengths.
TEST_F(Calls, ScatteredMemory) {
  begin();
  const uint32_t xid = client_->next_xid();
  TestCall test(xid, pattern(9001, xid), 0, 9001);
  const auto* at = test.data.data();
  const rpcrdma_piece pieces[] = {
      test.pieces[0],
      {at, 17, RPCRDMA_PIECE_DDP, nullptr},
      {at + 17, 0, RPCRDMA_PIECE_DDP | RPCRDMA_PIECE_CONTINUED, nullptr},
      {at + 17, 5000, RPCRDMA_PIECE_DDP | RPCRDMA_PIECE_CONTINUED, nullptr},
      {at + 5017, 3984, RPCRDMA_PIECE_DDP | RPCRDMA_PIECE_CONTINUED, nullptr},
      test.pieces[2]};
  rpcrdma_result results[] = {
      {test.result.data(), 4000, 0, nullptr, 0},
      {test.result.data() + 4000, 7000, RPCRDMA_PIECE_CONTINUED, nullptr, 0}};
  test.result.resize(11000);
  results[0].base = test.result.data();
  results[1].base = test.result.data() + 4000;
  test.call.pieces = pieces;
  test.call.piece_count = 6;
  test.call.results = results;
  test.call.result_count = 2;
  client_->call(test.call);
  EXPECT_EQ(results[0].received, 4000u);
  EXPECT_EQ(results[1].received, 5001u);
  test.result.resize(9001);
  test.wanted.received = 9001;
  expect_answer(test, xid, 0);
  EXPECT_EQ(client_->statistics().read_chunks, 1u);
  EXPECT_EQ(client_->statistics().write_chunks, 1u);
  EXPECT_EQ(client_->statistics().segments, 5u);
}

TEST_F(Calls, MemoryOfTheCaller) {
  for (const bool windows : {true, false}) {
    ClientOptions options;
    options.invalidation = windows;
    begin(options);
    const uint32_t xid = client_->next_xid();
    TestCall test(xid, pattern(9001, xid), 8000, 9001);
    const Memory data = client_->register_memory(test.data);
    const Memory result = client_->register_memory(test.result);
    const Memory reply = client_->register_memory(test.reply);
    test.pieces[1].memory = data.get();
    test.wanted.memory = result.get();
    test.call.reply_memory = reply.get();
    client_->call(test.call);
    expect_answer(test, xid, 8000);
    // Memory that is not where the piece is.
    test.pieces[1].memory = result.get();
    EXPECT_EQ(rpcrdma_client_start(client_->get(), &test.call), -EINVAL);
  }
}

// Proves: 8797-4.1-a 8797-4-i
TEST_F(Calls, ServerInvalidatesWhenBothAgreed) {
  begin();
  EXPECT_TRUE(client_->settings().remote_invalidation);
  call(10000, 0, 0);
  call(0, 9000, 9000);
  const auto client = client_->statistics();
  EXPECT_EQ(client.remote_invalidations, 2u);
  EXPECT_EQ(client.local_invalidations, 1u);  // the third window
  EXPECT_EQ(server_->statistics().remote_invalidations, 2u);
}

// Proves: 8797-4.1-c 8797-3.2-a
TEST_F(Calls, InvalidationThatOneSideDoesNotWant) {
  for (const auto& [of_client, of_server] :
       {std::pair(false, true), std::pair(true, false), std::pair(false, false)}) {
    ClientOptions client;
    client.invalidation = of_client;
    ServerOptions server;
    server.invalidation = of_server;
    begin(client, server);
    EXPECT_FALSE(client_->settings().remote_invalidation);
    EXPECT_EQ(client_->settings().peer_remote_invalidation, of_server);
    call(10000, 9000, 9000);
    EXPECT_EQ(client_->statistics().remote_invalidations, 0u);
    EXPECT_EQ(server_->statistics().remote_invalidations, 0u);
    EXPECT_EQ(client_->statistics().local_invalidations, of_client ? 3u : 0u);
  }
}

/// Counts calls that are done, in the library's thread.
struct Countdown {
  explicit Countdown(int calls) : left(calls) {}
  static void tick(rpcrdma_call* call) {
    auto* countdown = static_cast<Countdown*>(call->context);
    const std::lock_guard lock(countdown->mutex);
    if (--countdown->left == 0) countdown->none_left.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    none_left.wait(lock, [this] { return left == 0; });
  }
  std::mutex mutex;
  std::condition_variable none_left;
  int left;
};

TEST_F(Calls, ManyAtATime) {
  begin();
  constexpr int kCalls = 400;
  Countdown countdown(kCalls);
  std::vector<std::unique_ptr<TestCall>> tests;
  for (int i = 0; i < kCalls; ++i) {
    const uint32_t xid = client_->next_xid();
    const auto size = static_cast<uint32_t>(i);
    tests.push_back(std::make_unique<TestCall>(xid, pattern(i % 3 * 3000 + size, xid),
                                               i % 5 == 0 ? 5000 : size,
                                               i % 2 == 0 ? size : 4000 + size));
    rpcrdma_call& call = tests.back()->call;
    call.done = &Countdown::tick;
    call.context = &countdown;
    client_->start(call);
  }
  countdown.wait();
  for (const auto& test : tests) {
    ParsedCall sent;
    core::XdrReader reader(test->head);
    ASSERT_TRUE(reader.u32(sent.xid) && reader.u32(sent.type) && reader.u32(sent.filler));
    expect_answer(*test, sent.xid, sent.filler);
  }
  EXPECT_EQ(client_->settings().credits, 32u);
}

TEST_F(Calls, FromManyThreads) {
  begin();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([this] {
      for (int i = 0; i < 50; ++i) call(i * 200, i % 2 * 5000, i * 300);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(client_->statistics().replies, 200u);
  EXPECT_EQ(client_->statistics().retransmissions, 0u);
}

TEST_F(Calls, ManyClients) {
  begin();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 10; ++i)
    clients.push_back(std::make_unique<Client>(kHost, std::to_string(server_->port())));
  EXPECT_TRUE(eventually([this] { return server_->connections() == 11; }));
  for (auto& client : clients) {
    std::swap(client, client_);
    call(5000, 5000, 5000);
  }
  clients.clear();
  EXPECT_TRUE(eventually([this] { return server_->connections() == 1; }));
}

// The server answers later, from a thread of its own, in another order.
TEST_F(Calls, AnsweredOutOfOrder) {
  std::mutex mutex;
  std::vector<Request> requests;
  server_ = std::make_unique<Server>(kHost, "", [&](Request request) {
    const std::lock_guard lock(mutex);
    requests.push_back(std::move(request));
  });
  client_ = std::make_unique<Client>(kHost, std::to_string(server_->port()));
  constexpr size_t kCalls = 8;
  std::vector<std::unique_ptr<TestCall>> tests;
  std::vector<uint32_t> xids;
  for (size_t i = 0; i < kCalls; ++i) {
    xids.push_back(client_->next_xid());
    tests.push_back(std::make_unique<TestCall>(xids[i], pattern(6000, xids[i]), 0, 6000));
    client_->start(tests[i]->call);
  }
  const auto answer_newest = [&] {
    const std::lock_guard lock(mutex);
    if (requests.empty()) return false;
    EXPECT_EQ(answer(std::move(requests.back())), 0);
    requests.pop_back();
    return true;
  };
  // The first reply grants credits for the others.
  ASSERT_TRUE(eventually(answer_newest));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return requests.size() == kCalls - 1;
  }));
  while (answer_newest()) {
  }
  for (size_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(client_->wait(tests[i]->call), 0);
    expect_answer(*tests[i], xids[i], 0);
  }
}

// A reply that is longer than the caller said.
TEST_F(Calls, ReplyWithoutRoom) {
  begin();
  TestCall test(client_->next_xid(), {}, 2000, 0, 1000);
  test.call.reply_max = 0;
  EXPECT_EQ(rpcrdma_client_call(client_->get(), &test.call), -EMSGSIZE);
  TestCall longer(client_->next_xid(), {}, 9000, 0, 5000);
  longer.call.reply_max = 0;
  server_.reset();  // the handler would report the failure of its reply
}

TEST_F(Calls, BadArguments) {
  begin();
  TestCall test(client_->next_xid(), {}, 0, 0);
  const auto refused = [&](int error, auto&& change) {
    rpcrdma_call call = test.call;
    change(call);
    EXPECT_EQ(rpcrdma_client_start(client_->get(), &call), error);
  };
  refused(-EINVAL, [](rpcrdma_call& call) { call.piece_count = 0; });
  refused(-EINVAL, [](rpcrdma_call& call) { call.reply_size = 4; });
  refused(-EINVAL, [](rpcrdma_call& call) { call.reply = nullptr; });
  refused(-EINVAL, [](rpcrdma_call& call) { call.flags = 128; });
  refused(-EMSGSIZE, [](rpcrdma_call& call) {
    static std::vector<rpcrdma_piece> many(100, call.pieces[0]);
    call.pieces = many.data();
    call.piece_count = 100;
  });
  EXPECT_EQ(rpcrdma_client_cancel(client_->get(), &test.call), -ENOENT);
  rpcrdma_client* none = nullptr;
  EXPECT_EQ(rpcrdma_client_connect(&none, "no.such.host.invalid", "1", nullptr), -EADDRNOTAVAIL);
  EXPECT_EQ(rpcrdma_client_connect(&none, nullptr, "1", nullptr), -EINVAL);
}

}  // namespace
}  // namespace rpcrdma
