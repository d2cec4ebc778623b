// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How long a thread may look for work that is likely to come soon instead of sleeping: up to
// UWARP_SPIN_US after traffic, and only as long as no other thread wants its core.
#pragma once

#include <cstdint>

namespace uwarp {

/// Belongs to one thread at a time.
class SpinBudget {
 public:
  explicit SpinBudget(uint64_t spin_ns) : spin_ns_(spin_ns) {}

  /// Starts a round. False: sleep at once.
  bool start();
  /// Nothing has come: lets others run. False: the round is over.
  bool go_on();
  /// Something has come: it was worth it, and the round begins anew.
  void found();

 private:
  /// The scheduler has taken the core away since this was asked last.
  bool others_ran();

  uint64_t spin_ns_;
  uint64_t end_ns_ = 0;
  uint64_t not_before_ns_ = 0;
  uint64_t pause_ns_ = 0;
  uint64_t switches_ = 0;  // thread_switches() when others_ran() was asked last
};

}  // namespace uwarp
