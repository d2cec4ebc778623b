// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which link a stream goes over.
#include "inject/wires.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

AddressBytes address(uint8_t last) {
  AddressBytes made{};
  made[10] = made[11] = 0xff;
  made[12] = 192;
  made[14] = 2;
  made[15] = last;
  return made;
}

Wires wires_of(std::string_view text) {
  std::string error;
  const FaultPlan plan = FaultPlan::parse(text, error);
  EXPECT_EQ(error, "");
  return Wires(plan);
}

TEST(Wires, ThereAreNoneWithoutARule) {
  Wires none = wires_of("reset after=3");
  EXPECT_FALSE(none.any());
  EXPECT_EQ(none.between(address(1), address(2)), nullptr);
}

TEST(Wires, AllStreamsOfAnAddressShareALink) {
  Wires all = wires_of("wire latency=20us");
  EXPECT_TRUE(all.any());
  const auto link = all.between(address(1), address(2));
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(all.between(address(1), address(3)), link);
  EXPECT_NE(all.between(address(4), address(2)), link);
  EXPECT_NE(link->out, link->in);
}

TEST(Wires, TheFirstRuleForThePeerHolds) {
  Wires some = wires_of("wire latency=1ms peer=192.0.2.7; wire latency=2ms peer=::ffff:192.0.2.8");
  EXPECT_EQ(some.between(address(1), address(7))->out->terms().latency_ns, 1'000'000u);
  EXPECT_EQ(some.between(address(1), address(8))->in->terms().latency_ns, 2'000'000u);
  EXPECT_EQ(some.between(address(1), address(9)), nullptr);
  Wires rest = wires_of("wire latency=1ms peer=192.0.2.7; wire rate=1G");
  EXPECT_EQ(rest.between(address(1), address(7))->out->terms().latency_ns, 1'000'000u);
  EXPECT_EQ(rest.between(address(1), address(8))->out->terms().latency_ns, 0u);
}

}  // namespace
}  // namespace uwarp
