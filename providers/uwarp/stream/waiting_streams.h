// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Posts that wait for more: which streams have some, which sender will send them, and how long such
// a stream stays. A post is announced to all senders of its stream: the poll groups of its
// completion queues, and a timer of its connection. The first of them that comes sends it.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/spinlock.h"
#include "qp/handoff_lock.h"

namespace uwarp {

/// A stream's half: which senders know that something waits. A sender is marked by the holder of
/// the transmit side, and clears its mark before it looks at what has been posted: so it sees the
/// post, or the post finds its mark cleared.
class WaitingFlags {
 public:
  /// Senders, as bits.
  enum : uint8_t { kGroup = 1, kSecondGroup = 2, kTimer = 4, kAll = 7 };

  /// Before the stream is attached; no sender knows of anything.
  void reset(bool second_group) {
    flags_.store(second_group ? 0 : kSecondGroup, std::memory_order_relaxed);
  }
  /// After a post. Senders that do not know of it yet are marked and given to `notify`, under the
  /// transmit side, if `attached` is true there. kCheckAgain: the caller has to transmit.
  template <class Attached, class Notify>
  AfterTurn announce(HandoffLock& transmit_side, const Attached& attached, Notify&& notify) {
    if (flags_.fetch_or(0, std::memory_order_acq_rel) == kAll) [[likely]]
      return AfterTurn::kNothing;
    auto turn = transmit_side.begin();
    if (!turn) return AfterTurn::kNothing;  // the thread that has it sends this too
    if (attached) notify(static_cast<uint8_t>(kAll & ~flags_.fetch_or(kAll)));
    return turn.end();
  }
  /// For a sender, before it transmits. Returns the marks of all as they were.
  uint8_t take(uint8_t sender) { return flags_.fetch_and(static_cast<uint8_t>(~sender)); }

 private:
  Atomic<uint8_t> flags_{0};
};

/// A poll group's half: its streams, and those of them that have something that waits. `Stream`
/// has a bool& member_of(const Group&), which belongs to this.
template <class Stream, class Group>
class WaitingStreams {
 public:
  /// While it lives no stream leaves the group: a pointer from the group's lists may be used as
  /// long, and no longer. If false, another thread has it.
  class [[nodiscard]] Stay {
   public:
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    ~Stay() NO_THREAD_SAFETY_ANALYSIS {
      if (lock_ != nullptr) lock_->unlock();
    }
    explicit operator bool() const { return lock_ != nullptr; }

   private:
    friend WaitingStreams;
    explicit Stay(SpinLock* lock) : lock_(lock) {}
    SpinLock* const lock_;
  };

  explicit WaitingStreams(const Group& group) : group_(group) {}

  Stay stay() NO_THREAD_SAFETY_ANALYSIS {
    stay_lock_.lock();
    return Stay(&stay_lock_);
  }
  Stay try_stay() NO_THREAD_SAFETY_ANALYSIS {
    return Stay(stay_lock_.try_lock() ? &stay_lock_ : nullptr);
  }

  void join([[maybe_unused]] const Stay& stay, Stream& stream) {
    assert(stays(stay));
    const Lock guard(list_lock_);
    const size_t others = members();
    if (waiting_.capacity() <= others) waiting_.reserve(2 * others + kCapacity);  // for all of them
    stream.member_of(group_) = true;
    members_.store(others + 1, std::memory_order_relaxed);
  }
  /// In one step: `stream` is not listed any more and will not be. As each use of a listed stream
  /// takes place in a Stay, none is under way. False: it was no member.
  bool leave([[maybe_unused]] const Stay& stay, Stream& stream) {
    assert(stays(stay));
    const Lock guard(list_lock_);
    if (!std::exchange(stream.member_of(group_), false)) return false;
    members_.store(members() - 1, std::memory_order_relaxed);
    std::erase(waiting_, &stream);
    publish();
    return true;
  }
  size_t members() const { return members_.load(std::memory_order_relaxed); }

  /// Under the transmit side of `stream`, for one that announces a post. Allocates nothing.
  void post(Stream& stream) {
    const Lock guard(list_lock_);
    if (!stream.member_of(group_)) return;  // it leaves: nothing will be sent any more
    assert(waiting_.size() < waiting_.capacity());
    waiting_.push_back(&stream);
    publish();
  }
  /// Something waits. It may change at once.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// The stream that was listed last, or null. Valid while `stay` is.
  Stream* take([[maybe_unused]] const Stay& stay) {
    assert(stays(stay));
    const Lock guard(list_lock_);
    if (waiting_.empty()) return nullptr;
    Stream* const stream = waiting_.back();
    waiting_.pop_back();
    publish();
    return stream;
  }

 private:
  static constexpr size_t kCapacity = 4;

  bool stays(const Stay& stay) const { return stay && stay.lock_ == &stay_lock_; }
  void publish() REQUIRES(list_lock_) { count_.store(waiting_.size(), std::memory_order_relaxed); }

  const Group& group_;
  // Held by a poller as long as it uses a stream of the group. Another poller does not wait for it.
  SpinLock stay_lock_;
  SpinLock list_lock_;  // leaf
  std::vector<Stream*> waiting_ GUARDED_BY(list_lock_);
  Atomic<size_t> members_{0};  // changes under both locks
  Atomic<size_t> count_{0};
};

}  // namespace uwarp
