// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Whether the neighbour on the way to an address answers, as the kernel's neighbour table says, and
// how the kernel is made to ask for it. Needs no rights. Nothing here waits.
#pragma once

#include <optional>

#include "net/neighbour_message.h"
#include "net/net_device.h"

namespace uwarp {

/// The neighbour that packets along `route` to `destination` need. Nullopt if they need none (own
/// addresses, and devices without ARP or NDP), and if the kernel does not tell.
std::optional<NextHop> neighbour_towards(const IpAddress& destination, const Route& route);

NeighbourState neighbour_state(const NextHop& hop);

/// Makes the kernel ask for the neighbour, by a datagram to the discard port of `destination` that
/// goes no further than to it. False when it cannot be sent.
bool ask_for_neighbour(const IpAddress& destination, const Route& route);

/// A netlink fd that becomes readable when an entry of the table changes; -1 and errno. An engine
/// fd, the caller's to close.
int open_neighbour_changes();

}  // namespace uwarp
