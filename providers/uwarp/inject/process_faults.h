// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The faults that UWARP_FAULT asks for in this process: the plan, and the counters of what belongs
// to no queue pair (attempts to connect, armed completion queues).
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "inject/fault_plan.h"
#include "inject/wires.h"

namespace uwarp {

class ProcessFaults {
 public:
  explicit ProcessFaults(FaultPlan plan);

  /// Null when no faults are asked for. Any thread.
  static ProcessFaults* instance();
  /// False: UWARP_FAULT is not a plan. That was said on stderr, and no device can be opened.
  static bool setting_valid();

  const FaultPlan& plan() const { return plan_; }
  /// The number of the next queue pair, from 1.
  uint32_t next_queue_pair();
  Wires& wires() { return wires_; }
  /// Counts one attempt at what `kind` makes fail. True if it is to fail.
  bool acts(FaultKind kind);

  /// The same of the process's faults, if there are any.
  static bool injected(FaultKind kind) {
    ProcessFaults* faults = instance();
    return faults != nullptr && faults->acts(kind);
  }

 private:
  const FaultPlan plan_;
  Wires wires_;
  Mutex mutex_;
  uint32_t queue_pairs_ GUARDED_BY(mutex_) = 0;
  std::vector<FaultCounter> counters_ GUARDED_BY(mutex_);
};

/// Whether the peer is asked for CRCs: by UWARP_CRC, or because one is to be wrong.
bool asks_for_crc();

}  // namespace uwarp
