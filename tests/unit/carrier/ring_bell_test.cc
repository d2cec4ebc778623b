// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Bells ring each time, carry nothing, and are told from all else that a peer may hand over.
#include "carrier/ring_bell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "unit/carrier/ring_ends.h"

namespace uwarp {
namespace {

bool is_bell(int fd) {
  ForeignFd foreign(fd);
  return RingBell::adopt(foreign).has_value();
}

TEST(RingBell, EachRingIsAnEdge) {
  const auto bells = RingBell::pair().value();
  const BellWatch watch(bells.second.fd());
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(watch.rang());
    bells.first.ring();
    EXPECT_TRUE(watch.rang());
  }
}

TEST(RingBell, CarriesNothingEitherWay) {
  const auto bells = RingBell::pair().value();
  for (const int fd : {bells.first.fd(), bells.second.fd()}) {
    EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

// Its flags belong to the peer as well, which may also have closed the other end.
TEST(RingBell, RingsWhateverThePeerHasDone) {
  auto bells = RingBell::pair().value();
  ForeignFd taken = handed(bells.second.fd());
  const auto bell = RingBell::adopt(taken);
  ASSERT_TRUE(bell);
  ASSERT_EQ(fcntl(bells.second.fd(), F_SETFL, 0), 0) << "blocking";
  bells.first = RingBell();
  for (int i = 0; i < 100'000; ++i) bell->ring();  // neither waits nor raises SIGPIPE
}

TEST(RingBell, NothingElseIsTakenForOne) {
  EXPECT_FALSE(is_bell(eventfd(0, EFD_CLOEXEC)));
  EXPECT_FALSE(is_bell(open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_FALSE(is_bell(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  EXPECT_FALSE(is_bell(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  EXPECT_FALSE(is_bell(pipes[0]));
  EXPECT_FALSE(is_bell(pipes[1]));
}

// A descriptor might lie in it, which waits when it is closed.
TEST(RingBell, NorIsOneThroughWhichSomethingWasSent) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(send(ends[0], "x", 1, 0), 1);
  EXPECT_FALSE(is_bell(ends[1]));
  close(ends[0]);
}

}  // namespace
}  // namespace uwarp
