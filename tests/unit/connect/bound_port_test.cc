// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which sockets of this host may share a port: real sockets on loopback. Other processes get the
// same answers, since only the sockets hold the port.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "connect/listener.h"
#include "net/ip_address.h"
#include "os/proc_text.h"

namespace uwarp {
namespace {

sockaddr_storage address_of(const char* ip, uint16_t port = 0) {
  sockaddr_storage out{};
  IpAddress::from_string(ip)->to_sockaddr(out, port);
  return out;
}

BindOptions shared() {
  BindOptions options;
  options.shared = true;
  return options;
}

/// 0 or the errno; the socket is closed at once.
int bind_error(const sockaddr_storage& address, const BindOptions& options = {}) {
  const auto bound = bind_port(address, options);
  return bound ? 0 : bound.error();
}

TcpSocket bind_or_fail(const sockaddr_storage& address, const BindOptions& options = {}) {
  auto bound = bind_port(address, options);
  EXPECT_TRUE(bound) << (bound ? 0 : bound.error());
  return bound ? std::move(*bound) : TcpSocket();
}

int listen_on(TcpSocket& bound) {
  use_port(bound);
  return bound.listen(4);
}

TEST(BoundPort, IsHeldFromBindOn) {
  TcpSocket held = bind_or_fail(address_of("127.0.0.1"));
  const sockaddr_storage own = held.local_address();
  ASSERT_NE(port_of(own), 0);
  EXPECT_EQ(bind_error(own), EADDRINUSE);
  EXPECT_EQ(bind_error(own, shared()), EADDRINUSE);
  EXPECT_EQ(bind_error(address_of("0.0.0.0", port_of(own))), EADDRINUSE);
  EXPECT_EQ(bind_error(address_of("127.0.0.2", port_of(own))), 0);
  EXPECT_EQ(listen_on(held), 0);
  EXPECT_EQ(bind_error(own), EADDRINUSE);
  EXPECT_EQ(bind_error(own, shared()), EADDRINUSE);
  held.close();
  EXPECT_EQ(bind_error(own), 0);
}

// The kernel proposes those of one parity, and looks at all of them once they are taken.
TEST(BoundPort, AnyPortIsOneOfAll) {
  if (ProcText("/proc/sys/net/ipv4/ip_local_reserved_ports").text[0] != '\n')
    GTEST_SKIP() << "some ports are reserved: the kernel chooses";
  unsigned low = 0, high = 0;
  const ProcText range("/proc/sys/net/ipv4/ip_local_port_range");
  ASSERT_EQ(std::sscanf(range.text, "%u %u", &low, &high), 2);
  int odd = 0;
  std::vector<TcpSocket> held;
  for (int i = 0; i < 64; ++i) {
    held.push_back(bind_or_fail(address_of("127.0.0.1")));
    const uint16_t port = port_of(held.back().local_address());
    EXPECT_TRUE(low <= port && port <= high) << port;
    odd += port % 2;
  }
  EXPECT_TRUE(odd > 8 && odd < 56) << odd << " of 64 are odd";
}

TEST(BoundPort, UdpPortsAreOthers) {
  TcpSocket held = bind_or_fail(address_of("127.0.0.1"));
  BindOptions datagram;
  datagram.datagram = true;
  TcpSocket udp = bind_or_fail(held.local_address(), datagram);
  EXPECT_EQ(bind_error(udp.local_address(), datagram), EADDRINUSE);
}

TEST(BoundPort, IsSharedByThoseThatAgree) {
  TcpSocket first = bind_or_fail(address_of("127.0.0.1"), shared());
  const sockaddr_storage own = first.local_address();
  TcpSocket second = bind_or_fail(own, shared());
  EXPECT_EQ(bind_error(own), EADDRINUSE);
  // A listener may not share its port.
  EXPECT_EQ(listen_on(first), EADDRINUSE);
  second.close();
  EXPECT_EQ(listen_on(first), 0);
  EXPECT_EQ(bind_error(own, shared()), EADDRINUSE);
}

TEST(BoundPort, MayBeSharedLater) {
  TcpSocket first = bind_or_fail(address_of("127.0.0.1"));
  EXPECT_EQ(bind_error(first.local_address(), shared()), EADDRINUSE);
  share_port(first);
  EXPECT_EQ(bind_error(first.local_address(), shared()), 0);
  EXPECT_EQ(bind_error(first.local_address()), EADDRINUSE);
}

TEST(BoundPort, OldConnectionsDoNotKeepItFromTheNext) {
  TcpSocket listener = bind_or_fail(address_of("127.0.0.1"));
  const sockaddr_storage own = listener.local_address();
  ASSERT_EQ(listen_on(listener), 0);
  TcpSocket client = bind_or_fail(address_of("127.0.0.1"));
  const sockaddr_storage client_address = client.local_address();
  use_port(client);
  const int connecting = client.connect(own);
  EXPECT_TRUE(connecting == 0 || connecting == EINPROGRESS);
  sockaddr_storage peer;
  auto accepted = listener.accept(peer);
  ASSERT_TRUE(accepted);
  listener.close();
  {
    TcpSocket next = bind_or_fail(own);
    EXPECT_EQ(bind_error(own), EADDRINUSE);
    EXPECT_EQ(listen_on(next), 0);
  }
  // This side closes first, so it has the TIME-WAIT state.
  accepted->close_gently();
  client.close_gently();
  for (const auto& options : {BindOptions{}, shared()}) {
    TcpSocket next = bind_or_fail(own, options);
    EXPECT_EQ(bind_error(own), EADDRINUSE);
    EXPECT_EQ(listen_on(next), 0);
  }
  EXPECT_EQ(bind_error(client_address), 0);
}

TEST(BoundPort, FamiliesMeetUnlessOneIsAlone) {
  BindOptions both, alone;
  both.v6_only = false;
  alone.v6_only = true;
  {
    TcpSocket held = bind_or_fail(address_of("::"), both);
    EXPECT_EQ(bind_error(address_of("0.0.0.0", port_of(held.local_address()))), EADDRINUSE);
  }
  TcpSocket held = bind_or_fail(address_of("::"), alone);
  EXPECT_EQ(bind_error(address_of("0.0.0.0", port_of(held.local_address()))), 0);
  EXPECT_EQ(bind_error(held.local_address(), alone), EADDRINUSE);
}

}  // namespace
}  // namespace uwarp
