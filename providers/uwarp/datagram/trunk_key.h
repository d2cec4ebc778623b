// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What tells one trunk from another: an address and a port at each end.
#pragma once

#include <compare>
#include <cstdint>

#include "net/ip_address.h"

namespace uwarp {

/// The ports are those of queue pair numbers. A process has one for each 256 queue pairs of a
/// device, and a trunk for each of them, so that all datagrams on a line come from one port.
struct TrunkKey {
  IpAddress own;
  uint16_t own_port = 0;
  IpAddress peer;
  uint16_t port = 0;  // of the peer
  friend auto operator<=>(const TrunkKey&, const TrunkKey&) = default;
};

}  // namespace uwarp
