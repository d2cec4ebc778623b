// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "io/quiet_sources.h"

#include <mutex>
#include <utility>

namespace uwarp {

bool QuietSources::add(Source& source) {
  std::weak_ptr<Source> entry = source.weak_from_this();
  const std::lock_guard guard(lock_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kMost) return false;
  sources_[count] = std::move(entry);
  count_.store(count + 1, std::memory_order_release);
  return true;
}

template <typename Keep>
void QuietSources::end_unless(Keep keep) {
  std::shared_ptr<Source> seen[kMost];  // called, and let go of, after the lock
  bool ends[kMost] = {};
  {
    const std::lock_guard guard(lock_);
    const size_t count = count_.load(std::memory_order_relaxed);
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      seen[i] = sources_[i].lock();
      ends[i] = seen[i] != nullptr && !keep(*seen[i]);
      if (seen[i] != nullptr && !ends[i]) std::swap(sources_[kept++], sources_[i]);
    }
    for (size_t i = kept; i < count; ++i) sources_[i].reset();
    count_.store(kept, std::memory_order_release);
  }
  for (size_t i = 0; i < kMost; ++i)
    if (ends[i]) seen[i]->end_quiet();
}

void QuietSources::end_all() {
  end_unless([](Source&) { return false; });
}

void QuietSources::end_idle() {
  end_unless([](Source& source) { return source.looked_at(); });
}

}  // namespace uwarp
