// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether others want the core of a thread that polls. While it keeps the core they wait for whole
// time slices, and one of them may be the peer, or whoever keeps the peer from running.
#pragma once

#include <cstdint>

namespace uwarp {

/// Belongs to one thread.
class CpuContention {
 public:
  /// One poll of so many looks, which takes two system calls ...
  static constexpr uint32_t kPollsPerLook = 1024;
  /// ... and of so many while the core is wanted, as each poll may be a sleep then.
  static constexpr uint32_t kPollsPerLookIfWanted = 128;
  /// Others want the core when the scheduler has taken it away for so much of the time between two
  /// looks: what the kernel does for itself takes less. Time without a switch was lost to the host
  /// of a virtual machine, which giving way would not please.
  static constexpr uint64_t kLossNs = 1'000'000;
  /// For so long it is remembered. Whoever gives way sleeps most of the time, so that what it loses
  /// says nothing any more: it is renewed by one switch for so much time ...
  static constexpr uint64_t kMemoryNs = 20'000'000;
  /// ... which the looks of the helper thread (every 4 ms) and the kernel's own work do not make.
  static constexpr uint64_t kSwitchNs = 2'000'000;

  /// Of the calling thread.
  struct Reading {
    uint64_t now_ns;
    uint64_t run_ns;    // on a core, so far
    uint64_t switches;  // to others, while it could have gone on
  };

  /// To be asked at each poll that finds nothing.
  bool wanted() {
    if (++polls_ % (wanted_ ? kPollsPerLookIfWanted : kPollsPerLook) == 0) [[unlikely]]
      look(read());
    return wanted_;
  }
  bool look(const Reading& reading);

 private:
  static Reading read();

  uint32_t polls_ = 0;
  bool wanted_ = false;
  uint64_t until_ns_ = 0;
  Reading last_{};
};

}  // namespace uwarp
