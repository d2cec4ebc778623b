// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What one thread at a time has found lately among the queue pairs that take datagrams: no lock and
// no reference count per datagram, while queue pairs neither come nor go.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "connect/endpoint_table.h"

namespace uwarp {

class DatagramEndpoint;
using DatagramTable = BasicEndpointTable<DatagramEndpoint>;

class RecentEndpoints {
 public:
  /// Null if there is none.
  DatagramEndpoint* find(const DatagramTable& table, Qpn number) {
    Entry& entry = entries_[number.value % entries_.size()];
    const uint64_t version = table.version();
    if (entry.version != version || entry.number != number) [[unlikely]] {
      entry.endpoint = table.find(number);
      entry.number = number;
      entry.version = version;
    }
    return entry.endpoint.get();
  }

 private:
  struct Entry {
    Qpn number;
    uint64_t version = 0;
    std::shared_ptr<DatagramEndpoint> endpoint;
  };
  std::array<Entry, 4> entries_;
};

}  // namespace uwarp
