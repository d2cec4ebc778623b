// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A client of this library and servers made by hand: what it announces and sends, and replies
// against the rules.
#include "rpcrdma/verbs/raw_peer.h"

namespace rpcrdma {
namespace {

using core::Header;
using core::HeaderError;
using core::Procedure;

class HostileServer : public testing::Test {
 protected:
  void begin(const Bytes& private_data, ClientOptions options = {}) {
    options.retries = 0;
    // Earlier ones go first.
    client_.reset();
    peer_ = std::make_unique<RawPeer>();
    const uint16_t port = peer_->listen();
    ASSERT_NE(port, 0);
    std::thread accepting([&] { EXPECT_TRUE(peer_->accept(private_data)); });
    client_ = std::make_unique<Client>(kHost, std::to_string(port), options);
    accepting.join();
  }
  void TearDown() override {
    client_.reset();
    peer_.reset();
  }
  /// Starts a call that offers Write and Reply chunks, and receives it.
  void start() {
    xid_ = client_->next_xid();
    test_ = std::make_unique<TestCall>(xid_, Bytes(), 9000, 9000);
    client_->start(test_->call);
    auto message = peer_->receive();
    ASSERT_TRUE(message);
    call_ = std::move(*message);
    ASSERT_EQ(call_.decoded.verdict, core::DecodedHeader::Verdict::kGood);
  }
  Header reply_header() const {
    Header header;
    header.xid = xid_;
    header.credits = 4;
    return header;
  }
  Bytes short_reply() const { return Words{{xid_, 1, 0, 0}}.bytes(); }
  int status() { return client_->wait(test_->call); }
  void send(ibv_wr_opcode opcode, const Header& header, const Bytes& rpc, uint32_t handle) {
    Bytes bytes(4096);
    bytes.resize(header.encode(bytes));
    bytes.insert(bytes.end(), rpc.begin(), rpc.end());
    std::copy(bytes.begin(), bytes.end(), peer_->chunk().begin());
    ibv_sge element{reinterpret_cast<uint64_t>(peer_->chunk().data()),
                    static_cast<uint32_t>(bytes.size()), peer_->region()->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = &element;
    request.num_sge = 1;
    request.invalidate_rkey = handle;
    ASSERT_EQ(ibv_post_send(peer_->id()->qp, &request, &bad), 0);
    ASSERT_TRUE(peer_->send_completes());
  }

  uint32_t xid_ = 0;
  RawMessage call_;
  std::unique_ptr<TestCall> test_;
  std::unique_ptr<RawPeer> peer_;
  std::unique_ptr<Client> client_;
};

// Proves: 8797-4-c 8797-4-f
TEST_F(HostileServer, ClientAnnouncesItself) {
  ClientOptions options;
  options.inline_send = 8192;
  options.inline_receive = 65536;
  begin(announcement(true, 4096, 4096), options);
  EXPECT_EQ(core::PrivateData::find(peer_->private_data()), (core::PrivateData{true, 8192, 65536}));
  options.invalidation = 0;
  begin(announcement(true, 4096, 4096), options);
  EXPECT_EQ(core::PrivateData::find(peer_->private_data()),
            (core::PrivateData{false, 8192, 65536}));
  options.announce = 0;
  begin(announcement(true, 4096, 4096), options);
  EXPECT_EQ(core::PrivateData::find(peer_->private_data()), std::nullopt);
}

// Proves: 8797-5.1-a 8797-5.2-b
TEST_F(HostileServer, PrivateDataThatIsNone) {
  Bytes cut = announcement(true, 65536, 65536);
  cut.resize(7);
  for (const Bytes& none : {Bytes(), cut, pattern(64, 9)}) {
    begin(none);
    EXPECT_FALSE(client_->settings().peer_announced);
    EXPECT_EQ(client_->settings().client_to_server, 1024u);
    EXPECT_EQ(client_->settings().server_to_client, 1024u);
    EXPECT_FALSE(client_->settings().remote_invalidation);
  }
}

TEST_F(HostileServer, OneCallUntilTheFirstReply) {
  begin(announcement(true, 4096, 4096));
  start();
  EXPECT_EQ(call_.decoded.header.credits, 32u);
  TestCall second(client_->next_xid(), {}, 0, 0), third(client_->next_xid(), {}, 0, 0);
  client_->start(second.call);
  client_->start(third.call);
  // A grant of none means one.
  Header header = reply_header();
  header.credits = 0;
  peer_->send(header, short_reply());
  EXPECT_EQ(status(), 0);
  const auto next = peer_->receive();
  ASSERT_TRUE(next);
  header.xid = next->decoded.header.xid;
  header.credits = 8;
  peer_->send(header, Words{{header.xid, 1, 0, 0}}.bytes());
  const auto last = peer_->receive();
  ASSERT_TRUE(last);
  EXPECT_EQ(client_->settings().credits, 8u);
  header.xid = last->decoded.header.xid;
  peer_->send(header, Words{{header.xid, 1, 0, 0}}.bytes());
  EXPECT_EQ(client_->wait(second.call), 0);
  EXPECT_EQ(client_->wait(third.call), 0);
}

TEST_F(HostileServer, Errors) {
  begin(announcement(true, 4096, 4096));
  start();
  peer_->send(Header::make_error(xid_, 1, HeaderError::kVersion));
  EXPECT_EQ(status(), -EPROTONOSUPPORT);
  start();
  peer_->send(Header::make_error(xid_, 1, HeaderError::kChunk));
  EXPECT_EQ(status(), -EREMOTEIO);
  EXPECT_EQ(client_->statistics().errors_received, 2u);
}

TEST_F(HostileServer, RepliesThatFitNothingOffered) {
  begin(announcement(true, 4096, 4096));
  const auto refused = [this](auto&& change) {
    start();
    Header header = reply_header();
    header.chunks.writes = call_.decoded.header.chunks.writes;
    change(header);
    peer_->send(header, short_reply());
    EXPECT_EQ(status(), -EREMOTEIO);
  };
  refused([](Header& header) { header.chunks.writes[0][0].length += 1; });
  refused([](Header& header) { header.chunks.writes[0].emplace_back(); });
  refused([](Header& header) { header.chunks.reads.push_back({4, {1, 1, 1}}); });
  refused([](Header& header) { header.procedure = Procedure::kNomsg; });
  refused([](Header& header) {
    header.procedure = Procedure::kNomsg;
    header.chunks.reply = core::Chunk{{1, 1 << 20, 0}};
  });
  // The Reply chunk was never written to, so the message in it is not this call's.
  refused([this](Header& header) {
    header.procedure = Procedure::kNomsg;
    header.chunks.reply = call_.decoded.header.chunks.reply;
  });
  EXPECT_EQ(client_->statistics().connections, 1u);
}

TEST_F(HostileServer, MessagesThatAnswerNothing) {
  begin(announcement(true, 4096, 4096));
  start();
  peer_->send(Bytes(3));
  Header header = reply_header();
  header.xid = xid_ + 1;
  peer_->send(header, Words{{xid_ + 1, 1}}.bytes());
  header = reply_header();
  header.version = 3;
  peer_->send(header, short_reply());
  header = reply_header();
  header.procedure = Procedure::kDone;
  peer_->send(header);
  // A call of the server's own.
  header = reply_header();
  header.xid = 0x77777777;
  peer_->send(header, Words{{0x77777777, 0, 2, 1, 1, 1}}.bytes());
  peer_->send(reply_header(), short_reply());
  EXPECT_EQ(status(), 0);
  EXPECT_EQ(client_->statistics().discarded, 5u);
  // And a second answer.
  peer_->send(reply_header(), short_reply());
  EXPECT_TRUE(eventually([this] { return client_->statistics().discarded == 6; }));
}

// Linux invalidates even when it said that it would not.
TEST_F(HostileServer, InvalidationThatWasNotAnnounced) {
  begin(announcement(false, 4096, 4096));
  for (int i = 0; i < 3; ++i) {
    start();
    ASSERT_EQ(call_.decoded.header.chunks.writes.size(), 1u);
    const uint32_t handle = call_.decoded.header.chunks.writes[0][0].handle;
    Header header = reply_header();
    header.chunks.writes = call_.decoded.header.chunks.writes;
    header.chunks.writes[0][0].length = 0;
    send(IBV_WR_SEND_WITH_INV, header, short_reply(), handle);
    EXPECT_EQ(status(), 0);
  }
  EXPECT_EQ(client_->statistics().remote_invalidations, 3u);
  EXPECT_EQ(client_->statistics().connections, 1u);
}

// What was laid open for one call is closed when it ends.
TEST_F(HostileServer, LateWritesFindNothing) {
  begin(announcement(true, 4096, 4096));
  start();
  const core::Segment segment = call_.decoded.header.chunks.writes.at(0).at(0);
  peer_->send(reply_header(), short_reply());
  EXPECT_EQ(status(), 0);
  const Bytes before = test_->result;
  ibv_sge element{reinterpret_cast<uint64_t>(peer_->chunk().data()), 64, peer_->region()->lkey};
  std::fill_n(peer_->chunk().begin(), 64, std::byte{0xee});
  ibv_send_wr request{}, *bad = nullptr;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.sg_list = &element;
  request.num_sge = 1;
  request.wr.rdma = {segment.offset, segment.handle};
  ASSERT_EQ(ibv_post_send(peer_->id()->qp, &request, &bad), 0);
  // The connection ends of it.
  EXPECT_FALSE(peer_->receive());
  EXPECT_EQ(test_->result, before);
}

// The largest reply, with the receive that was announced for it.
// Proves: 8797-4.2-f
TEST_F(HostileServer, ReceivesOfTheAnnouncedSizeArePosted) {
  ClientOptions options;
  options.inline_receive = 32768;
  begin(announcement(true, 32768, 4096), options);
  xid_ = client_->next_xid();
  TestCall test(xid_, {}, 0, 0, 32768);
  client_->start(test.call);
  ASSERT_TRUE(peer_->receive());
  Bytes rpc = Words{{xid_, 1}}.bytes();
  rpc.resize(32768 - Header::kSizeMin);
  Bytes bytes(Header::kSizeMin);
  ASSERT_NE(reply_header().encode(bytes), 0u);
  bytes.insert(bytes.end(), rpc.begin(), rpc.end());
  peer_->send(bytes);
  EXPECT_EQ(client_->wait(test.call), 0);
  EXPECT_EQ(test.call.reply_length, rpc.size());
}

// Proves: 8797-3.1-b
TEST_F(HostileServer, AReplyAboveTheThresholdEndsTheConnection) {
  begin(announcement(true, 4096, 4096));
  start();
  peer_->post(Bytes(4097));
  EXPECT_LT(status(), 0);
}

}  // namespace
}  // namespace rpcrdma
