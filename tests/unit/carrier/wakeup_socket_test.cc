// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Bells ring each time, carry nothing, and are told from all else that a peer may hand over.
#include "carrier/wakeup_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "unit/carrier/ring_ends.h"
#include "unit/eventually.h"
#include "unit/lingering_socket.h"

namespace uwarp {
namespace {

/// Whether it is taken for either of the two, where the other one is right.
bool is_bell(int fd) {
  const auto bells = WakeupSocket::pair().value();
  Errands errands;
  ForeignFd to_watch = handed(fd), to_ring(fd);
  ForeignFd watched = handed(bells.first.fd()), rung = handed(bells.first.rung_fd());
  const bool watches = WakeupSocket::adopt(to_watch, rung, errands).has_value();
  return WakeupSocket::adopt(watched, to_ring, errands).has_value() || watches;
}

TEST(WakeupSocket, EachRingIsAnEdgeOnOneSide) {
  const auto bells = WakeupSocket::pair().value();
  const BellWatch first(bells.first.fd()), second(bells.second.fd());
  for (int i = 0; i < 10; ++i) {
    bells.first.ring();
    EXPECT_TRUE(second.rang());
    EXPECT_FALSE(first.rang()) << "its own threads would be woken for nothing";
    bells.second.ring();
    EXPECT_TRUE(first.rang());
    EXPECT_FALSE(second.rang());
    bells.first.ring_here();
    EXPECT_TRUE(first.rang());
    EXPECT_FALSE(second.rang());
  }
}

TEST(WakeupSocket, CarriesNothingEitherWay) {
  const auto bells = WakeupSocket::pair().value();
  for (const int fd : {bells.first.fd(), bells.first.rung_fd(), bells.second.fd()}) {
    EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

// Its flags belong to the peer as well, which may also have closed the other end.
TEST(WakeupSocket, RingsWhateverThePeerHasDone) {
  auto bells = WakeupSocket::pair().value();
  Errands errands;
  ForeignFd taken = handed(bells.second.fd()), rung = handed(bells.second.rung_fd());
  const auto bell = WakeupSocket::adopt(taken, rung, errands);
  ASSERT_TRUE(bell);
  ASSERT_EQ(fcntl(bells.second.rung_fd(), F_SETFL, 0), 0) << "blocking";
  bells.first = WakeupSocket();
  for (int i = 0; i < 100'000; ++i) bell->ring();  // neither waits nor raises SIGPIPE
}

TEST(WakeupSocket, NothingElseIsTakenForOne) {
  EXPECT_FALSE(is_bell(eventfd(0, EFD_CLOEXEC)));
  EXPECT_FALSE(is_bell(open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_FALSE(is_bell(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  EXPECT_FALSE(is_bell(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  EXPECT_FALSE(is_bell(pipes[0]));
  EXPECT_FALSE(is_bell(pipes[1]));
}

// One may lie there beside a byte that was sent out of band, taken, and is counted no more.
TEST(WakeupSocket, ADescriptorThatWaitsInItHoldsUpNoThreadThatDropsIt) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  LingeringSocket socket;
  char byte = 'x';
  iovec body = {&byte, 1};
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control{};
  control.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  const int waits = socket.fd();
  std::memcpy(CMSG_DATA(&control.header), &waits, sizeof waits);
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  if (sendmsg(ends[0], &message, MSG_OOB) != 1) GTEST_SKIP() << "no bytes out of band here";
  ASSERT_EQ(recv(ends[1], &byte, 1, MSG_OOB), 1);
  socket.forget();
  Errands errands;
  std::atomic<bool> dropped{false};
  const auto bells = WakeupSocket::pair().value();
  std::thread drops([&] {
    ForeignFd foreign(ends[1]), rung = handed(bells.first.rung_fd());
    (void)WakeupSocket::adopt(foreign, rung, errands);
    dropped = true;
  });
  EXPECT_TRUE(eventually([&] { return dropped.load(); }));
  socket.end();
  drops.join();
  close(ends[0]);
}

// A descriptor might lie in it, which waits when it is closed.
TEST(WakeupSocket, NorIsOneThroughWhichSomethingWasSent) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(::send(ends[0], "x", 1, 0), 1);
  EXPECT_FALSE(is_bell(ends[1]));
  close(ends[0]);
}

}  // namespace
}  // namespace uwarp
