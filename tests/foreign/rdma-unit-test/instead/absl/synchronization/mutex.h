// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A newer MutexLock also takes a reference.
#pragma once

#define MutexLock MutexLockByPointer
#include_next "absl/synchronization/mutex.h"
#undef MutexLock

namespace absl {

class MutexLock : public MutexLockByPointer {
 public:
  using MutexLockByPointer::MutexLockByPointer;
  explicit MutexLock(Mutex& mutex) : MutexLockByPointer(&mutex) {}
};

}  // namespace absl
