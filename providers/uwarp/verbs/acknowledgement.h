// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Destroying an object waits until the application has acknowledged every event of it that it was
// given (ibv_ack_cq_events, ibv_ack_async_event): libibverbs counts and signals, we wait.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace uwarp {

/// Locks a mutex that lives in a public verbs struct. Unwinding (also by thread cancellation while
/// waiting) unlocks it.
class VerbsMutexLock {
 public:
  explicit VerbsMutexLock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~VerbsMutexLock() { pthread_mutex_unlock(&mutex_); }
  VerbsMutexLock(const VerbsMutexLock&) = delete;
  VerbsMutexLock& operator=(const VerbsMutexLock&) = delete;
  pthread_mutex_t& mutex() { return mutex_; }

 private:
  pthread_mutex_t& mutex_;
};

/// Number of events of an object that the application has been given: those sent, less those taken
/// back unread. Between a thread's read() of one and all that libibverbs does next, nothing else
/// tells that the object is still needed.
using DeliveredCount = std::atomic<uint32_t>;

/// Waits until `acknowledged` (guarded by `mutex`, signalled on `condition`) has reached
/// `delivered`, which does not change any more. `Object` has the public members mutex and cond.
template <typename Object>
void wait_acknowledged(Object& object, const uint32_t& acknowledged, uint32_t delivered) {
  VerbsMutexLock lock(object.mutex);
  while (acknowledged != delivered) pthread_cond_wait(&object.cond, &lock.mutex());
}

}  // namespace uwarp
