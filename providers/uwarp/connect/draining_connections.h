// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The connections that drain, which nobody else may hold any more.
#pragma once

#include <memory>
#include <mutex>

#include "connect/draining_places.h"

namespace uwarp {

class Connection;

/// Any thread; its lock is a leaf.
class DrainingConnections {
 public:
  /// Holds it. Returns another one that is to be reset for it, if too many drain; null: none.
  [[nodiscard]] std::shared_ptr<Connection> keep(std::shared_ptr<Connection> connection);
  void let_go(const std::shared_ptr<Connection>& connection);

 private:
  std::mutex mutex_;
  DrainingPlaces<std::shared_ptr<Connection>> places_;
};

}  // namespace uwarp
