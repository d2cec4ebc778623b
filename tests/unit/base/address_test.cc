// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Addresses of peers are read as the system reads them.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/settings.h"

namespace uwarp {
namespace {

TEST(Address, IsReadAsTheSystemReadsIt) {
  for (const std::string text : {"::",
                                 "::1",
                                 "1::",
                                 "2001:db8::1",
                                 "fe80::1:2:3",
                                 "1:2:3:4:5:6:7:8",
                                 "1:2:3:4:5:6:7::",
                                 "::ffff:192.0.2.7",
                                 "64:ff9b::192.0.2.33",
                                 "1:2:3:4:5:6:192.0.2.7",
                                 "ABCD:ef01::",
                                 "",
                                 ":",
                                 ":::",
                                 "1::2::3",
                                 "1:2:3:4:5:6:7",
                                 "1:2:3:4:5:6:7:8:9",
                                 "1:2:3:4::5:6:7:8",
                                 "12345::",
                                 "g::",
                                 "1:",
                                 ":1",
                                 "::1%lo",
                                 "::192.0.2",
                                 "192.0.2.7::",
                                 "host",
                                 " ::1",
                                 "::-1",
                                 "::+1"}) {
    in6_addr expected{};
    const bool valid = inet_pton(AF_INET6, text.c_str(), &expected) == 1;
    const auto address = read_address(text);
    ASSERT_EQ(address.has_value(), valid) << text;
    if (valid) {
      EXPECT_EQ(std::memcmp(address->data(), &expected, sizeof expected), 0) << text;
    }
  }
  for (const std::string text : {"192.0.2.7", "0.0.0.0", "255.255.255.255", "256.0.0.1", "1.2.3",
                                 "1.2.3.4.5", "1..2.3", "-1.2.3.4", "1.2.3.4 "}) {
    in_addr expected{};
    const bool valid = inet_pton(AF_INET, text.c_str(), &expected) == 1;
    const auto address = read_address(text);
    ASSERT_EQ(address.has_value(), valid) << text;
    if (valid) {
      EXPECT_EQ(std::memcmp(address->data() + 12, &expected, sizeof expected), 0) << text;
    }
  }
}

}  // namespace
}  // namespace uwarp
