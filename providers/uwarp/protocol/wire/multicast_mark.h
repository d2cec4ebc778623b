// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a UDP datagram to a multicast group begins with, before the header of the datagram in it:
// docs/wire.md, "Multicast". No start-up settles a version there, and strangers may use the port.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace uwarp {

/// ASCII "uMC" and the version.
inline constexpr std::array<std::byte, 4> kMulticastMark{std::byte{'u'}, std::byte{'M'},
                                                         std::byte{'C'}, std::byte{1}};

/// What is behind the mark; nothing if there is none, or that of another version.
inline std::optional<std::span<const std::byte>> behind_multicast_mark(
    std::span<const std::byte> bytes) {
  if (bytes.size() < kMulticastMark.size() ||
      !std::ranges::equal(bytes.first(kMulticastMark.size()), kMulticastMark))
    return std::nullopt;
  return bytes.subspan(kMulticastMark.size());
}

}  // namespace uwarp
