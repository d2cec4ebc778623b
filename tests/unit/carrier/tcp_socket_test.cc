// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// TcpSocket on the loopback interface, and the list of the engine's descriptors.
#include "carrier/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "os/engine_fds.h"
#include "unit/eventually.h"
#include "unit/one_core.h"

namespace uwarp {
namespace {

sockaddr_storage loopback(uint16_t port = 0) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool wait_for(const TcpSocket& socket, short events) {
  pollfd entry{.fd = socket.fd(), .events = events, .revents = 0};
  return poll(&entry, 1, 10'000) == 1;
}

std::string congestion_control_of(int fd) {
  char name[16] = {};
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

struct Pair {
  TcpSocket client, server;
};

Pair connected() {
  auto listener = TcpSocket::open(AF_INET);
  EXPECT_TRUE(listener.ok());
  EXPECT_EQ(listener->bind(loopback()), 0);
  EXPECT_EQ(listener->listen(4), 0);
  auto client = TcpSocket::open(AF_INET);
  EXPECT_TRUE(client.ok());
  const int error = client->connect(listener->local_address());
  EXPECT_TRUE(error == 0 || error == EINPROGRESS);
  EXPECT_TRUE(wait_for(*client, POLLOUT));
  EXPECT_EQ(client->take_error(), 0);
  sockaddr_storage peer;
  auto server = listener->accept(peer);
  EXPECT_TRUE(server.ok());
  return {std::move(*client), std::move(*server)};
}

TEST(TcpSocket, KnowsFromWhichProcessorThePeerSent) {
  Pair pair = connected();
  const auto cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  for (const int core : cores) {
    const OneCore place(core);
    ASSERT_EQ(pair.client.send("x", 1), 1);
    ASSERT_TRUE(wait_for(pair.server, POLLIN));
    EXPECT_EQ(pair.server.incoming_cpu(), core);
    char byte;
    EXPECT_EQ(pair.server.receive(&byte, 1), 1);
  }
}

TEST(TcpSocket, TransfersBytesThroughVectors) {
  Pair pair = connected();
  char out_a[] = "abc", out_b[] = "defgh";
  const iovec out[] = {{out_a, 3}, {out_b, 5}};
  ASSERT_EQ(pair.client.send(out), 8);
  ASSERT_TRUE(wait_for(pair.server, POLLIN));
  EXPECT_GT(pair.server.peek(), 0);
  char in_a[5], in_b[5];
  const iovec in[] = {{in_a, 5}, {in_b, 5}};
  ASSERT_EQ(pair.server.receive(in), 8);
  EXPECT_EQ(std::string(in_a, 5) + std::string(in_b, 3), "abcdefgh");
  EXPECT_EQ(pair.server.receive(in), -EAGAIN);
  EXPECT_EQ(pair.server.peek(), -EAGAIN);
}

// An edge-triggered epoll set with only this socket in it.
class Edges {
 public:
  explicit Edges(const TcpSocket& socket) {
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {}};
    EXPECT_EQ(epoll_ctl(fd_, EPOLL_CTL_ADD, socket.fd(), &event), 0);
  }
  ~Edges() { close(fd_); }
  uint32_t within(int timeout_ms) {
    epoll_event event{};
    return epoll_wait(fd_, &event, 1, timeout_ms) == 1 ? event.events : 0;
  }

 private:
  const int fd_ = epoll_create1(EPOLL_CLOEXEC);
};

TEST(TcpSocket, AMutedOneReportsItsEndOnly) {
  Pair pair = connected();
  Edges edges(pair.server);
  pair.server.set_muted(true);
  ASSERT_EQ(pair.client.send("abc", 3), 3);
  EXPECT_EQ(edges.within(50), 0u);
  char bytes[3];
  EXPECT_EQ(pair.server.receive(bytes, sizeof bytes), 3);

  // When quiet ends, epoll reports the data that is already there, and later data.
  ASSERT_EQ(pair.client.send("def", 3), 3);
  EXPECT_EQ(edges.within(50), 0u);
  pair.server.set_muted(false);
  EXPECT_NE(edges.within(10'000) & EPOLLIN, 0u);
  ASSERT_EQ(pair.client.send("ghi", 3), 3);
  EXPECT_NE(edges.within(10'000) & EPOLLIN, 0u);

  pair.server.set_muted(true);
  pair.client.shutdown_write();
  EXPECT_NE(edges.within(10'000) & EPOLLRDHUP, 0u);
}

TEST(TcpSocket, DiscardAndEndOfStream) {
  Pair pair = connected();
  const std::string text(1000, 'x');
  ASSERT_EQ(pair.client.send(text.data(), text.size()), 1000);
  pair.client.shutdown_write();
  ASSERT_TRUE(wait_for(pair.server, POLLIN));
  size_t dropped = 0;
  while (dropped < text.size()) {
    const ssize_t count = pair.server.discard(600);
    ASSERT_GT(count, 0);
    dropped += static_cast<size_t>(count);
  }
  char rest;
  ASSERT_TRUE(wait_for(pair.server, POLLIN));
  EXPECT_EQ(pair.server.receive(&rest, 1), 0);
}

TEST(TcpSocket, ResetAndGentleClose) {
  {
    Pair pair = connected();
    pair.client.reset();
    ASSERT_TRUE(wait_for(pair.server, POLLIN));
    char byte;
    EXPECT_EQ(pair.server.receive(&byte, 1), -ECONNRESET);
  }
  {
    // Unread bytes would make a plain close() reset the connection.
    Pair pair = connected();
    ASSERT_EQ(pair.server.send("unread", 6), 6);
    ASSERT_TRUE(wait_for(pair.client, POLLIN));
    pair.client.set_reset_on_close(true);
    pair.client.close_gently();
    ASSERT_TRUE(wait_for(pair.server, POLLIN));
    char byte;
    EXPECT_EQ(pair.server.receive(&byte, 1), 0);
  }
}

TEST(TcpSocket, KnowsThatAPeerHasClosedItsWindow) {
  Pair pair = connected();
  int unsent = 0;
  if (ioctl(pair.client.fd(), SIOCOUTQNSD, &unsent) != 0) GTEST_SKIP() << "no SIOCOUTQNSD here";
  EXPECT_FALSE(pair.client.peer_has_no_space());
  const std::string text(64 * 1024, 'x');
  while (!pair.client.peer_has_no_space())
    ASSERT_TRUE(pair.client.send(text.data(), text.size()) != -EAGAIN ||
                eventually([&] { return pair.client.peer_has_no_space(); }));
  const auto read_away = [&] {
    while (pair.server.discard(1 << 20) > 0) {
    }
    return !pair.client.peer_has_no_space();
  };
  EXPECT_TRUE(eventually(read_away));
}

// The same for connecting and for accepted sockets.
TEST(TcpSocket, TakesLittleBeyondThePeersWindow) {
  const std::string text(64 * 1024, 'x');
  Pair pair = connected();
  for (TcpSocket* socket : {&pair.client, &pair.server}) {
    int unsent = 0;
    if (ioctl(socket->fd(), SIOCOUTQNSD, &unsent) != 0) GTEST_SKIP() << "no SIOCOUTQNSD here";
    while (socket->send(text.data(), text.size()) != -EAGAIN) {
    }
    ASSERT_EQ(ioctl(socket->fd(), SIOCOUTQNSD, &unsent), 0);
    EXPECT_GT(unsent, 0);
    EXPECT_LT(unsent, 512 * 1024);
  }
}

TEST(TcpSocket, FaultIsReportedNotRaised) {
  Pair pair = connected();
  const iovec bad[] = {{nullptr, 16}};
  EXPECT_EQ(pair.client.send(bad), -EFAULT);
  ASSERT_EQ(pair.client.send("x", 1), 1);
  ASSERT_TRUE(wait_for(pair.server, POLLIN));
  EXPECT_EQ(pair.server.receive(bad), -EFAULT);
  char byte;
  EXPECT_EQ(pair.server.receive(&byte, 1), 1) << "the byte was not lost";
}

TEST(TcpSocket, SendAfterResetGivesAnErrorWithoutSignal) {
  Pair pair = connected();
  pair.server.reset();
  ASSERT_TRUE(wait_for(pair.client, POLLIN));
  EXPECT_LT(pair.client.send("x", 1), 0);
  EXPECT_EQ(pair.client.send("x", 1), -EPIPE);
}

TEST(TcpSocket, LocalPeersGetAnUnpacedCongestionControl) {
  Pair pair = connected();
  for (TcpSocket* end : {&pair.client, &pair.server}) {
    EXPECT_EQ(congestion_control_of(end->fd()), "reno") << "no socket has used pacing here";
    EXPECT_EQ(end->distance({}, loopback()), TcpSocket::Distance::kSameHost);
    end->settle(TcpSocket::Distance::kSameHost);
    EXPECT_EQ(congestion_control_of(end->fd()), "reno");
  }
}

std::string systems_congestion_control() {
  const int plain = socket(AF_INET, SOCK_STREAM, 0);
  std::string name = congestion_control_of(plain);
  close(plain);
  return name;
}

TEST(TcpSocket, NearPeersGetTheSystemsCongestionControlUnlessItPaces) {
  const std::string systems = systems_congestion_control();
  Pair pair = connected();
  sockaddr_storage other = loopback();
  inet_pton(AF_INET, "192.0.2.1", &reinterpret_cast<sockaddr_in&>(other).sin_addr);
  EXPECT_NE(pair.client.distance({}, other), TcpSocket::Distance::kSameHost);
  pair.client.settle(TcpSocket::Distance::kNear);
  const bool paces = systems.starts_with("bbr");
  EXPECT_EQ(congestion_control_of(pair.client.fd()), paces ? "reno" : systems);
}

TEST(TcpSocket, FarPeersGetTheSystemsCongestionControlAndAllThatBuffersHold) {
  Pair pair = connected();
  pair.client.settle(TcpSocket::Distance::kFar);
  EXPECT_EQ(congestion_control_of(pair.client.fd()), systems_congestion_control());
  uint32_t limit = 1;
  socklen_t length = sizeof limit;
  ASSERT_EQ(getsockopt(pair.client.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &length), 0);
  EXPECT_EQ(limit, 0);
}

TEST(TcpSocket, KnowsLocalAddresses) {
  EXPECT_TRUE(is_local_address(loopback(7)));
  sockaddr_storage other = loopback();
  inet_pton(AF_INET, "192.0.2.1", &reinterpret_cast<sockaddr_in&>(other).sin_addr);
  EXPECT_FALSE(is_local_address(other));
  EXPECT_FALSE(is_local_address(sockaddr_storage{}));
}

TEST(TcpSocket, PairCarriesBytesToItself) {
  auto pair = TcpSocket::open_pair();
  ASSERT_TRUE(pair.ok());
  ASSERT_EQ(pair->second.send("hello", 5), 5);
  char text[5];
  ASSERT_EQ(pair->first.receive(text, sizeof text), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST(EngineFds, AreMarkedHighAndCloseOnExec) {
  auto socket = TcpSocket::open(AF_INET);
  ASSERT_TRUE(socket.ok());
  EXPECT_GE(socket->fd(), engine_fd_floor());
  EXPECT_TRUE(is_engine_fd(socket->fd()));
  EXPECT_NE(fcntl(socket->fd(), F_GETFD) & FD_CLOEXEC, 0);
  const int fd = socket->fd();
  socket->close();
  EXPECT_FALSE(is_engine_fd(fd));
  EXPECT_FALSE(is_engine_fd(-1));
  EXPECT_FALSE(is_engine_fd(1 << 30));
}

TEST(EngineFds, ChildClosesThem) {
  auto socket = TcpSocket::open(AF_INET);
  ASSERT_TRUE(socket.ok());
  const int fd = socket->fd();
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(fd, F_GETFD) == -1 && errno == EBADF && !is_engine_fd(fd) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_engine_fd(fd));
  EXPECT_NE(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace uwarp
