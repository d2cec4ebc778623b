// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The endpoints of this process by number.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/ids.h"
#include "base/mutex.h"

namespace uwarp {

/// Any thread; its lock is a leaf. Owns none of them.
template <class Endpoint>
class BasicEndpointTable {
 public:
  void enter(Qpn number, std::weak_ptr<Endpoint> endpoint) {
    const Lock guard(mutex_);
    endpoints_.emplace(number, std::move(endpoint));
    version_.fetch_add(1, std::memory_order_release);
  }
  void leave(Qpn number) {
    const Lock guard(mutex_);
    endpoints_.erase(number);
    version_.fetch_add(1, std::memory_order_release);
  }
  /// Null if there is none.
  std::shared_ptr<Endpoint> find(Qpn number) const {
    const Lock guard(mutex_);
    const auto found = endpoints_.find(number);
    return found == endpoints_.end() ? nullptr : found->second.lock();
  }
  /// Changes whenever a number comes to lead to something else, or to nothing.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  /// Calls `visit(std::shared_ptr<Endpoint>)` for all of them, without a lock. Takes no memory.
  template <typename Visit>
  void visit(Visit visit) const {
    std::array<std::shared_ptr<Endpoint>, 64> some;
    Qpn next{0};
    for (size_t count = some.size(); count == some.size();) {
      count = 0;
      {
        const Lock guard(mutex_);
        for (auto at = endpoints_.lower_bound(next); at != endpoints_.end() && count != some.size();
             ++at) {
          next = Qpn{at->first.value + 1};
          if (auto endpoint = at->second.lock()) some[count++] = std::move(endpoint);
        }
      }
      for (size_t i = 0; i < count; ++i) visit(std::move(some[i]));
    }
  }

 private:
  mutable Mutex mutex_;
  std::map<Qpn, std::weak_ptr<Endpoint>> endpoints_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> version_{1};
};

class Endpoint;
using EndpointTable = BasicEndpointTable<Endpoint>;

}  // namespace uwarp
