// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What is asked of the kernel about next hops and neighbours, and what it answers, as the bytes of
// rtnetlink messages. No I/O.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "net/ip_address.h"

namespace uwarp {

/// Where packets to a destination go first: the destination itself, or a gateway.
struct NextHop {
  int ifindex = 0;
  IpAddress address;

  friend bool operator==(const NextHop&, const NextHop&) = default;
};

/// What the kernel's neighbour table says of a next hop.
enum class NeighbourState : uint8_t {
  kUntold,     ///< the kernel cannot be asked
  kAbsent,     ///< no entry
  kResolving,  ///< asked for on the link, not answered yet
  kFailed,     ///< asked for several times and not answered
  kPresent,    ///< has answered, or needs not to
};

/// RTM_GETROUTE: how does a packet from `source` to `destination` leave?
std::vector<std::byte> route_question(const IpAddress& destination, const IpAddress& source);
/// The answer to it. Nullopt for an error, and for routes without a neighbour: to local, broadcast
/// and multicast addresses.
std::optional<NextHop> next_hop_of(std::span<const std::byte> answer, const IpAddress& destination);

/// RTM_GETNEIGH: the entry of `hop`.
std::vector<std::byte> neighbour_question(const NextHop& hop);
NeighbourState neighbour_state_of(std::span<const std::byte> answer);

/// The next hops of which notifications (RTM_NEWNEIGH, RTM_DELNEIGH) tell.
std::vector<NextHop> changed_neighbours(std::span<const std::byte> notifications);

/// What a look at the table means to a thing that waits for a neighbour: 0 once it is there,
/// -EHOSTUNREACH if the kernel has given up, -ETIMEDOUT at the end of the time; nullopt to wait on.
/// A kernel that cannot be asked any more must not keep anything from trying: 0.
std::optional<int> outcome_of_waiting(NeighbourState state, bool time_is_over);

}  // namespace uwarp
