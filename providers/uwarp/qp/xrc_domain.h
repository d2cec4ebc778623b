// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An XRC domain: the shared receive queues that peers can name, and what its receiving queue pairs
// have in place of the parts that the application does not give them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "base/spinlock.h"
#include "memory/memory_region.h"
#include "qp/completion_queue.h"
#include "qp/receive_queue.h"

namespace uwarp {

/// A shared receive queue of an XRC domain. What it points to outlives it.
struct XrcQueue {
  uint32_t number;  // kFirstSharedQueue or more, unique in the process
  SharedReceiveQueue* receives;
  CompletionQueue* completions;  // of its receives
  ProtectionDomain* domain;      // of their memory
};

/// Any thread. Outlives its queues and queue pairs.
class XrcDomain {
 public:
  XrcDomain() { domain_.others = &domains_; }
  XrcDomain(const XrcDomain&) = delete;
  XrcDomain& operator=(const XrcDomain&) = delete;

  /// Throws std::bad_alloc.
  void enter(const XrcQueue& queue) {
    const Lock guard(lock_);
    queues_.reserve(queues_.size() + 1);
    domains_.add(queue.domain);
    queues_.push_back(&queue);
  }
  /// It is not found any more. Receivers that have found it are told by Receiver::forget().
  void leave(const XrcQueue& queue) {
    const Lock guard(lock_);
    std::erase(queues_, &queue);
    domains_.remove(queue.domain);
  }
  /// Null: no queue here has this number.
  const XrcQueue* find(uint32_t number) const {
    return find_if([number](const XrcQueue& queue) { return queue.number == number; });
  }
  /// Some queue completes its receives there.
  bool completes_to(const CompletionQueue& completions) const {
    return find_if([&](const XrcQueue& queue) { return queue.completions == &completions; });
  }

  /// Of receiving queue pairs. Their peers may use the regions of all domains that have a shared
  /// queue here, because they choose which queue they name.
  ProtectionDomain& protection_domain() { return domain_; }
  /// Takes nothing: such a queue pair sends no requests, and each shared queue has its own.
  CompletionQueue& no_completions() { return no_completions_; }

 private:
  template <class Match>
  const XrcQueue* find_if(const Match& match) const {
    const Lock guard(lock_);
    const auto found = std::find_if(queues_.begin(), queues_.end(),
                                    [&](const XrcQueue* queue) { return match(*queue); });
    return found != queues_.end() ? *found : nullptr;
  }

  mutable SpinLock lock_;  // leaf
  std::vector<const XrcQueue*> queues_ GUARDED_BY(lock_);
  DomainSet domains_ GUARDED_BY(lock_);
  ProtectionDomain domain_;
  CompletionQueue no_completions_{1, nullptr};
};

}  // namespace uwarp
