// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What wakes the thread that waits for a ring: two pairs of Unix stream sockets through which
// nothing can be sent, one to watch and one to ring. It rings by shutdown(2), which the kernel
// shows to both ends of the pair as an edge each time: with one pair for both directions each side
// would wake its own threads as well. Whatever the other process does to its ends, this call never
// waits and raises no signal, and there is nothing to drain.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/result.h"
#include "os/engine_fds.h"
#include "os/errands.h"

namespace uwarp {

class WakeupSocket {
 public:
  /// What epoll is asked for. No other source asks for EPOLLRDNORM, so it tells a bell's edge.
  static constexpr uint32_t kEdges = EPOLLRDNORM | EPOLLET;

  WakeupSocket() = default;
  /// Two that ring each other. Errors: EMFILE, ENFILE...
  static Result<std::pair<WakeupSocket, WakeupSocket>> pair();
  /// One that another process has made: its fd() and its rung_fd(). Nothing, and both stay as they
  /// are: one is something else, or something was sent through it already. Their end is one of
  /// `errands`: a byte that was sent out of band and taken is counted no more, but a descriptor
  /// beside it is still there. Throws std::bad_alloc.
  static std::optional<WakeupSocket> adopt(ForeignFd& fd, ForeignFd& rung, Errands& errands);
  WakeupSocket(WakeupSocket&&) noexcept = default;
  WakeupSocket& operator=(WakeupSocket&& other) noexcept {
    std::swap(own_, other.own_);
    std::swap(foreign_, other.foreign_);
    std::swap(errands_, other.errands_);
    return *this;
  }
  ~WakeupSocket();

  /// Any thread. An edge at the other side.
  void ring() const;
  /// Any thread. An edge at this side.
  void ring_here() const;
  /// To be watched.
  int fd() const { return ends().watched.get(); }
  int rung_fd() const { return ends().rung.get(); }

 private:
  struct Ends {
    EngineFd watched, rung;
  };
  /// Closed by the thread that runs it.
  struct Foreign final : Errand {
    void run() noexcept override { ends = {}; }
    Ends ends;
  };

  WakeupSocket(EngineFd watched, EngineFd rung) : own_{std::move(watched), std::move(rung)} {}
  const Ends& ends() const { return foreign_ != nullptr ? foreign_->ends : own_; }

  Ends own_;
  std::shared_ptr<Foreign> foreign_;  // instead of own_
  Errands* errands_ = nullptr;        // that end it
};

}  // namespace uwarp
