// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What changed from one look to the next, per second.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "snapshot.h"

namespace stat_view {

struct Rates {
  double sent_bytes = 0;
  double received_bytes = 0;
  double sent_messages = 0;
  double received_messages = 0;
  void add(const Rates& other);
};

class RateTable {
 public:
  /// `before` may be null, and has to stay.
  RateTable(const Snapshot* before, const Snapshot& now);
  /// False at the first look.
  bool known() const { return seconds_ > 0; }
  double seconds() const { return seconds_; }
  Rates of(const Process& process, const QueuePair& qp) const;
  Rates of(const Process& process) const;

 private:
  using ProcessKey = std::tuple<int, uint64_t>;  // pid, instance
  using QueuePairKey = std::tuple<ProcessKey, uint32_t, uint64_t>;
  using DeviceKey = std::tuple<ProcessKey, std::string>;

  static ProcessKey key(const Process& process) { return {process.pid, process.instance}; }

  double seconds_ = 0;
  std::map<QueuePairKey, const Traffic*> queue_pairs_;
  std::map<DeviceKey, const Traffic*> devices_;
};

}  // namespace stat_view
