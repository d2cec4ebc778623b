// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rtnetlink messages about next hops and neighbours, as bytes. The tests build the answers as the
// kernel does.
#include <gtest/gtest.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cerrno>
#include <cstring>

#include "net/neighbour.h"

namespace uwarp {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}
IpAddress ip(const char* text) { return *IpAddress::from_string(text); }

void append(Bytes& to, const void* from, size_t length) {
  const auto* first = static_cast<const std::byte*>(from);
  to.insert(to.end(), first, first + length);
  while (to.size() % 4 != 0) to.push_back({});
}
void attribute(Bytes& to, uint16_t type, const Bytes& value) {
  const rtattr head{static_cast<uint16_t>(sizeof(rtattr) + value.size()), type};
  append(to, &head, sizeof head);
  append(to, value.data(), value.size());
}
template <typename Body>
Bytes message(uint16_t type, const Body& body, const Bytes& attributes = {}) {
  Bytes out;
  nlmsghdr head{};
  head.nlmsg_len = static_cast<uint32_t>(sizeof head + sizeof body + attributes.size());
  head.nlmsg_type = type;
  append(out, &head, sizeof head);
  append(out, &body, sizeof body);
  append(out, attributes.data(), attributes.size());
  return out;
}
Bytes route_answer(uint8_t family, uint8_t type, const Bytes& attributes) {
  rtmsg body{};
  body.rtm_family = family;
  body.rtm_type = type;
  return message(RTM_NEWROUTE, body, attributes);
}
Bytes error(int number) {
  nlmsgerr body{};
  body.error = -number;
  return message(NLMSG_ERROR, body);
}
Bytes entry(uint16_t type, uint16_t state, const Bytes& address, int ifindex = 3) {
  ndmsg body{};
  body.ndm_family = address.size() == 4 ? AF_INET : AF_INET6;
  body.ndm_ifindex = ifindex;
  body.ndm_state = state;
  Bytes attributes;
  attribute(attributes, NDA_CACHEINFO, Bytes(16));
  attribute(attributes, NDA_DST, address);
  return message(type, body, attributes);
}

const Bytes kFive = bytes_of({5, 0, 0, 0});
const Bytes kGateway = bytes_of({10, 0, 0, 254});
const Bytes kGateway6 = bytes_of({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9});

TEST(NeighbourMessage, RouteQuestion) {
  EXPECT_EQ(route_question(ip("10.0.0.7"), ip("10.0.0.1")),
            bytes_of({44, 0,  0,  0, 26, 0, 1, 0, 0, 0, 0, 0, 0,  0, 0, 0,     // nlmsghdr
                      2,  32, 32, 0, 0,  0, 0, 0, 0, 0, 0, 0,                  // rtmsg
                      8,  0,  1,  0, 10, 0, 0, 7, 8, 0, 2, 0, 10, 0, 0, 1}));  // to, from
  const Bytes v6 = route_question(ip("fd00::7"), ip("fd00::1"));
  EXPECT_EQ(v6.size(), 16u + 12 + 20 + 20);
  EXPECT_EQ(v6[17], std::byte{128});
}

TEST(NeighbourMessage, RouteQuestionWithAZone) {
  in6_addr local{};
  std::memcpy(&local, kGateway6.data(), sizeof local);
  const Bytes question = route_question(IpAddress::from_v6(local, 5), IpAddress::from_v6(local, 5));
  const Bytes tail(question.end() - 8, question.end());
  EXPECT_EQ(tail, bytes_of({8, 0, 4, 0, 5, 0, 0, 0}));
}

TEST(NeighbourMessage, OnTheLinkTheNextHopIsTheDestination) {
  Bytes attributes;
  attribute(attributes, RTA_OIF, kFive);
  EXPECT_EQ(next_hop_of(route_answer(AF_INET, RTN_UNICAST, attributes), ip("10.0.0.7")),
            (NextHop{5, ip("10.0.0.7")}));
  EXPECT_EQ(next_hop_of(route_answer(AF_INET6, RTN_UNICAST, attributes), ip("fd00::7")),
            (NextHop{5, ip("fd00::7")}));
}

TEST(NeighbourMessage, AGatewayIsTheNextHop) {
  Bytes attributes;
  attribute(attributes, RTA_OIF, kFive);
  attribute(attributes, RTA_GATEWAY, kGateway);
  EXPECT_EQ(next_hop_of(route_answer(AF_INET, RTN_UNICAST, attributes), ip("9.9.9.9")),
            (NextHop{5, ip("10.0.0.254")}));

  in6_addr gateway6{};
  std::memcpy(&gateway6, kGateway6.data(), sizeof gateway6);
  Bytes six;
  attribute(six, RTA_GATEWAY, kGateway6);
  attribute(six, RTA_OIF, kFive);
  EXPECT_EQ(next_hop_of(route_answer(AF_INET6, RTN_UNICAST, six), ip("2001:db8::1")),
            (NextHop{5, IpAddress::from_v6(gateway6, 5)}));

  Bytes via = bytes_of({AF_INET6, 0});
  via.insert(via.end(), kGateway6.begin(), kGateway6.end());
  Bytes mixed;
  attribute(mixed, RTA_OIF, kFive);
  attribute(mixed, RTA_VIA, via);
  EXPECT_EQ(next_hop_of(route_answer(AF_INET, RTN_UNICAST, mixed), ip("9.9.9.9")),
            (NextHop{5, IpAddress::from_v6(gateway6, 5)}));
}

TEST(NeighbourMessage, NoNextHop) {
  Bytes attributes;
  attribute(attributes, RTA_OIF, kFive);
  for (const uint8_t type : {RTN_LOCAL, RTN_BROADCAST, RTN_MULTICAST, RTN_UNREACHABLE})
    EXPECT_FALSE(next_hop_of(route_answer(AF_INET, type, attributes), ip("10.0.0.7")));
  EXPECT_FALSE(next_hop_of(route_answer(AF_INET, RTN_UNICAST, {}), ip("10.0.0.7")));
  EXPECT_FALSE(next_hop_of(error(ENETUNREACH), ip("10.0.0.7")));
  EXPECT_FALSE(next_hop_of({}, ip("10.0.0.7")));
  Bytes odd;
  attribute(odd, RTA_OIF, kFive);
  attribute(odd, RTA_GATEWAY, bytes_of({1, 2, 3}));
  EXPECT_FALSE(next_hop_of(route_answer(AF_INET, RTN_UNICAST, odd), ip("10.0.0.7")));
}

TEST(NeighbourMessage, NeighbourQuestion) {
  EXPECT_EQ(neighbour_question({5, ip("10.0.0.7")}),
            bytes_of({36, 0, 0, 0, 30, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // nlmsghdr
                      2,  0, 0, 0, 5,  0, 0, 0, 0, 0, 0, 0,              // ndmsg
                      8,  0, 1, 0, 10, 0, 0, 7}));
}

TEST(NeighbourMessage, States) {
  const auto state = [](uint16_t nud) {
    return neighbour_state_of(entry(RTM_NEWNEIGH, nud, kGateway));
  };
  for (const uint16_t nud :
       {NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_PERMANENT, NUD_NOARP})
    EXPECT_EQ(state(nud), NeighbourState::kPresent) << nud;
  EXPECT_EQ(state(NUD_INCOMPLETE), NeighbourState::kResolving);
  EXPECT_EQ(state(NUD_NONE), NeighbourState::kResolving);
  EXPECT_EQ(state(NUD_FAILED), NeighbourState::kFailed);
  EXPECT_EQ(neighbour_state_of(error(ENOENT)), NeighbourState::kAbsent);
  // The kernel does not know the question, or does not permit it.
  EXPECT_EQ(neighbour_state_of(error(EOPNOTSUPP)), NeighbourState::kUnknown);
  EXPECT_EQ(neighbour_state_of(error(EPERM)), NeighbourState::kUnknown);
  EXPECT_EQ(neighbour_state_of({}), NeighbourState::kUnknown);
}

TEST(NeighbourMessage, Notifications) {
  Bytes all = entry(RTM_NEWNEIGH, NUD_REACHABLE, kGateway, 3);
  for (const Bytes& more :
       {route_answer(AF_INET, RTN_UNICAST, {}), entry(RTM_DELNEIGH, NUD_FAILED, kGateway6, 4),
        entry(RTM_NEWNEIGH, NUD_FAILED, bytes_of({1, 2, 3, 4, 5}), 4)})
    all.insert(all.end(), more.begin(), more.end());
  in6_addr gateway6{};
  std::memcpy(&gateway6, kGateway6.data(), sizeof gateway6);
  EXPECT_EQ(changed_neighbours(all),
            (std::vector<NextHop>{{3, ip("10.0.0.254")}, {4, IpAddress::from_v6(gateway6, 4)}}));
}

// Cut anywhere, and with each length made wrong. The sanitizers check that no access goes beyond
// the bytes.
TEST(NeighbourMessage, DamagedBytes) {
  Bytes attributes;
  attribute(attributes, RTA_OIF, kFive);
  attribute(attributes, RTA_GATEWAY, kGateway);
  for (const Bytes& whole : {route_answer(AF_INET, RTN_UNICAST, attributes), error(ENOENT),
                             entry(RTM_NEWNEIGH, NUD_REACHABLE, kGateway)}) {
    const auto read_all = [](const Bytes& bytes) {
      (void)next_hop_of(bytes, ip("10.0.0.7"));
      (void)neighbour_state_of(bytes);
      (void)changed_neighbours(bytes);
    };
    for (size_t length = 0; length < whole.size(); ++length) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<long>(length));
      read_all(cut);
      EXPECT_FALSE(next_hop_of(cut, ip("10.0.0.7")));
    }
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int value : {0, 1, 3, 255}) {
        Bytes changed = whole;
        changed[at] = static_cast<std::byte>(value);
        read_all(changed);
      }
    }
  }
}

TEST(NeighbourMessage, OutcomeOfWaiting) {
  struct Case {
    NeighbourState state;
    std::optional<int> before, at_the_end;
  };
  for (const Case& c : {Case{NeighbourState::kPresent, 0, 0}, Case{NeighbourState::kUnknown, 0, 0},
                        Case{NeighbourState::kFailed, -EHOSTUNREACH, -EHOSTUNREACH},
                        Case{NeighbourState::kResolving, std::nullopt, -ETIMEDOUT},
                        Case{NeighbourState::kAbsent, std::nullopt, -ETIMEDOUT}}) {
    EXPECT_EQ(outcome_of_waiting(c.state, false), c.before) << static_cast<int>(c.state);
    EXPECT_EQ(outcome_of_waiting(c.state, true), c.at_the_end) << static_cast<int>(c.state);
  }
}

}  // namespace
}  // namespace uwarp
