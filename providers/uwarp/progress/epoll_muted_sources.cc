// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/epoll_muted_sources.h"

#include <mutex>
#include <utility>

namespace uwarp {

// The weak reference is made, and what it replaces let go of, without the lock.
bool EpollMutedSources::add(Source& source) {
  std::weak_ptr<Source> entry = source.weak_from_this();
  const std::lock_guard guard(lock_);
  if (sleepers_ != 0 || count_ == kMost) return false;
  std::swap(sources_[count_++], entry);
  return true;
}

void EpollMutedSources::take_locked(Taken& taken) {
  for (size_t i = 0; i < count_; ++i) {
    taken.sources[taken.count] = sources_[i].lock();
    if (taken.sources[taken.count] != nullptr) ++taken.count;
  }
  count_ = 0;
}

// Either add() comes first, and the source is found here, or it sees the sleeper.
void EpollMutedSources::begin_sleep() {
  Taken taken;
  {
    const std::lock_guard guard(lock_);
    ++sleepers_;
    take_locked(taken);
  }
  for (size_t i = 0; i < taken.count; ++i) taken.sources[i]->end_quiet();
}

void EpollMutedSources::end_idle() {
  Taken taken;
  {
    const std::lock_guard guard(lock_);
    if (count_ == 0) return;
    take_locked(taken);
  }
  for (size_t i = 0; i < taken.count; ++i) {
    Source& source = *taken.sources[i];
    if (!source.looked_at() || !add(source)) source.end_quiet();
  }
}

}  // namespace uwarp
