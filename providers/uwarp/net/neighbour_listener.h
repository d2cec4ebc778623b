// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once

namespace uwarp {

/// Waits for a neighbour. Called once, by the thread that progresses, without locks of the engine.
class NeighbourListener {
 public:
  virtual ~NeighbourListener() = default;
  /// 0 when the neighbour is there, -EHOSTUNREACH or -ETIMEDOUT when it is not.
  virtual void neighbour_known(int status) = 0;
};

}  // namespace uwarp
