// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The address of a peer in a rule of UWARP_FAULT.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace uwarp {

/// An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
using WireAddress = std::array<uint8_t, 16>;

/// Numeric text of either family, without a zone; nullopt if it is none.
std::optional<WireAddress> read_wire_address(std::string_view text);

}  // namespace uwarp
