// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The place of a queue pair of any type among those of the process: its number, the port to which
// this number leads peers, and the slot in which uwarp-stat sees it.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/result.h"
#include "connect/rendezvous_ports.h"
#include "net/net_device.h"
#include "observe/stat_page.h"
#include "qp/qp_config.h"

namespace uwarp {

/// Move-only. The slot is given back at its end; what it refers to outlives it.
class QueuePairPlace {
 public:
  /// Errors: EADDRINUSE (no port), EMFILE, ENOMEM. Throws std::bad_alloc.
  static Result<QueuePairPlace> reserve(ConnectContext& context, const NetDevice& device);
  QueuePairPlace(QueuePairPlace&& other) noexcept;
  ~QueuePairPlace();

  Qpn number() const { return port_.number; }
  QueuePairSlot& slot() { return *slot_; }
  /// `config` with the number, the slot and the trace.
  QpConfig complete(QpConfig config) const;
  /// Shows a queue pair of this `config`, without completion queues.
  void show(const QpConfig& config, const NetDevice& device);
  /// The slots of its completion queues in the page of counters. One thread at a time.
  void name_queues(uint32_t send_queue, uint32_t receive_queue);
  /// From now on peers can call. 0 or an errno.
  int become_callable();
  /// Number and port; once. Another thread may be in become_callable().
  void give_back();

 private:
  QueuePairPlace(ConnectContext& context, RendezvousPorts::Place port)
      : context_(context), port_(std::move(port)) {}

  ConnectContext& context_;
  RendezvousPorts::Place port_;
  bool has_port_ = true;
  SlotLease<QueuePairSlot> slot_;
};

}  // namespace uwarp
