// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which source a ticket of the epoll set means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/atomics.h"
#include "base/mutex.h"
#include "base/spinlock.h"
#include "progress/source.h"

namespace uwarp {

/// Thread-safe. The lock is a leaf. A ticket is never 0, and not used again soon.
class SourceSlots {
 public:
  using Registration = uint64_t;

  /// Throws std::bad_alloc.
  Registration add(Source& source, int fd) {
    const Lock guard(lock_);
    if (free_ == slots_.size()) slots_.emplace_back().next_free = free_ + 1;
    const uint32_t index = free_;
    Slot& slot = slots_[index];
    free_ = slot.next_free;
    slot.source = source.weak_from_this();
    slot.fd = fd;
    return static_cast<Registration>(slot.generation) << 32 | index;
  }

  /// Calls `unwatch(fd)` and forgets the ticket, unless it is forgotten already. find() may have
  /// returned the source to another thread before, but does not return it afterwards.
  template <class Unwatch>
  void remove(Registration registration, Unwatch unwatch) {
    std::weak_ptr<Source> released;  // destroyed after the lock is released
    const Lock guard(lock_);
    Slot* const slot = find_locked(registration);
    if (slot == nullptr) return;
    unwatch(slot->fd);
    released.swap(slot->source);
    slot->fd = -1;
    if (++slot->generation == 0) slot->generation = 1;
    slot->next_free = std::exchange(free_, static_cast<uint32_t>(registration));
  }

  /// Fills in `sources` for as many tickets; null for those that are forgotten or end.
  template <class RegistrationOf>
  void find(size_t count, RegistrationOf registration_of, std::shared_ptr<Source>* sources) {
    const Lock guard(lock_);
    for (size_t i = 0; i < count; ++i)
      if (const Slot* const slot = find_locked(registration_of(i)))
        sources[i] = slot->source.lock();
  }

 private:
  struct Slot {
    std::weak_ptr<Source> source;
    uint32_t generation = 1;  // of the ticket; so 0 is none
    int fd = -1;              // -1: free
    uint32_t next_free = 0;
  };

  Slot* find_locked(Registration registration) REQUIRES(lock_) {
    const auto index = static_cast<uint32_t>(registration);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.generation == registration >> 32 && slot.fd >= 0 ? &slot : nullptr;
  }

  SpinLock lock_;
  std::vector<Slot> slots_ GUARDED_BY(lock_);
  // The first of the free ones; their last one is the end of slots_.
  uint32_t free_ GUARDED_BY(lock_) = 0;
};

}  // namespace uwarp
