// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The bytes before a datagram: those between two uwarps, and those in the receive buffer.
#include "protocol/wire/datagram_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>

#include "protocol/wire/global_route_header.h"

namespace uwarp {
namespace {

void expect_bytes(const std::byte* at, std::initializer_list<unsigned> expected) {
  size_t i = 0;
  for (const unsigned one : expected) {
    EXPECT_EQ(static_cast<unsigned>(at[i]), one) << "byte " << i;
    ++i;
  }
}

TEST(DatagramHeader, IsWrittenAndRead) {
  DatagramHeader header;
  header.payload_bytes = 0x0102;
  header.flags = DatagramHeader::kImmediate | DatagramHeader::kSolicited;
  header.traffic_class = 0x2E;
  header.destination = Qpn{0xA1A2A3};
  header.source = Qpn{0xB1B2B3};
  header.qkey = 0xC1C2C3C4;
  const uint8_t immediate[] = {0xD1, 0xD2, 0xD3, 0xD4};
  std::memcpy(&header.immediate, immediate, sizeof immediate);
  header.hop_limit = 64;
  std::byte bytes[DatagramHeader::kWireSize];
  std::memset(bytes, 0xFF, sizeof bytes);
  header.encode(bytes);
  expect_bytes(bytes, {0x01, 0x02, 0x03, 0x2E, 0x00, 0xA1, 0xA2, 0xA3, 0x00, 0xB1, 0xB2, 0xB3,
                       0xC1, 0xC2, 0xC3, 0xC4, 0xD1, 0xD2, 0xD3, 0xD4, 0x40, 0x00, 0x00, 0x00});
  const DatagramHeader back = DatagramHeader::decode(bytes);
  EXPECT_EQ(back.payload_bytes, header.payload_bytes);
  EXPECT_EQ(back.flags, header.flags);
  EXPECT_EQ(back.traffic_class, header.traffic_class);
  EXPECT_EQ(back.destination, header.destination);
  EXPECT_EQ(back.source, header.source);
  EXPECT_EQ(back.qkey, header.qkey);
  EXPECT_EQ(back.immediate, header.immediate);
  EXPECT_EQ(back.hop_limit, header.hop_limit);
}

TEST(GlobalRouteHeader, OfIpv4StandsInTheLastBytes) {
  GlobalRouteHeader header({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1},
                           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 2});
  const auto bytes = header.of(8, 0x2E, 64);
  ASSERT_EQ(bytes.size(), 40u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(bytes[i], std::byte{0}) << i;
  // 20 of this header, 8 of UDP, 12 and 8 of the transport, 8 of payload, 4 of the CRC.
  expect_bytes(bytes.data() + 20, {0x45, 0x2E, 0x00, 60, 0x00, 0x00, 0x40, 0x00, 64, 17});
  expect_bytes(bytes.data() + 32, {192, 0, 2, 1, 192, 0, 2, 2});
  // RFC 791: the sum over all words is all ones.
  uint32_t sum = 0;
  for (size_t at = 20; at < 40; at += 2) sum += load_be16(&bytes[at]);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  EXPECT_EQ(sum, 0xFFFFu);
}

TEST(GlobalRouteHeader, ChecksumOfEachLength) {
  GlobalRouteHeader header({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 255, 255, 255, 255},
                           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 255, 255, 255, 254});
  for (uint32_t length = 0; length <= kMaxDatagramBytes; ++length) {
    const auto bytes = header.of(static_cast<uint16_t>(length), static_cast<uint8_t>(length), 255);
    uint32_t sum = 0;
    for (size_t at = 20; at < 40; at += 2) sum += load_be16(&bytes[at]);
    while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
    ASSERT_EQ(sum, 0xFFFFu) << length;
    ASSERT_EQ(load_be16(&bytes[22]), length + 52);
  }
}

// Some sums still have a carry when the first one has been added. RFC 1071-4.1.
TEST(GlobalRouteHeader, ChecksumOfEachAddress) {
  for (uint32_t last = 0; last <= 0xFFFF; ++last) {
    GlobalRouteHeader header({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 255, 255, 255, 255},
                             {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 255, 255,
                              static_cast<uint8_t>(last >> 8), static_cast<uint8_t>(last)});
    const auto bytes = header.of(100, 0, 255);
    uint32_t sum = 0;
    for (size_t at = 20; at < 40; at += 2) sum += load_be16(&bytes[at]);
    while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
    ASSERT_EQ(sum, 0xFFFFu) << last;
  }
}

TEST(GlobalRouteHeader, OfIpv6FillsIt) {
  GlobalRouteHeader header({0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
                           {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2});
  const auto bytes = header.of(4096, 0x2E, 1);
  expect_bytes(bytes.data(), {0x62, 0xE0, 0x00, 0x00, 0x10, 0x20, 17, 1, 0xFE, 0x80});
  EXPECT_EQ(bytes[23], std::byte{1});
  EXPECT_EQ(bytes[39], std::byte{2});
}

}  // namespace
}  // namespace uwarp
