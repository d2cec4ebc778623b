// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether other threads want the core of a thread that polls. While it keeps the core they wait for
// whole time slices. One of them may be the peer, or a thread for which the peer waits.
#pragma once

#include <cstdint>

#include "base/tuning.h"

namespace uwarp {

/// Belongs to one thread.
class CpuContention {
 public:
  /// Of the calling thread.
  struct Reading {
    uint64_t now_ns;
    uint64_t run_ns;    // on a core, so far
    uint64_t switches;  // to other threads, while this one could have gone on
  };

  /// To be asked at each poll that finds nothing.
  bool wanted() {
    if (++polls_ % tuning::kPollsPerLook == 0) [[unlikely]]
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
