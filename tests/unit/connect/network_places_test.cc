// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/network_places.h"

#include <gtest/gtest.h>

#include <string>

namespace uwarp {
namespace {

IpAddress at(const std::string& text) { return IpAddress::from_string(text).value(); }

/// In this test the holders are numbers.
struct Places : NetworkPlaces<int> {
  explicit Places(size_t places) : places(places) {}
  std::optional<int> enter(int holder, const IpAddress& from) {
    return NetworkPlaces::enter(holder, from, places);
  }
  const size_t places;
};

TEST(NetworkPlaces, NoPlaceIsTakenWhileSomeAreFree) {
  Places places(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(places.enter(i, at("192.0.2.1")), std::nullopt);
  places.leave(1);
  EXPECT_EQ(places.enter(3, at("192.0.2.2")), std::nullopt);
  EXPECT_EQ(places.enter(4, at("192.0.2.3")), 0) << "192.0.2.1 holds 0 and 2";
}

TEST(NetworkPlaces, TheAddressThatHoldsMostLosesItsOldest) {
  Places places(8);
  (void)places.enter(0, at("192.0.2.9"));
  (void)places.enter(1, at("192.0.2.1"));
  for (int i = 2; i < 8; ++i) (void)places.enter(i, at("192.0.2.9"));
  EXPECT_EQ(places.enter(100, at("192.0.2.2")), 0);
  EXPECT_EQ(places.enter(101, at("192.0.2.9")), 2)
      << "a newcomer takes the place of one from its own address";
  EXPECT_EQ(places.enter(102, at("192.0.2.9")), 3);
  EXPECT_EQ(places.enter(103, at("192.0.2.3")), 4);
}

TEST(NetworkPlaces, AFloodTakesNothingFromOthers) {
  constexpr int kPlaces = 256;
  Places places(kPlaces);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(places.enter(-1 - i, at("192.0.2." + std::to_string(i))), std::nullopt);
  for (int i = 0; i < 10'000; ++i) {
    const auto loser = places.enter(i, at("198.51.100.7"));
    const int flooding = i - (kPlaces - 10);
    EXPECT_EQ(loser, flooding < 0 ? std::nullopt : std::optional(flooding));
  }
}

TEST(NetworkPlaces, OfEqualHoldersTheOldestLoses) {
  Places places(4);
  for (int i = 0; i < 4; ++i) (void)places.enter(i, at("192.0.2." + std::to_string(i)));
  EXPECT_EQ(places.enter(4, at("192.0.2.4")), 0);
  EXPECT_EQ(places.enter(5, at("192.0.2.4")), 4) << "with the newcomer it would hold two";
  EXPECT_EQ(places.enter(6, at("192.0.2.6")), 1);
}

TEST(NetworkPlaces, AnIpv6HostIsOneNetworkWhateverAddressItTakes) {
  Places places(4);
  (void)places.enter(0, at("2001:db8:0:1::1"));
  for (int i = 1; i < 4; ++i) (void)places.enter(i, at("2001:db8:0:2::" + std::to_string(i)));
  for (int i = 4; i < 100; ++i)
    EXPECT_EQ(places.enter(i, at("2001:db8:0:2::" + std::to_string(i))), i - 3);
}

TEST(NetworkPlaces, WithinOneNetworkAddressesAreDistinguished) {
  Places places(4);
  (void)places.enter(0, at("2001:db8::1"));
  for (int i = 1; i < 4; ++i) (void)places.enter(i, at("2001:db8::bad"));
  EXPECT_EQ(places.enter(4, at("2001:db8::2")), 1);
  EXPECT_EQ(places.enter(5, at("2001:db8::bad")), 2);
}

TEST(NetworkPlaces, Ipv4AddressesAreNetworksOfTheirOwnMappedOrNot) {
  EXPECT_EQ(network_of(at("192.0.2.1")), at("192.0.2.1"));
  EXPECT_EQ(network_of(at("::ffff:192.0.2.1")), at("192.0.2.1"));
  EXPECT_EQ(network_of(at("2001:db8:1:2:3:4:5:6")), at("2001:db8:1:2::"));
  Places places(3);
  (void)places.enter(0, at("::ffff:192.0.2.1"));
  (void)places.enter(1, at("192.0.2.2"));
  (void)places.enter(2, at("192.0.2.2"));
  EXPECT_EQ(places.enter(3, at("192.0.2.3")), 1);
}

TEST(NetworkPlaces, ClearedPlacesAreFree) {
  Places places(2);
  (void)places.enter(0, at("192.0.2.1"));
  (void)places.enter(1, at("192.0.2.1"));
  const auto cleared = places.clear();
  ASSERT_EQ(cleared.size(), 2u);
  EXPECT_EQ(cleared[0].holder, 0);
  EXPECT_EQ(cleared[1].holder, 1);
  EXPECT_EQ(places.enter(2, at("192.0.2.1")), std::nullopt);
  places.leave(0);  // it has no place any more
  EXPECT_EQ(places.enter(3, at("192.0.2.1")), std::nullopt);
  EXPECT_EQ(places.enter(4, at("192.0.2.1")), 2);
}

// Of the largest network one that gives way goes first, however young it is; of a smaller network
// none does.
TEST(NetworkPlaces, OfTheLargestNetworkOneThatGivesWayLoses) {
  NetworkPlaces<int> places;
  const auto odd = [](int holder) { return holder % 2 != 0; };
  for (int i = 0; i < 6; ++i) {
    const auto from = at(i == 1 ? "192.0.2.2" : "192.0.2.1");
    EXPECT_EQ(places.enter(i, from, 6, odd), std::nullopt);
  }
  EXPECT_EQ(places.enter(10, at("192.0.2.3"), 6, odd), 3);
  EXPECT_EQ(places.enter(12, at("192.0.2.4"), 6, odd), 5);
  EXPECT_EQ(places.enter(14, at("192.0.2.5"), 6, odd), 0) << "all that is left of it is even";
}

TEST(NetworkPlaces, FewerPlacesThanBeforeAreKeptFromThenOn) {
  NetworkPlaces<int> places;
  for (int i = 0; i < 8; ++i) (void)places.enter(i, at("192.0.2.1"), 8);
  for (int i = 8; i < 12; ++i) EXPECT_EQ(places.enter(i, at("192.0.2.1"), 4), i - 8);
  EXPECT_EQ(places.size(), 8u);
}

}  // namespace
}  // namespace uwarp
