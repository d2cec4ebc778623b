// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Waiting for a server that asks to be asked again later: it fetches a file from elsewhere, or was
// restarted and lets former clients come first (RFC 7530, sections 13.1.1.3 and 9.6.2).
#pragma once

#include <chrono>
#include <functional>

#include "nfs/nfs_status.h"

namespace uwarp::nfs {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  /// What time it is, and how to let some pass. A test can have its own.
  struct Time {
    std::function<Clock::time_point()> now;
    std::function<void(Clock::duration)> sleep;
  };
  /// That of the machine. Its sleep throws Interrupted when a signal comes.
  static Time machine();

  explicit Patience(Time time = machine());

  /// True: it was waited for, longer each time, and the server may be asked again. False: the error
  /// says something else, or it has been too long.
  bool wait_after(const NfsError& error);
  /// The server has answered.
  void renew();

 private:
  Time time_;
  Clock::duration pause_;
  Clock::time_point end_;
};

}  // namespace uwarp::nfs
