// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whatever Progress serves: something with file descriptors, one deadline, or both.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace uwarp {

/// Derive from it and own the object by shared_ptr. Progress keeps weak references only, and holds
/// a strong one, but no lock, during a call. Calls come from whichever thread progresses, and
/// several threads may be inside one object at the same time: it protects itself.
class Source : public std::enable_shared_from_this<Source> {
 public:
  virtual ~Source() = default;

  /// Readiness came or changed (edge-triggered: it is told once, so whoever cannot act now must
  /// remember). `events` are EPOLL* bits; 0 when called again after true was returned.
  /// Returns true if there is more to do than one turn allows: it is called again soon.
  virtual bool ready(uint32_t events) = 0;

  /// Serves what has come without being told of it. True if anything had. What it served is told
  /// of all the same.
  virtual bool look() { return false; }

  /// Epoll is to be told of its data again, of which what is there already makes an edge: see
  /// Progress::quieten().
  virtual void end_quiet() {}

  /// Somebody has looked at it since this was asked last. Called under a lock: must not block.
  virtual bool looked_at() { return false; }

  /// The deadline set by Progress::set_deadline() has passed.
  virtual void deadline_passed() {}

  /// A call of ready() or deadline_passed() found no memory and was left in the middle. Whoever
  /// progresses cannot be told; the object gives up what it was about.
  virtual void out_of_memory() {}

 private:
  friend class Progress;
  friend class DeadlineHeap;

  std::atomic<bool> revisit_queued_{false};
  // Under the heap's lock. `deadline_ns_`: when to call, 0 for never. `queued_ns_`: key of the one
  // heap entry that counts, 0 for none; it may be earlier than the deadline (moved meanwhile).
  // `behind_ns_`: key of a later entry that may count again, 0 for none.
  uint64_t deadline_ns_ = 0;
  uint64_t queued_ns_ = 0;
  uint64_t behind_ns_ = 0;
};

}  // namespace uwarp
