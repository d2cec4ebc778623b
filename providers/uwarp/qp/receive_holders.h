// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Holders of datagrams that wait until a queue pair has a receive for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/atomics.h"
#include "base/spinlock.h"

namespace uwarp {

/// Holds a datagram for which there is no receive.
class DatagramHolder {
 public:
  virtual ~DatagramHolder() = default;
  /// A receive has been posted, by the calling thread, or none will be taken. No lock held.
  virtual void receive_came() = 0;
  /// Of the queue pair for which it holds: another holder.
  std::shared_ptr<DatagramHolder> next_holding;
};

/// Any thread. Its lock is a leaf but for what `pointless` takes.
template <class Atomics = StdAtomics>
class BasicReceiveHolders {
 public:
  /// receive_came() of `holder` is called once, by posted() or tell(). False, and it is not: a
  /// receive is there, or none will be taken, as `pointless()` says.
  template <typename Pointless>
  bool hold(std::shared_ptr<DatagramHolder> holder, Pointless pointless) {
    const std::lock_guard lock(lock_);
    // With that of posted(): either this sees the receive, or posted() sees the holder.
    any_.exchange(1, std::memory_order_acq_rel);
    if (pointless()) return false;
    holder->next_holding = std::move(first_);
    first_ = std::move(holder);
    return true;
  }
  /// False: it has been called, or will be in a moment.
  bool stop(const DatagramHolder& holder) {
    const std::lock_guard lock(lock_);
    for (auto* at = &first_; *at != nullptr; at = &(*at)->next_holding) {
      if (at->get() != &holder) continue;
      auto rest = std::move((*at)->next_holding);
      *at = std::move(rest);
      return true;
    }
    return false;
  }
  /// A receive has been posted.
  void posted() {
    if (any_.fetch_add(0, std::memory_order_acq_rel) != 0) [[unlikely]]
      tell();
  }
  void tell() {
    std::shared_ptr<DatagramHolder> holders;
    {
      const std::lock_guard lock(lock_);
      any_.store(0, std::memory_order_relaxed);
      holders = std::move(first_);
    }
    while (holders != nullptr) {
      const auto holder = std::exchange(holders, std::move(holders->next_holding));
      holder->receive_came();
    }
  }

 private:
  BasicSpinLock<Atomics> lock_;
  std::shared_ptr<DatagramHolder> first_;
  typename Atomics::template atomic<uint32_t> any_{0};
};

using ReceiveHolders = BasicReceiveHolders<>;

}  // namespace uwarp
