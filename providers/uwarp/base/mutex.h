// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A mutex, and the one way to hold a lock of any kind for a scope. Both as of the standard library,
// but known to clang's thread safety analysis.
#pragma once

#include <cassert>
#include <condition_variable>
#include <mutex>

#include "base/thread_safety.h"

namespace uwarp {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  /// Waits for a notification; the mutex is given up meanwhile. May return early.
  void wait(std::condition_variable& condition) REQUIRES(this) {
    std::unique_lock own(mutex_, std::adopt_lock);
    condition.wait(own);
    own.release();
  }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex, SpinLock or ProcessLock to the end of its scope, except between unlock() and
/// lock().
template <class Lockable>
class SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Lockable& lockable) ACQUIRE(lockable) : lockable_(lockable) { lockable.lock(); }
  /// The calling thread has it.
  Lock(Lockable& lockable, std::adopt_lock_t) REQUIRES(lockable) : lockable_(lockable) {}
  /// Takes it by lock() only.
  Lock(Lockable& lockable, std::defer_lock_t) EXCLUDES(lockable)
      : lockable_(lockable), held_(false) {}
  ~Lock() RELEASE() {
    if (held_) lockable_.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() ACQUIRE() {
    assert(!held_);
    lockable_.lock();
    held_ = true;
  }
  void unlock() RELEASE() {
    assert(held_);
    held_ = false;
    lockable_.unlock();
  }
  /// It stays locked when this goes.
  void release() { held_ = false; }

 private:
  Lockable& lockable_;
  bool held_ = true;
};

}  // namespace uwarp
