// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Waits for a server that wants a call to be repeated later: it fetches the file from slow storage,
// or was restarted and serves its former clients first (RFC 7530, sections 13.1.1.3 and 9.6.2).
#pragma once

#include <chrono>
#include <functional>

#include "nfs/nfs_status.h"

namespace uwarp::nfs {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  /// The clock and the sleep that are used. Tests have their own.
  struct Time {
    std::function<Clock::time_point()> now;
    std::function<void(Clock::duration)> sleep;
  };
  /// That of the machine. Its sleep throws Interrupted when a signal comes.
  static Time machine();

  explicit Patience(Time time = machine());

  /// Waits, longer each time, and returns true: the call may be repeated. False: the error does not
  /// ask for that, or the limit of time is over.
  bool wait_after(const NfsError& error);
  /// The server has answered.
  void renew();

 private:
  Time time_;
  Clock::duration pause_;
  Clock::time_point end_;
};

}  // namespace uwarp::nfs
