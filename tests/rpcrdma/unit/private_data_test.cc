// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Private data of RFC 8797: bytes, search, and what two announcements mean together.
#include "core/private_data.h"

#include <gtest/gtest.h>

#include <array>

#include "rpcrdma/unit/bytes.h"

namespace rpcrdma::core {
namespace {

const PrivateData kLinuxClient{true, 4096, 4096};

Bytes encoded(const PrivateData& data) {
  Bytes room(PrivateData::kWireSize);
  EXPECT_EQ(data.encode(room), PrivateData::kWireSize);
  return room;
}

// Proves: 8797-4-e 8797-4-f 8797-4-g 8797-4-i
TEST(PrivateData, IsEightBytesInThisOrder) {
  EXPECT_EQ(encoded(kLinuxClient), hex("f6ab0e18 01 01 03 03"));
  EXPECT_EQ(encoded({false, 4096, 4096}), hex("f6ab0e18 01 00 03 03"));
  EXPECT_EQ(encoded({true, 1024, 262144}), hex("f6ab0e18 01 01 00 ff"));
}

// Proves: 8797-4.2-a 8797-4.2-b
TEST(PrivateData, SizesAreRoundedDownAndBounded) {
  EXPECT_EQ(encoded({false, 1024, 2047}), hex("f6ab0e18 01 00 00 00"));
  EXPECT_EQ(encoded({false, 5000, 300000}), hex("f6ab0e18 01 00 03 ff"));
  EXPECT_EQ(announceable(512), 1024u);
  EXPECT_EQ(announceable(5000), 4096u);
  EXPECT_EQ(announceable(300000), 262144u);
}

// A buffer below the smallest size cannot be announced, so nothing is.
// Proves: 8797-4-d 8797-4.2-b
TEST(PrivateData, IsNotSentWhereItCannotBe) {
  Bytes room(8);
  EXPECT_EQ((PrivateData{false, 1023, 4096}.encode(room)), 0u);
  EXPECT_EQ((PrivateData{false, 4096, 512}.encode(room)), 0u);
  room.resize(7);
  EXPECT_EQ(kLinuxClient.encode(room), 0u);
}

// Proves: 8797-4.2-a 8797-4.2-c 8797-4-j
TEST(PrivateData, AllSizeCodesAreDecoded) {
  for (unsigned code = 0; code < 256; ++code) {
    Bytes bytes = hex("f6ab0e18 01 00 00 00");
    bytes[6] = static_cast<std::byte>(code);
    bytes[7] = static_cast<std::byte>(255 - code);
    const auto found = PrivateData::find(bytes);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->send_size, 1024 * (code + 1));
    EXPECT_EQ(found->receive_size, 1024 * (256 - code));
  }
}

// Proves: 8797-4-h 8797-4-i
TEST(PrivateData, ReservedBitsAreIgnored) {
  for (unsigned flags = 0; flags < 256; ++flags) {
    Bytes bytes = hex("f6ab0e18 01 00 03 03");
    bytes[5] = static_cast<std::byte>(flags);
    const auto found = PrivateData::find(bytes);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->remote_invalidation, flags % 2 == 1);
  }
}

// Proves: 8797-5.2-a 8797-5.2-e
TEST(PrivateData, IsFoundAtAnyPlace) {
  for (size_t before = 0; before <= 200; ++before)
    for (const size_t after : {0, 1, 20})
      EXPECT_EQ(PrivateData::find(Bytes(before, std::byte{0x11}) + encoded(kLinuxClient) +
                                  Bytes(after, std::byte{0x22})),
                kLinuxClient)
          << before;
  // As it is behind the word that MPA revision 2 puts in front.
  EXPECT_EQ(PrivateData::find(hex("00800000 f6ab0e18 01010303")), kLinuxClient);
}

// Proves: 8797-5.2-b 8797-7-a
TEST(PrivateData, WhatIsNotOursIsNone) {
  EXPECT_FALSE(PrivateData::find({}));
  EXPECT_FALSE(PrivateData::find(hex("68656c6c6f")));
  EXPECT_FALSE(PrivateData::find(hex("180eabf6 01010303 180eabf6 01010303")));
  EXPECT_FALSE(PrivateData::find(hex("f6ab0e19 01010303")));
  EXPECT_FALSE(PrivateData::find(Bytes(512, std::byte{0xf6})));
}

// Proves: 8797-5.2-c 8797-6-a 8797-7-a
TEST(PrivateData, AnotherVersionIsNone) {
  for (unsigned version = 0; version < 256; ++version) {
    Bytes bytes = encoded(kLinuxClient);
    bytes[4] = static_cast<std::byte>(version);
    EXPECT_EQ(PrivateData::find(bytes).has_value(), version == 1) << version;
  }
}

// Proves: 8797-5.2-d
TEST(PrivateData, MustEndInTheBuffer) {
  const Bytes whole = encoded(kLinuxClient);
  for (size_t size = 0; size < whole.size(); ++size) {
    // An exact-size copy, so that a sanitizer sees what is read behind it.
    const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(PrivateData::find(part)) << size;
    EXPECT_FALSE(PrivateData::find(Bytes(30) + part)) << size;
  }
}

// The identifier may turn up by chance in front of the message.
// Proves: 8797-7-a 8797-5.2-a
TEST(PrivateData, TheSearchContinuesBehindAFalseStart) {
  EXPECT_EQ(PrivateData::find(hex("f6ab0e18 09 f6ab0e18 01010303")), kLinuxClient);
  EXPECT_EQ(PrivateData::find(hex("f6ab0e18 f6ab0e18 01010303")), kLinuxClient);
}

// Version 1 with more bytes behind it is version 1.
// Proves: 8797-6-a
TEST(PrivateData, ExtensionsAreIgnored) {
  EXPECT_EQ(PrivateData::find(hex("f6ab0e18 01010303 ffffffff ffffffff")), kLinuxClient);
}

// Proves: 8797-4.2-d 8797-4.2-e 8797-4-j
TEST(Agreement, ThresholdsAreTheSmallerOfBoth) {
  constexpr std::array kSizes{1024u, 4096u, 65536u, 262144u};
  for (const uint32_t client_send : kSizes)
    for (const uint32_t client_receive : kSizes)
      for (const uint32_t server_send : kSizes)
        for (const uint32_t server_receive : kSizes) {
          const PrivateData client{false, client_send, client_receive};
          const PrivateData server{false, server_send, server_receive};
          const Agreement expected{std::min(client_send, server_receive),
                                   std::min(server_send, client_receive), false};
          EXPECT_EQ(agree(Role::kClient, client, server), expected);
          EXPECT_EQ(agree(Role::kServer, server, client), expected);
        }
}

// Proves: 8797-4.1-a 8797-4.1-c 8797-3.2-a
TEST(Agreement, InvalidationTakesBoth) {
  for (const bool own : {false, true})
    for (const bool peer : {false, true})
      for (const Role role : {Role::kClient, Role::kServer})
        EXPECT_EQ(agree(role, {own, 4096, 4096}, PrivateData{peer, 4096, 4096}).remote_invalidation,
                  own && peer);
}

// Proves: 8797-3.1-a 8797-5.1-a
TEST(Agreement, WithoutAMessageTheDefaultsHold) {
  const Agreement expected{1024, 1024, false};
  EXPECT_EQ(agree(Role::kClient, {true, 65536, 65536}, std::nullopt), expected);
  EXPECT_EQ(agree(Role::kServer, {true, 65536, 65536}, std::nullopt), expected);
}

}  // namespace
}  // namespace rpcrdma::core
