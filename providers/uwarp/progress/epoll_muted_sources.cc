// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "progress/epoll_muted_sources.h"

#include <utility>

#include "base/mutex.h"

namespace uwarp {

// The weak reference is made, and what it replaces is released, without the lock. Sleepers are
// looked for under it: either this entry comes first, and the sleeper finds it, or this call sees
// the sleeper.
bool EpollMutedSources::add(Source& source) {
  std::weak_ptr<Source> entry = source.weak_from_this();
  const Lock guard(lock_);
  if (presence_.anybody_sleeps() || count_ == kMost) return false;
  std::swap(sources_[count_++], entry);
  return true;
}

void EpollMutedSources::take(Taken& taken) {
  const Lock guard(lock_);
  for (; count_ != 0; --count_) {
    taken.sources[taken.count] = sources_[count_ - 1].lock();
    if (taken.sources[taken.count] != nullptr) ++taken.count;
  }
}

void EpollMutedSources::end_all() {
  Taken taken;
  take(taken);
  for (size_t i = 0; i < taken.count; ++i) taken.sources[i]->unmute();
}

void EpollMutedSources::end_idle() {
  Taken taken;
  take(taken);
  for (size_t i = 0; i < taken.count; ++i) {
    Source& source = *taken.sources[i];
    if (!source.polled_since() || !add(source)) source.unmute();
  }
}

}  // namespace uwarp
