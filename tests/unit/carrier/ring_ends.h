// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Both ends of a ring in this process, each with its rights over the other's memory, and what shows
// the edges of a bell.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "carrier/ring_carrier.h"
#include "os/engine_fds.h"

namespace uwarp {

/// What another process would get of `fd`.
inline ForeignFd handed(int fd) { return ForeignFd(dup(fd)); }

/// The same memory, mapped once more.
inline SharedMemory mapped_again(int memory_fd) {
  ForeignFd fd = handed(memory_fd);
  return std::move(SharedMemory::adopt(fd, RingCarrier::kSharedBytes)).value();
}

struct RingEnds {
  RingEnds() {
    auto memory = std::move(SharedMemory::create(RingCarrier::kSharedBytes)).value();
    auto other = mapped_again(memory.fd());
    auto bells = std::move(WakeupSocket::pair()).value();
    auto of_first = std::make_unique<PeerMemory>(), of_second = std::make_unique<PeerMemory>();
    const PeerMemory::Place first_secret = of_first->place(), second_secret = of_second->place();
    first = std::make_unique<RingCarrier>(std::move(memory), true, std::move(bells.first),
                                          std::move(of_first), errands);
    second = std::make_unique<RingCarrier>(std::move(other), false, std::move(bells.second),
                                           std::move(of_second), errands);
    first->ask_peer(getpid(), second_secret);
    second->ask_peer(getpid(), first_secret);
    (void)first->take_answer();
    (void)second->take_answer();
  }
  /// Ends before its threads could be cut off by a later test's fork.
  Errands errands;
  std::unique_ptr<RingCarrier> first, second;
};

/// Counts what epoll shows of a bell from now on.
class BellWatch {
 public:
  explicit BellWatch(int wakeup_fd) {
    epoll_event event{.events = WakeupSocket::kEdges, .data = {}};
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_fd, &event);
    (void)rang();
  }
  bool rang() const {
    epoll_event event;
    return epoll_wait(epoll_.get(), &event, 1, 0) == 1;
  }

 private:
  EngineFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
};

}  // namespace uwarp
