// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Answers of the running kernel: every machine has a loopback device.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "net/net_device.h"
#include "unit/no_open_files.h"

namespace uwarp {
namespace {

std::optional<Route> route(const std::string& to) {
  return find_route(*IpAddress::from_string(to));
}

TEST(NetDevices, LoopbackIsThere) {
  const auto lo = net_devices()->by_verbs_name("uwarp_lo");
  ASSERT_NE(lo, nullptr);
  EXPECT_TRUE(lo->loopback);
  EXPECT_TRUE(lo->running);
  EXPECT_EQ(lo->gids.at(0), *IpAddress::from_string("127.0.0.1"));
  EXPECT_EQ(net_devices()->devices().back(), lo);
}

TEST(NetDevices, RefreshWithoutChangeKeepsTheTable) {
  const auto before = net_devices();
  EXPECT_EQ(refresh_net_devices(), before);
}

TEST(NetDevices, WithoutAnswerTheTableStays) {
  const auto before = net_devices();
  ASSERT_FALSE(before->empty());
  const NoOpenFiles limit;
  EXPECT_EQ(try_refresh_net_devices(), nullptr);
  EXPECT_EQ(refresh_net_devices(), before);
  EXPECT_EQ(net_devices(), before);
}

TEST(NetDevices, AChildWithoutAnswerAsksAgain) {
  (void)net_devices();
  const pid_t child = fork();  // the child has no table yet
  if (child == 0) {
    bool none = false;
    {
      const NoOpenFiles limit;
      none = net_devices()->empty();
    }
    _exit(none && !net_devices()->empty() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(NetDevices, ChangesFdIsQuietWithoutChanges) {
  ASSERT_GE(net_changes_fd(), 0);
  drain_net_changes();
  EXPECT_FALSE(drain_net_changes());
}

TEST(Route, ToLoopback) {
  for (const char* to : {"127.0.0.1", "127.9.9.9"}) {
    const auto found = route(to);
    ASSERT_TRUE(found) << to;
    EXPECT_EQ(found->device->name, "lo");
    EXPECT_TRUE(found->source.is_loopback());
  }
}

TEST(Route, ToAnOwnAddressStaysOnItsDevice) {
  for (const auto& device : net_devices()->devices()) {
    for (const IpAddress& gid : device->gids) {
      const auto found = find_route(gid);
      ASSERT_TRUE(found) << gid.to_string();
      EXPECT_EQ(found->device->name, device->name) << gid.to_string();
    }
  }
}

TEST(Route, SourceIsKept) {
  const auto found =
      find_route(*IpAddress::from_string("127.0.0.1"), *IpAddress::from_string("127.0.0.5"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->source, *IpAddress::from_string("127.0.0.5"));
}

TEST(Route, Errors) {
  // Documentation addresses are never local (RFC 5737).
  EXPECT_FALSE(
      find_route(*IpAddress::from_string("127.0.0.1"), *IpAddress::from_string("203.0.113.9")));
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_FALSE(find_route(*IpAddress::from_string("127.0.0.1"), *IpAddress::from_string("::1")));
  EXPECT_EQ(errno, EAFNOSUPPORT);
}

}  // namespace
}  // namespace uwarp
