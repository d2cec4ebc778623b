// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What Progress serves: an object with file descriptors, one deadline, or both.
#pragma once

#include <cstdint>
#include <memory>

namespace uwarp {

class Source;

/// What sources are entered in. It outlives them, and holds no reference: a source leaves when it
/// ends.
class SourceList {
 public:
  /// On return no thread touches the source in this list any more. Called by its destructor.
  virtual void leave(Source& source) = 0;
  virtual ~SourceList() = default;
};

/// A place in such a list, part of the source: to enter takes no memory. Under the list's lock, but
/// for `list`, which stays once it is set.
struct SourceNode {
  SourceList* list = nullptr;
  Source* next = nullptr;
  Source* before = nullptr;
};

/// Derive from it and own the object by shared_ptr. Progress keeps weak references only, and holds
/// a strong one, but no lock, during a call. Calls come from the threads that progress, and
/// several threads may be inside one object at the same time: it protects itself.
class Source : public std::enable_shared_from_this<Source> {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() {
    for (SourceList* list : {deadline_.list, revisit_.list})
      if (list != nullptr) list->leave(*this);
  }

  /// Readiness came or changed. It is reported once (edge-triggered): a source that cannot act now
  /// must remember it. `events` are EPOLL* bits; 0 when called again after true was returned.
  /// Returns true if there is more to do than one turn allows: it is called again soon.
  virtual bool ready(uint32_t events) = 0;

  /// Serves what has come before epoll reports it. True if anything had. ready() is called for it
  /// all the same.
  virtual bool poll() { return false; }

  /// The core on which what came last was sent; negative: not known. By the helper thread.
  virtual int waker_core() { return -1; }

  /// Its data shall make events in epoll again; data that is there already makes one at once. See
  /// Progress::mute().
  virtual void unmute() {}

  /// A thread has looked at it since this was asked last. Called under a lock: must not block.
  virtual bool polled_since() { return false; }

  /// The deadline set by Progress::set_deadline() has passed.
  virtual void deadline_passed() {}

  /// A call of ready() or deadline_passed() found no memory and was left in the middle. The thread
  /// that progresses cannot report that, so the object gives up what it was doing.
  virtual void out_of_memory() {}

 private:
  friend class DeadlineHeap;
  friend class RevisitQueue;

  struct : SourceNode {
    Source* below = nullptr;  // first of those that come up after this one
    uint64_t due_ns = 0;      // when to call; 0 for never
    uint64_t key_ns = 0;  // what it is queued for: `due_ns` or earlier; 0 while it is not queued
  } deadline_;
  struct : SourceNode {
    bool queued = false;
  } revisit_;
};

}  // namespace uwarp
