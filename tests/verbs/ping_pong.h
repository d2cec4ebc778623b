// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rounds of work between two connected ends: a Send there, a Send back, a Write and a Read, with
// all bytes compared. A round takes no memory from the heap, so that a signal handler that forks
// may interrupt it.
#pragma once

#include <cstdint>

#include "verbs/verbs_fixture.h"

/// How a thread waits for its completions.
enum class Waiting {
  kPolling,   ///< ibv_poll_cq() without a pause
  kInRead,    ///< armed, in ibv_get_cq_event()
  kInEpoll,   ///< armed, in epoll_wait() on the channel
  kByHelper,  ///< it looks now and then: the library's own thread does the work
};
const char* name_of(Waiting waiting);

/// Two ends of this process and their rounds. One thread at a time.
class PingPong {
 public:
  PingPong(ibv_context* context, Waiting waiting);
  ~PingPong();
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  /// False: something went wrong, see fault().
  bool round();
  bool rounds(int count);
  /// What went wrong first; null: nothing.
  const char* fault() const { return fault_; }

 private:
  /// Waits for the completion `id` of `end`, which is the next one there.
  bool complete(End& end, uint64_t id);
  bool fail(const char* what);

  const Waiting waiting_;
  const Channel channel_;
  int epoll_fd_ = -1;
  Pair pair_;
  const Address a_, b_;
  uint8_t seed_ = 0;
  const char* fault_ = nullptr;
};
