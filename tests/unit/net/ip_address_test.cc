// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// IpAddress: text, sockaddr and GID bytes.
#include "net/ip_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <unordered_set>

namespace uwarp {
namespace {

const sockaddr* as_sockaddr(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr*>(&storage);
}

TEST(IpAddress, V4IsKeptInMappedForm) {
  const auto address = IpAddress::from_string("10.1.2.3");
  ASSERT_TRUE(address);
  const IpAddress::Bytes expected = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
  EXPECT_EQ(address->bytes(), expected);
  EXPECT_TRUE(address->is_v4());
  EXPECT_EQ(address->to_string(), "10.1.2.3");
}

TEST(IpAddress, TextRoundTrip) {
  for (const char* text : {"0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1", "2001:db8::1"}) {
    const auto address = IpAddress::from_string(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->to_string(), text);
  }
  // A mapped address equals the IPv4 address.
  EXPECT_EQ(IpAddress::from_string("::ffff:1.2.3.4"), IpAddress::from_string("1.2.3.4"));
  for (const char* text : {"", "1.2.3", "1.2.3.4.5", "host", "::g", "1.2.3.4%lo"}) {
    EXPECT_FALSE(IpAddress::from_string(text)) << text;
  }
}

TEST(IpAddress, ScopeBelongsToLinkLocalAddressesOnly) {
  EXPECT_EQ(IpAddress::from_string("fe80::1%7")->scope_id(), 7u);
  EXPECT_EQ(IpAddress::from_string("2001:db8::1%7")->scope_id(), 0u);
  EXPECT_NE(IpAddress::from_string("fe80::1%7"), IpAddress::from_string("fe80::1%8"));
  EXPECT_EQ(IpAddress::from_string("fe80::1%1")->to_string(), "fe80::1%lo");
}

TEST(IpAddress, SockaddrRoundTrip) {
  for (const char* text : {"10.1.2.3", "2001:db8::1", "fe80::1%3"}) {
    const auto address = *IpAddress::from_string(text);
    sockaddr_storage storage;
    const socklen_t length = address.to_sockaddr(storage, 4711);
    EXPECT_EQ(storage.ss_family, address.is_v4() ? AF_INET : AF_INET6);
    EXPECT_EQ(IpAddress::from_sockaddr(as_sockaddr(storage), length), address);
    EXPECT_EQ(port_of(as_sockaddr(storage)), 4711);
  }
}

TEST(IpAddress, SockaddrOfWrongFamilyOrLengthIsRefused) {
  sockaddr_storage storage;
  const socklen_t length = IpAddress::from_string("::1")->to_sockaddr(storage, 1);
  EXPECT_FALSE(IpAddress::from_sockaddr(as_sockaddr(storage), length - 5));
  EXPECT_FALSE(IpAddress::from_sockaddr(as_sockaddr(storage), 0));
  EXPECT_FALSE(IpAddress::from_sockaddr(nullptr, length));
  storage.ss_family = AF_UNIX;
  EXPECT_FALSE(IpAddress::from_sockaddr(as_sockaddr(storage), length));
  EXPECT_EQ(port_of(as_sockaddr(storage)), 0);
}

TEST(IpAddress, V4AsIn6) {
  const sockaddr_in6 in6 = IpAddress::from_string("1.2.3.4")->to_sockaddr_in6(80);
  EXPECT_EQ(in6.sin6_family, AF_INET6);
  EXPECT_TRUE(IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr));
}

TEST(IpAddress, Kinds) {
  struct {
    const char* text;
    bool any, loopback, link_local;
  } const cases[] = {
      {"0.0.0.0", true, false, false},      {"::", true, false, false},
      {"127.3.2.1", false, true, false},    {"::1", false, true, false},
      {"fe80::1", false, false, true},      {"febf::1", false, false, true},
      {"fec0::1", false, false, false},     {"169.254.1.1", false, false, false},
      {"192.168.0.1", false, false, false}, {"::2", false, false, false},
  };
  for (const auto& expected : cases) {
    const auto address = *IpAddress::from_string(expected.text);
    EXPECT_EQ(address.is_any(), expected.any) << expected.text;
    EXPECT_EQ(address.is_loopback(), expected.loopback) << expected.text;
    EXPECT_EQ(address.is_link_local(), expected.link_local) << expected.text;
  }
}

TEST(IpAddress, WorksInUnorderedContainers) {
  std::unordered_set<IpAddress> seen;
  seen.insert(*IpAddress::from_string("1.2.3.4"));
  seen.insert(*IpAddress::from_string("::ffff:1.2.3.4"));
  seen.insert(*IpAddress::from_string("1.2.3.5"));
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
}  // namespace uwarp
