// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two processes say to each other before there is a trunk: the call, the call back that proves
// the caller's port, and the answer. Layout: docs/wire.md, "Datagrams". Encode and decode only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "connect/rendezvous_message.h"
#include "datagram/trunk_key.h"

namespace uwarp {

/// Of calls, and of what goes over a trunk. A receiver refuses others with kUnknownVersion.
inline constexpr uint32_t kTrunkVersion = 2;

/// A random number that only the process which drew it and the one that it has called know. 0:
/// none.
using TrunkNonce = uint64_t;
/// A new one, of the kernel's random numbers.
TrunkNonce draw_nonce();

struct TrunkCall {
  /// That one call back can repeat. A queue pair number's port has one process, so more than one
  /// call from it is rare; the room is for callers that have no right to the port.
  static constexpr size_t kMostNonces = 32;

  TrunkKey key;  // as the caller sees it
  bool call_back = false;
  /// Of a call: the caller's own, one. Of a call back: those of the calls that it answers.
  std::vector<TrunkNonce> nonces{};

  std::vector<std::byte> encode() const;
  /// The nonces behind the call in the private data of a Request, kMostNonces at most.
  static std::vector<TrunkNonce> nonces_of(std::span<const std::byte> private_data);
};

/// The Reply that accepts a call back names the nonce that was right.
std::vector<std::byte> encode_accepted(TrunkNonce nonce);
/// 0 if it names none.
TrunkNonce accepted_nonce(std::span<const std::byte> private_data);

}  // namespace uwarp
