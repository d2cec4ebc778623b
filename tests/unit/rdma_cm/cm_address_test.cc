// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Ports of rdma_cm and of TCP.
#include "rdma_cm/cm_address.h"

#include <gtest/gtest.h>

#include "net/ip_address.h"

namespace uwarp {
namespace {

/// `port` moved by `offset`, or -1 if that is not a port.
int moved(uint16_t port, int offset) {
  sockaddr_storage address;
  IpAddress::from_string("10.0.0.1")->to_sockaddr(address, port);
  const auto result = with_port_moved(address, offset);
  if (!result) return -1;
  EXPECT_EQ(ip_of(*result), *IpAddress::from_string("10.0.0.1"));
  return port_of(*result);
}

TEST(CmAddress, PortsMoveWithinTheirRange) {
  EXPECT_EQ(moved(7174, 0), 7174);
  EXPECT_EQ(moved(7174, 1000), 8174);
  EXPECT_EQ(moved(7174, -7173), 1);
  EXPECT_EQ(moved(1, 65534), 65535);
}

TEST(CmAddress, PortsBeyondTheRangeAreNone) {
  EXPECT_EQ(moved(7174, -7174), -1) << "the kernel would choose one";
  EXPECT_EQ(moved(7174, -7175), -1);
  EXPECT_EQ(moved(65535, 1), -1);
  EXPECT_EQ(moved(60000, 60000), -1);
}

TEST(CmAddress, APortLeftToTheKernelStaysSo) {
  EXPECT_EQ(moved(0, 1000), 0);
  EXPECT_EQ(moved(0, -1000), 0);
}

}  // namespace
}  // namespace uwarp
