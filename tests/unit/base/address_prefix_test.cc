// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include "base/settings.h"
#include "net/ip_address.h"

namespace uwarp {
namespace {

AddressBytes address_bytes(const std::string& text) {
  return IpAddress::from_string(text).value().bytes();
}

bool contains(const char* prefix, const char* address) {
  return AddressPrefix::parse(prefix).value().contains(address_bytes(address));
}

TEST(AddressPrefix, WholeAddresses) {
  EXPECT_TRUE(contains("192.0.2.7", "192.0.2.7"));
  EXPECT_FALSE(contains("192.0.2.7", "192.0.2.6"));
  EXPECT_TRUE(contains("2001:db8::1", "2001:db8::1"));
  EXPECT_FALSE(contains("2001:db8::1", "2001:db8::2"));
  EXPECT_TRUE(contains("::ffff:192.0.2.7", "192.0.2.7")) << "the mapped form is the same address";
}

TEST(AddressPrefix, EveryLength) {
  const AddressBytes own = address_bytes("192.0.2.255");
  for (unsigned bits = 0; bits <= 32; ++bits) {
    const uint32_t mask = bits == 0 ? 0 : ~uint32_t{0} << (32 - bits);
    in_addr first{.s_addr = htonl(0xC00002FF & mask)};
    const std::string text = IpAddress::from_v4(first).to_string() + '/' + std::to_string(bits);
    const auto prefix = AddressPrefix::parse(text);
    ASSERT_TRUE(prefix) << text;
    EXPECT_TRUE(prefix->contains(own)) << text;
    if (bits == 0) continue;
    // The last bit of the prefix is inverted.
    in_addr other{.s_addr = htonl(0xC00002FF ^ (1u << (32 - bits)))};
    EXPECT_FALSE(prefix->contains(IpAddress::from_v4(other).bytes())) << text;
  }
}

TEST(AddressPrefix, FamiliesStayApart) {
  EXPECT_FALSE(contains("0.0.0.0/0", "2001:db8::1"));
  EXPECT_TRUE(contains("::/0", "2001:db8::1"));
  EXPECT_TRUE(contains("2001:db8::/33", "2001:db8:7fff::1"));
  EXPECT_FALSE(contains("2001:db8::/33", "2001:db8:8000::1"));
}

TEST(AddressPrefix, WhatIsNone) {
  for (const char* text : {"", "host", "192.0.2", "192.0.2.7/", "192.0.2.7/33", "192.0.2.7/-1",
                           "192.0.2.7/ 24", "192.0.2.7/24", "192.0.2.0/24x", "2001:db8::/129",
                           "2001:db8::1/64", "fe80::1%eth0", "/8", " 192.0.2.7"})
    EXPECT_FALSE(AddressPrefix::parse(text)) << text;
}

TEST(AllowList, AllNoneAndSome) {
  EXPECT_TRUE(AllowList().allows(address_bytes("192.0.2.7")));
  EXPECT_TRUE(AllowList::parse("")->allows_all());
  EXPECT_FALSE(AllowList::none().allows(address_bytes("192.0.2.7")));
  const auto list = AllowList::parse("192.0.2.0/24,2001:db8::1");
  ASSERT_TRUE(list);
  EXPECT_FALSE(list->allows_all());
  EXPECT_TRUE(list->allows(address_bytes("192.0.2.7")));
  EXPECT_TRUE(list->allows(address_bytes("2001:db8::1")));
  EXPECT_FALSE(list->allows(address_bytes("192.0.3.7")));
  for (const char* text : {",", "192.0.2.7,", ",192.0.2.7", "192.0.2.7,,192.0.2.8", "192.0.2.7 "})
    EXPECT_FALSE(AllowList::parse(text)) << text;
}

}  // namespace
}  // namespace uwarp
