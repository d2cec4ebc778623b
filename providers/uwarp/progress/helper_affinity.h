// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the helper thread runs, and how soon. The wake-up of a thread on another core costs an
// inter-processor interrupt, in a virtual machine more than all the rest of a small message; on the
// core of the waker it costs a switch. A scheduler that finds both cores taken (two applications
// that spin on memory) leaves the thread where it is, which is as often wrong as right. But a
// thread that has much to do at each wake-up needs a core of its own, not the sender's.
#pragma once

#include <cstdint>

namespace uwarp {

/// Belongs to the helper thread, which makes it.
class HelperAffinity {
 public:
  /// Asks the scheduler for short turns that come soon (Linux 6.12; else nothing changes).
  HelperAffinity();

  /// The thread is about to sleep.
  void sleeps(uint64_t now_ns) { asleep_ns_ = now_ns; }
  /// The thread runs on `own` and was woken at `now_ns` from `waker`. True: it is to move there.
  /// Negative: not known.
  bool woken(uint64_t now_ns, int own, int waker);
  /// The thread was woken. False: it is not worth a look which core woke it.
  bool looks();
  /// It was woken from this core: moves it if that is due. It may run wherever it might before.
  void woken_from(int waker);

 private:
  uint32_t wake_ups_ = 0;
  uint32_t misses_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t asleep_ns_ = 0;
  uint64_t not_before_ns_ = 0;
};

}  // namespace uwarp
