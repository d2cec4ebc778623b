// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sources that some thread looks at all the time. Epoll is not told of their data, which costs the
// sender more than the look costs here. Whoever sleeps on epoll has it told of them again first.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/spinlock.h"
#include "io/source.h"

namespace uwarp {

/// Thread-safe. Its lock is a leaf.
class QuietSources {
 public:
  static constexpr size_t kMost = 8;

  /// False: there are enough.
  bool add(Source& source);
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  /// Ends the quiet of all of them.
  void end_all();
  /// ... of those that nobody has looked at since the last call.
  void end_idle();

 private:
  template <typename Keep>
  void end_unless(Keep keep);

  SpinLock lock_;
  std::weak_ptr<Source> sources_[kMost];
  std::atomic<size_t> count_{0};
};

}  // namespace uwarp
