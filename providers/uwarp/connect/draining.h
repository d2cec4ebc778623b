// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection whose FIN is out and whose queue pair is free: what the peer still sends is read
// away until its own FIN, so that no RST destroys a Terminate on its way. Without IO.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstdint>

#include "connect/connection_socket.h"
#include "connect/deadline.h"

namespace uwarp {

/// How long a connection that ends waits for its peer: while it drains, and before its FIN for a
/// peer that takes nothing.
inline constexpr uint64_t kCloseWaitNs = 5'000'000'000;

class Draining {
 public:
  /// For how long our FIN may wait for a peer to make room, where completions are acknowledged.
  static constexpr uint64_t kNoRoomWaitNs = 250'000'000;

  Draining(bool acknowledged, uint64_t now_ns)
      : acknowledged_(acknowledged), close_{now_ns + kCloseWaitNs} {
    if (acknowledged) room_ = {now_ns + kNoRoomWaitNs};
  }

  enum class Next : uint8_t { kWait, kReadOn, kClose };
  /// `count` as read away: bytes, 0 at the end of the stream, or a negative errno.
  static Next on_read(ssize_t count) {
    return count == -EAGAIN ? Next::kWait : count > 0 ? Next::kReadOn : Next::kClose;
  }
  /// How to close after on_read() has said so. With acknowledgements a reset is still due then.
  CloseMode close_mode(ssize_t count) const {
    return count == 0 && !acknowledged_ ? CloseMode::kDone : CloseMode::kGentle;
  }
  /// True: to be closed with a reset. A peer that holds messages back for which it has no receive
  /// may do so without end (rnr_retry 7) and sees no FIN behind them. Between InfiniBand adapters
  /// it would hear of the end all the same, and nothing that was acknowledged is lost.
  template <class Socket>
  bool deadline_passed(const Socket& socket, uint64_t now_ns) {
    if (room_.take_passed(now_ns)) {
      if (socket.peer_has_no_room()) return true;
      room_ = {now_ns + kNoRoomWaitNs};
    }
    return close_.take_passed(now_ns);
  }
  Deadline deadline() const { return earliest({close_, room_}); }

 private:
  bool acknowledged_;
  Deadline close_;
  Deadline room_;  // when it is looked whether our FIN waits behind what the peer does not take
};

}  // namespace uwarp
