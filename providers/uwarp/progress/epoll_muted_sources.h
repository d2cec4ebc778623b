// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sources that pollers look at all the time. Epoll is not told of their data, which costs the
// sender more than the look costs here. Whoever sleeps on epoll has it told of them again first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/spinlock.h"
#include "progress/source.h"

namespace uwarp {

/// Thread-safe. Its lock is a leaf: sources are called, and let go of, without it.
class EpollMutedSources {
 public:
  static constexpr size_t kMost = 8;

  /// The source may become quiet, until its end_quiet() is called. False: not now, as somebody
  /// sleeps, or there are enough. The caller keeps end_quiet() waiting until it has acted on this.
  bool add(Source& source);
  /// Somebody is about to sleep on epoll: ends the quiet of all, and there is none until the end.
  void begin_sleep();
  void end_sleep() { --sleepers_; }
  /// Ends the quiet of those that nobody has looked at since the last call.
  void end_idle();

 private:
  struct Taken {
    std::shared_ptr<Source> sources[kMost];
    size_t count = 0;
  };
  void take_locked(Taken& taken);

  SpinLock lock_;
  std::atomic<uint32_t> sleepers_{0};  // come, and are looked for, under the lock
  size_t count_ = 0;
  std::weak_ptr<Source> sources_[kMost];
};

}  // namespace uwarp
