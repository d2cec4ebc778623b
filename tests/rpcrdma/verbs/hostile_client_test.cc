// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A server of this library and clients made by hand: what it announces, what it makes of their
// private data, and calls against the rules. It answers with an error or ends the connection, and
// goes on serving others.
#include "rpcrdma/verbs/raw_peer.h"

namespace rpcrdma {
namespace {

using core::Header;
using core::HeaderError;
using core::Procedure;
using core::Segment;

constexpr uint32_t kXid = 0x1badcafe;

class HostileClient : public testing::Test {
 protected:
  void begin(const Bytes& private_data, const ServerOptions& options = {}) {
    server_ = std::make_unique<Server>(
        kHost, "",
        [this](Request request) {
          rpcrdma_settings settings;
          rpcrdma_request_settings(request.get(), &settings);
          {
            const std::lock_guard lock(mutex_);
            settings_ = settings;
          }
          answer(std::move(request));
        },
        options);
    again(private_data);
  }
  void again(const Bytes& private_data) {
    peer_ = std::make_unique<RawPeer>();
    ASSERT_TRUE(peer_->connect(server_->port(), private_data));
  }
  void TearDown() override {
    // After each hostile client the server serves the next one.
    again(announcement(false, 4096, 4096));
    expect_served();
  }
  void expect_served() {
    peer_->send(call_header(kXid), call_bytes(kXid, pattern(20, 1), 8, 0));
    const auto reply = peer_->receive();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->decoded.header.procedure, Procedure::kMsg);
    EXPECT_EQ(reply->decoded.header.xid, kXid);
    EXPECT_GE(reply->decoded.header.credits, 1u);
  }
  void expect_error(HeaderError error, uint32_t xid = kXid) {
    const auto reply = peer_->receive();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->decoded.verdict, core::DecodedHeader::Verdict::kGood);
    EXPECT_EQ(reply->decoded.header, Header::make_error(xid, reply->decoded.header.credits, error));
    EXPECT_GE(reply->decoded.header.credits, 1u);
  }
  rpcrdma_settings settings() {
    const std::lock_guard lock(mutex_);
    return settings_;
  }

  std::mutex mutex_;
  rpcrdma_settings settings_{};
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawPeer> peer_;
};

// Proves: 8797-4-c 8797-4-f
TEST_F(HostileClient, ServerAnnouncesItself) {
  ServerOptions options;
  options.inline_send = 8192;
  options.inline_receive = 65536;
  begin(announcement(true, 4096, 4096), options);
  EXPECT_EQ(core::PrivateData::find(peer_->private_data()), (core::PrivateData{true, 8192, 65536}));
  // To one that announced nothing as well, as Linux does.
  again({});
  EXPECT_EQ(core::PrivateData::find(peer_->private_data()), (core::PrivateData{true, 8192, 65536}));
}

// Proves: 8797-5.1-a 8797-5.2-b 8797-1-a 8797-3.1-a
TEST_F(HostileClient, PrivateDataThatIsNone) {
  begin({});
  Bytes cut = announcement(true, 4096, 4096);
  Bytes other_version = cut, other_identifier = cut;
  cut.resize(7);
  other_version[4] = std::byte{9};
  other_identifier[0] = std::byte{0xf7};
  for (const Bytes& none : {Bytes(), cut, other_version, other_identifier, pattern(100, 3)}) {
    again(none);
    expect_served();
    EXPECT_FALSE(settings().peer_announced);
    EXPECT_EQ(settings().server_to_client, 1024u);
    EXPECT_EQ(settings().client_to_server, 1024u);
    EXPECT_FALSE(settings().remote_invalidation);
  }
}

// Proves: 8797-5.2-a 8797-5.2-e
TEST_F(HostileClient, PrivateDataAmongOthers) {
  begin({});
  Bytes mixed(17, std::byte{0x11});
  const Bytes own = announcement(true, 2048, 8192);
  mixed.insert(mixed.end(), own.begin(), own.end());
  mixed.resize(60);
  again(mixed);
  expect_served();
  EXPECT_TRUE(settings().peer_announced);
  EXPECT_EQ(settings().client_to_server, 2048u);
  EXPECT_EQ(settings().server_to_client, 4096u);
}

// The largest message, as soon as the connection is there.
// Proves: 8797-4.2-f
TEST_F(HostileClient, ReceivesOfTheAnnouncedSizeArePosted) {
  for (const uint32_t size : {1024u, 16384u, 262144u}) {
    ServerOptions options;
    options.inline_receive = size;
    begin(announcement(false, size, size), options);
    const size_t around = Header::kSizeMin + 20 + 4;
    Bytes bytes(Header::kSizeMin);
    ASSERT_EQ(call_header(kXid).encode(bytes), bytes.size());
    const Bytes rpc = call_bytes(kXid, pattern(size - around, 1), 0, 0);
    bytes.insert(bytes.end(), rpc.begin(), rpc.end());
    ASSERT_EQ(bytes.size(), size);
    peer_->send(bytes);
    const auto reply = peer_->receive();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->decoded.header.procedure, Procedure::kMsg);
  }
}

// One byte more has no receive.
// Proves: 8797-3.1-b
TEST_F(HostileClient, AMessageAboveTheThresholdEndsTheConnection) {
  begin(announcement(false, 4096, 4096));
  peer_->post(Bytes(4097));
  EXPECT_FALSE(peer_->receive());
}

// Proves: 8797-4.1-a 8797-4.1-b
TEST_F(HostileClient, RepliesInvalidateAHandleOfTheirCall) {
  begin(announcement(true, 4096, 4096));
  std::vector<Segment> segments;
  constexpr uint32_t kCalls = 6;
  for (uint32_t i = 0; i < kCalls; ++i) {
    segments.push_back(peer_->expose(i * 4096, 4096));
    core::ChunkLists chunks;
    chunks.writes = {{segments.back()}};
    peer_->send(call_header(kXid + i, chunks), call_bytes(kXid + i, {}, 0, 3000));
  }
  for (uint32_t i = 0; i < kCalls; ++i) {
    const auto reply = peer_->receive();
    ASSERT_TRUE(reply);
    ASSERT_TRUE(reply->invalidated);
    EXPECT_EQ(*reply->invalidated, segments[reply->decoded.header.xid - kXid].handle);
  }
  // A call without memory has none to invalidate.
  peer_->send(call_header(kXid), call_bytes(kXid, {}, 0, 0));
  const auto reply = peer_->receive();
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->invalidated);
}

// Proves: 8797-4.1-c 8797-3.2-a
TEST_F(HostileClient, RepliesInvalidateNothingUnlessBothAgreed) {
  for (const auto& [client, server] :
       {std::pair(false, true), std::pair(true, false), std::pair(false, false)}) {
    ServerOptions options;
    options.invalidation = server;
    begin(announcement(client, 4096, 4096), options);
    core::ChunkLists chunks;
    chunks.writes = {{peer_->expose(0, 4096)}};
    peer_->send(call_header(kXid, chunks), call_bytes(kXid, {}, 0, 3000));
    const auto reply = peer_->receive();
    ASSERT_TRUE(reply);
    EXPECT_FALSE(reply->invalidated);
    EXPECT_EQ(reply->decoded.header.chunks.writes[0][0].length, 3000u);
  }
}

TEST_F(HostileClient, AnotherVersion) {
  begin(announcement(false, 4096, 4096));
  Header header = call_header(kXid);
  header.version = 2;
  peer_->send(header, call_bytes(kXid, {}, 0, 0));
  expect_error(HeaderError::kVersion);
  expect_served();
}

TEST_F(HostileClient, CreditsOfZeroCountAsOne) {
  begin(announcement(false, 4096, 4096));
  Header header = call_header(kXid);
  header.credits = 0;
  peer_->send(header, call_bytes(kXid, {}, 0, 0));
  const auto reply = peer_->receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->decoded.header.credits, 1u);
}

TEST_F(HostileClient, ChunksThatMakeNoCall) {
  begin(announcement(false, 4096, 4096));
  const Segment memory = peer_->expose(0, 4096);
  const Bytes rpc = call_bytes(kXid, {}, 0, 0);
  const auto refused = [&](std::vector<core::ReadSegment> reads, Procedure procedure) {
    Header header = call_header(kXid, {std::move(reads), {}, {}});
    header.procedure = procedure;
    peer_->send(header, rpc);
    expect_error(HeaderError::kChunk);
  };
  refused({{4000, memory}}, Procedure::kMsg);                        // behind its end
  refused({{6, memory}}, Procedure::kMsg);                           // within a word
  refused({{0, memory}}, Procedure::kMsg);                           // twice a message
  refused({}, Procedure::kNomsg);                                    // no message
  refused({{20, {memory.handle, UINT32_MAX, 0}}}, Procedure::kMsg);  // too long
  refused({}, Procedure::kMsgp);
  refused({}, Procedure{77});
  expect_served();
}

TEST_F(HostileClient, ListsWithoutEnd) {
  begin(announcement(false, 4096, 4096));
  Bytes bytes(Header::kFixedSize);
  Bytes whole(Header::kSizeMin);
  ASSERT_NE(call_header(kXid).encode(whole), 0u);
  std::copy_n(whole.begin(), Header::kFixedSize, bytes.begin());
  const Bytes entry = Words{{1, 20, 7, 1, 0, 0}}.bytes();
  while (bytes.size() + entry.size() <= 4096) bytes.insert(bytes.end(), entry.begin(), entry.end());
  peer_->send(bytes);
  expect_error(HeaderError::kChunk);
  expect_served();
}

TEST_F(HostileClient, XidsThatDiffer) {
  begin(announcement(false, 4096, 4096));
  peer_->send(call_header(kXid), call_bytes(kXid + 1, {}, 0, 0));
  expect_error(HeaderError::kChunk);
  peer_->send(call_header(kXid), Bytes(4));
  expect_error(HeaderError::kChunk);
  expect_served();
}

// The client could not tell to which call these answers belong.
TEST_F(HostileClient, MessagesWithoutAnAnswer) {
  begin(announcement(false, 4096, 4096));
  peer_->send(Bytes(3));
  peer_->send(Header::make_error(kXid, 1, HeaderError::kChunk));
  Header done = call_header(kXid);
  done.procedure = Procedure::kDone;
  peer_->send(done);
  expect_served();
  EXPECT_EQ(server_->statistics().discarded, 3u);
  EXPECT_EQ(server_->statistics().errors_sent, 0u);
}

TEST_F(HostileClient, ReplyThatFitsNowhere) {
  begin(announcement(false, 1024, 1024));
  peer_->send(call_header(kXid), call_bytes(kXid, {}, 2000, 0));
  expect_error(HeaderError::kChunk);
  core::ChunkLists chunks;
  chunks.writes = {{peer_->expose(0, 100)}};
  peer_->send(call_header(kXid, chunks), call_bytes(kXid, {}, 0, 101));
  expect_error(HeaderError::kChunk);
  expect_served();
}

// Memory that is not the client's to name: the device ends the connection.
TEST_F(HostileClient, HandlesThatAreNone) {
  begin(announcement(false, 4096, 4096));
  core::ChunkLists chunks;
  chunks.reads = {{20, {0x12345, 40, 0}}};
  peer_->send(call_header(kXid, chunks), call_bytes(kXid, {}, 0, 0));
  EXPECT_FALSE(peer_->receive());
}

// As many as there are receives come at once; then one that waits for no reply goes on.
TEST_F(HostileClient, MoreCallsThanCredits) {
  ServerOptions options;
  options.credits = 2;
  begin(announcement(false, 4096, 4096), options);
  const Bytes rpc = call_bytes(kXid, {}, 0, 0);
  Bytes bytes(Header::kSizeMin);
  ASSERT_NE(call_header(kXid).encode(bytes), 0u);
  bytes.insert(bytes.end(), rpc.begin(), rpc.end());
  // The device may keep what has no receive, or end the connection: both will do.
  for (int i = 0; i < 10; ++i) peer_->post(bytes);
}

TEST_F(HostileClient, TooManyConnections) {
  ServerOptions options;
  options.connections = 2;
  begin(announcement(false, 4096, 4096), options);
  RawPeer second, third;
  EXPECT_TRUE(second.connect(server_->port(), {}));
  EXPECT_FALSE(third.connect(server_->port(), {}));
  peer_.reset();
  EXPECT_TRUE(eventually([&] { return server_->connections() == 1; }));
}

}  // namespace
}  // namespace rpcrdma
