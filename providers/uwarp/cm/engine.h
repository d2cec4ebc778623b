// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The engine of this process: one region table, one progress instance, the endpoints by number.
// Made at first use, dead in a forked child until used afresh (decision 26).
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "mr/region_table.h"
#include "net/net_device.h"
#include "qp/completion_queue.h"

namespace uwarp {

class Endpoint;
class Progress;

class Engine {
 public:
  /// The instance of this process; after fork the child gets a new one.
  static Engine& instance();
  virtual ~Engine() = default;

  virtual RegionTable& regions() = 0;
  virtual Progress& progress() = 0;

  /// The endpoint with this number, null if there is none.
  virtual std::shared_ptr<Endpoint> find(Qpn number) = 0;

  /// Drives the sockets in the caller, without blocking: called by ibv_poll_cq when `cq` is empty.
  virtual void poll(CompletionQueue& cq) = 0;
  /// `cq` belongs to the queue pairs polled through it; called at create_qp / destroy_qp time by
  /// Endpoint itself, so verbs/ need not.

  /// ibv_dereg_mr: invalidates the region, waits until nobody touches it, frees its keys.
  virtual void remove_region(MemoryRegion& region) = 0;

  /// Makes sure that a helper thread runs that serves while nobody polls (lazily, first QP use).
  virtual void ensure_helper_thread() = 0;
};

}  // namespace uwarp
