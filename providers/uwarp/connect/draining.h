// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection that has sent its FIN and left its queue pair. What the peer still sends is read and
// dropped until its FIN, so that no RST destroys a Terminate that is under way. Without IO.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "connect/connection_socket.h"
#include "connect/deadline.h"

namespace uwarp {

/// How long a connection that ends waits for its peer: while it drains, and before its FIN for a
/// peer that takes nothing.
inline constexpr uint64_t kCloseWaitNs = 5'000'000'000;

class Draining {
 public:
  /// How long our FIN may wait for a peer to make room, where completions are acknowledged.
  static constexpr uint64_t kNoRoomWaitNs = 250'000'000;

  Draining(bool acknowledged, uint64_t now_ns)
      : acknowledged_(acknowledged),
        close_{now_ns + kCloseWaitNs},
        room_{acknowledged ? now_ns + kNoRoomWaitNs : 0} {}

  Deadline deadline() const { return earliest({close_, room_}); }
  /// How to close after the end of the stream (0) or an error. With acknowledgements a reset is
  /// still due then.
  CloseMode on_end(ssize_t count) const {
    return count == 0 && !acknowledged_ ? CloseMode::kDone : CloseMode::kGentle;
  }
  /// True: to be closed with a reset. A peer that holds messages back for which it has no receive
  /// may do so without end (rnr_retry 7) and sees no FIN behind them. Between InfiniBand adapters
  /// it would learn of the end. Nothing that was acknowledged is lost.
  bool on_deadline(const auto& socket, uint64_t now_ns) {
    if (room_.take_passed(now_ns)) {
      if (socket.peer_has_no_room()) return true;
      room_ = {now_ns + kNoRoomWaitNs};
    }
    return close_.take_passed(now_ns);
  }

 private:
  bool acknowledged_;
  Deadline close_;
  Deadline room_;  // when to look whether our FIN waits behind what the peer does not take
};

}  // namespace uwarp
