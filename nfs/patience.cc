// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/patience.h"

#include <algorithm>
#include <thread>

#include "nfs/interrupt.h"

namespace uwarp::nfs {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A restarted server lets no client open files for the length of a lease, often 90 seconds.
constexpr auto kLimit = seconds(150);
constexpr auto kFirstPause = milliseconds(100);
constexpr auto kLongestPause = seconds(5);

void sleep_interruptibly(Patience::Clock::duration duration) {
  auto end = Patience::Clock::now() + duration;
  while (Patience::Clock::now() < end) {
    Interrupt::check();
    std::this_thread::sleep_for(kSignalDelay);
  }
}

}  // namespace

Patience::Time Patience::machine() { return {&Clock::now, &sleep_interruptibly}; }

Patience::Patience(Time time) : time_(std::move(time)) { renew(); }

void Patience::renew() {
  pause_ = kFirstPause;
  end_ = time_.now() + kLimit;
}

bool Patience::wait_after(const NfsError& error) {
  bool is_asked = error.status() == NfsStatus::kJukebox || error.status() == NfsStatus::kGrace;
  if (!is_asked || time_.now() + pause_ > end_) {
    return false;
  }
  time_.sleep(pause_);
  pause_ = std::min<Clock::duration>(2 * pause_, kLongestPause);
  return true;
}

}  // namespace uwarp::nfs
