// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The bytes of docs/wire.md, "Datagrams", and who is called back.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "datagram/trunk_connection.h"
#include "datagram/trunks.h"

namespace uwarp {
namespace {

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char two[4];
    (void)snprintf(two, sizeof two, text.empty() ? "%02x" : " %02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

TrunkKey key_of(uint16_t port) {
  const IpAddress own = IpAddress::from_string("192.0.2.1").value();
  const IpAddress peer = IpAddress::from_string("192.0.2.2").value();
  return {own, 0xABCD, peer, port};
}

TEST(TrunkCall, GoldenBytes) {
  EXPECT_EQ(hex(TrunkCall{key_of(0x1234), false, {0x0102030405060708}}.encode()),
            "75 57 52 56 01 00 00 00 00 ab cd 00 00 12 34 00 00 00 00 02 00 00 00 01 "
            "01 02 03 04 05 06 07 08");
  EXPECT_EQ(hex(TrunkCall{key_of(0x1234), true, {0x0102030405060708, 9}}.encode()),
            "75 57 52 56 01 00 00 00 00 ab cd 00 00 12 34 00 00 00 00 02 00 00 00 03 "
            "01 02 03 04 05 06 07 08 00 00 00 00 00 00 00 09");
  EXPECT_EQ(hex(encode_accepted(0x0102030405060708)),
            "75 57 52 56 01 00 00 00 00 00 00 00 01 02 03 04 05 06 07 08");
}

TEST(TrunkCall, NoncesAreReadAsFarAsTheyAreWhole) {
  TrunkCall call{key_of(1), true, {}};
  for (TrunkNonce nonce = 1; nonce <= 40; ++nonce) call.nonces.push_back(nonce);
  const auto bytes = call.encode();
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const auto nonces = TrunkCall::nonces_of(std::span(bytes).first(size));
    const size_t behind = size < RendezvousCall::kWireSize ? 0 : size - RendezvousCall::kWireSize;
    ASSERT_EQ(nonces.size(), std::min(behind / 8, TrunkCall::kMostNonces));
    for (size_t i = 0; i < nonces.size(); ++i) EXPECT_EQ(nonces[i], i + 1);
  }
  EXPECT_EQ(accepted_nonce(RendezvousAnswer{}.encode()), 0u);
  EXPECT_EQ(accepted_nonce(encode_accepted(5)), 5u);
  EXPECT_EQ(accepted_nonce({}), 0u);
}

TEST(TrunkCall, NoncesDiffer) {
  std::set<TrunkNonce> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(draw_nonce());
  EXPECT_EQ(drawn.size(), 1000u);
  EXPECT_FALSE(drawn.contains(0));
}

TEST(CallBacks, OnePortIsCalledOnceAtATime) {
  CallBacks calls;
  EXPECT_TRUE(calls.ask(key_of(1), 10));
  EXPECT_EQ(calls.take(key_of(1)), std::vector<TrunkNonce>{10});
  EXPECT_FALSE(calls.ask(key_of(1), 11));
  EXPECT_FALSE(calls.ask(key_of(1), 12));
  EXPECT_TRUE(calls.ask(key_of(2), 20)) << "another port waits for none";
  EXPECT_TRUE(calls.over(key_of(1)));
  EXPECT_EQ(calls.take(key_of(1)), (std::vector<TrunkNonce>{11, 12}));
  EXPECT_FALSE(calls.over(key_of(1)));
  EXPECT_TRUE(calls.ask(key_of(1), 13)) << "the last one is over";
  calls.forget(key_of(1));
  calls.forget(key_of(2));
  EXPECT_FALSE(calls.over(key_of(2)));
  EXPECT_EQ(calls.size(), 0u);
}

// Callers without end take no memory; the last ones are called back.
TEST(CallBacks, OfTooManyCallersTheLastOnesCount) {
  CallBacks calls;
  EXPECT_TRUE(calls.ask(key_of(1), 1));
  (void)calls.take(key_of(1));
  for (TrunkNonce nonce = 1; nonce <= 1000; ++nonce) EXPECT_FALSE(calls.ask(key_of(1), nonce));
  EXPECT_TRUE(calls.over(key_of(1)));
  const auto taken = calls.take(key_of(1));
  EXPECT_EQ(std::set<TrunkNonce>(taken.begin(), taken.end()).size(), TrunkCall::kMostNonces);
  for (const TrunkNonce nonce : taken) EXPECT_GT(nonce, 1000 - TrunkCall::kMostNonces);
}

}  // namespace
}  // namespace uwarp
