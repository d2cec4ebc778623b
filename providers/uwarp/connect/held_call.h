// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A peer's call to a queue pair that cannot be answered yet, and how a call is refused.
#pragma once

#include <cstddef>
#include <memory>

#include "connect/connection.h"
#include "connect/rendezvous_message.h"

namespace uwarp {

struct HeldCall {
  std::shared_ptr<Connection> request;
  RendezvousCall call;
};

/// Calls that one queue pair holds at most: its one peer makes one, and perhaps another after a
/// time-out. No other peer is expected to dial.
inline constexpr size_t kMaxHeldCalls = 4;

/// Tells the peer why its call is not answered; without memory for that it sees a reset. Without
/// locks.
void refuse(Connection& request, RendezvousVerdict verdict);

}  // namespace uwarp
