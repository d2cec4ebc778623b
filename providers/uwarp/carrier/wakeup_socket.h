// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What wakes the thread that waits for a ring: one end of a pair of Unix stream sockets through
// which nothing can be sent. It rings by shutdown(2), which the kernel shows to the other end as an
// edge each time. Whatever the other process does to its end, this call never waits and raises no
// signal, and there is nothing to drain.
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
  /// One that another process has made. Nothing, and `fd` stays as it is: it is something else, or
  /// something was sent through it already. Its end is one of `errands`: a byte that was sent out
  /// of band and taken is counted no more, but a descriptor beside it is still there. Throws
  /// std::bad_alloc.
  static std::optional<WakeupSocket> adopt(ForeignFd& fd, Errands& errands);
  WakeupSocket(WakeupSocket&&) noexcept = default;
  WakeupSocket& operator=(WakeupSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(foreign_, other.foreign_);
    std::swap(errands_, other.errands_);
    return *this;
  }
  ~WakeupSocket();

  /// Any thread. Makes an edge at this end, too.
  void ring() const;
  int fd() const { return foreign_ != nullptr ? foreign_->fd.get() : fd_.get(); }

 private:
  /// Closed by the thread that runs it.
  struct Foreign final : Errand {
    void run() noexcept override { fd = EngineFd(); }
    EngineFd fd;
  };

  explicit WakeupSocket(EngineFd fd) : fd_(std::move(fd)) {}

  EngineFd fd_;
  std::shared_ptr<Foreign> foreign_;  // instead of fd_
  Errands* errands_ = nullptr;        // that end it
};

}  // namespace uwarp
