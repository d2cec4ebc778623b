// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The endpoints of this process by number.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "base/ids.h"

namespace uwarp {

class Endpoint;

/// Any thread; its lock is a leaf. Owns none of them.
class EndpointTable {
 public:
  void enter(Qpn number, std::weak_ptr<Endpoint> endpoint);
  void leave(Qpn number);
  /// Null if there is none.
  std::shared_ptr<Endpoint> find(Qpn number);
  /// Calls `visit(std::shared_ptr<Endpoint>)` for all of them, without a lock. Takes no memory.
  template <typename Visit>
  void visit(Visit visit) {
    std::array<std::shared_ptr<Endpoint>, 64> some;
    Qpn next{0};
    for (size_t count = some.size(); count == some.size();) {
      count = take_some(next, some);
      for (size_t i = 0; i < count; ++i) visit(std::move(some[i]));
    }
  }

 private:
  /// Some from `next` on, which becomes the number behind them. Fewer than fit: these were the
  /// last.
  size_t take_some(Qpn& next, std::span<std::shared_ptr<Endpoint>> some);

  std::mutex mutex_;
  std::map<Qpn, std::weak_ptr<Endpoint>> endpoints_;
};

}  // namespace uwarp
