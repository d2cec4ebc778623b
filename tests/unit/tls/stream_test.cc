// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// TlsStream over sockets: both directions at once, in pieces of any size, through buffers that fill
// up.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>
#include <thread>

#include "carrier/tls_stream.h"
#include "unit/tls/sessions.h"

namespace uwarp {
namespace {

/// Two ends whose handshake is done.
struct Streams {
  explicit Streams(uint64_t records_per_key = 1 << 20)
      : context(psk_context(kAliceLine, records_per_key)) {
    auto pair = TcpSocket::open_pair();
    sockets[0] = std::move(pair->first);
    sockets[1] = std::move(pair->second);
    for (const TcpSocket& socket : sockets) {
      const int bytes = 4096;
      setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    for (int i = 0; i < 2; ++i)
      ends[i] = std::make_unique<TlsStream>(sockets[i], context->begin(i == 0));
    int done[2] = {EAGAIN, EAGAIN};
    for (int round = 0; round < 8; ++round)
      for (int i = 0; i < 2; ++i)
        if (done[i] == EAGAIN) done[i] = ends[i]->shake_hands();
    EXPECT_EQ(done[0], 0) << ends[0]->failure();
    EXPECT_EQ(done[1], 0) << ends[1]->failure();
  }

  std::unique_ptr<TlsContext> context;
  TcpSocket sockets[2];
  std::unique_ptr<TlsStream> ends[2];
};

std::byte byte_at(size_t position) {
  return static_cast<std::byte>(position * 31 + position / 509);
}

void await(const TcpSocket& socket, short events) {
  pollfd one{socket.fd(), events, 0};
  (void)poll(&one, 1, 1000);
}

void send_all(TlsStream& stream, const TcpSocket& socket, size_t total, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(total);
  for (size_t i = 0; i < total; ++i) bytes[i] = byte_at(i);
  for (size_t at = 0; at < total;) {
    iovec pieces[3];
    size_t count = 0;
    for (size_t from = at; count < 3 && from < total; ++count) {
      const size_t size = std::min<size_t>(random() % 40'000 + 1, total - from);
      pieces[count] = {&bytes[from], size};
      from += size;
    }
    const ssize_t sent = stream.send({pieces, count});
    if (sent > 0) at += static_cast<size_t>(sent);
    if (sent == -EAGAIN)
      await(socket, POLLOUT);
    else
      ASSERT_GT(sent, 0) << stream.failure();
  }
  while (stream.flush() != 0) await(socket, POLLOUT);
  EXPECT_FALSE(stream.carries());
}

void receive_all(TlsStream& stream, const TcpSocket& socket, size_t total, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(70'000);
  for (size_t at = 0; at < total;) {
    const size_t first = random() % 30'000, second = random() % 30'000 + 1;
    const iovec place[2] = {{bytes.data(), first}, {bytes.data() + first, second}};
    const ssize_t count = stream.receive(place);
    if (count == -EAGAIN) {
      await(socket, POLLIN);
      continue;
    }
    ASSERT_GT(count, 0) << stream.failure();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) ASSERT_EQ(bytes[i], byte_at(at + i));
    at += static_cast<size_t>(count);
  }
}

TEST(TlsStream, BothDirectionsAtOnce) {
  constexpr size_t kBytes = 3'000'000;
  Streams streams(20);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] { send_all(*streams.ends[i], streams.sockets[i], kBytes, i); });
    threads.emplace_back(
        [&, i] { receive_all(*streams.ends[i], streams.sockets[i], kBytes, 7 + i); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Less than there was room for means that no byte is left, neither in the socket nor in the
// session.
TEST(TlsStream, ACountBelowThePlaceLeavesNothing) {
  Streams streams;
  std::mt19937 random(3);
  std::vector<std::byte> bytes(100'000), place(100'000);
  for (int i = 0; i < 200; ++i) {
    const size_t size = random() % 3000 + 1;
    const iovec piece = {bytes.data(), size};
    ASSERT_EQ(streams.ends[0]->send({&piece, 1}), static_cast<ssize_t>(size));
    size_t got = 0;
    for (;;) {
      const size_t space = random() % 2000 + 1;
      const iovec to = {place.data(), space};
      const ssize_t count = streams.ends[1]->receive({&to, 1});
      if (count == -EAGAIN) break;
      ASSERT_GT(count, 0);
      got += static_cast<size_t>(count);
      if (static_cast<size_t>(count) < space) break;
    }
    ASSERT_EQ(got, size) << i;
  }
}

TEST(TlsStream, WhatHasNoRoomIsKept) {
  Streams streams;
  std::vector<std::byte> bytes(TlsStream::kMostRecords * kTlsRecordBytes);
  const iovec piece = {bytes.data(), bytes.size()};
  ssize_t sent = 0;
  while ((sent = streams.ends[0]->send({&piece, 1})) > 0) {
  }
  EXPECT_EQ(sent, -EAGAIN);
  EXPECT_TRUE(streams.ends[0]->carries());
  EXPECT_EQ(streams.ends[0]->kept(), -EAGAIN);
}

TEST(TlsStream, AnEndInOrderAndACut) {
  for (const bool in_order : {true, false}) {
    Streams streams;
    if (in_order) streams.ends[0]->close();
    streams.sockets[0].shutdown_write();
    std::byte byte;
    const iovec place = {&byte, 1};
    EXPECT_EQ(streams.ends[1]->receive({&place, 1}), in_order ? 0 : -ECONNRESET);
    EXPECT_EQ(streams.ends[1]->receive({&place, 1}), in_order ? 0 : -ECONNRESET);
    EXPECT_EQ(streams.ends[1]->failure().empty(), in_order);
  }
}

// Behind a change of carrier an end says nothing by TLS.
TEST(TlsStream, OneThatHasLeftEndsWithoutAWord) {
  Streams streams;
  streams.ends[0]->leave();
  streams.ends[0]->close();
  EXPECT_EQ(streams.sockets[1].peek(), -EAGAIN);
}

}  // namespace
}  // namespace uwarp
