// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sources that pollers look at all the time. They are quiet: their data makes no event in epoll,
// which would cost the sender more than the look costs here. A thread ends the quiet of all before
// it sleeps on epoll.
#pragma once

#include <cstddef>
#include <memory>

#include "base/atomics.h"
#include "base/spinlock.h"
#include "progress/presence.h"
#include "progress/source.h"

namespace uwarp {

/// Thread-safe. Its lock is a leaf: sources are called and released without it.
class EpollMutedSources {
 public:
  static constexpr size_t kMost = 8;

  explicit EpollMutedSources(const Presence& presence) : presence_(presence) {}

  /// True: the source may become quiet, until its unmute() is called. False: a thread sleeps on
  /// epoll, or kMost sources are quiet. The caller keeps unmute() waiting until it has acted.
  bool add(Source& source);
  /// The caller has become a sleeper: ends the quiet of all. None becomes quiet until it leaves.
  void end_all();
  /// Ends the quiet of those that no thread has looked at since the last call.
  void end_idle();

 private:
  struct Taken {
    std::shared_ptr<Source> sources[kMost];
    size_t count = 0;
  };
  void take(Taken& taken);

  const Presence& presence_;
  SpinLock lock_;
  size_t count_ GUARDED_BY(lock_) = 0;
  std::weak_ptr<Source> sources_[kMost] GUARDED_BY(lock_);
};

}  // namespace uwarp
