// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which thread may use one direction of a queue pair. A thread that finds it busy leaves a mark
// instead of waiting, and the end of the holder's turn says so: no thread waits for the system call
// of another.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <utility>

#include "base/atomics.h"

namespace uwarp {

/// What the end of a turn asks for.
enum class [[nodiscard]] AfterTurn : bool{
    kNothing,
    /// A thread left a mark during the turn: there may be work that no thread has looked at.
    kCheckAgain,
};

class HandoffLock {
  /// Gives the side back at the end of the scope, after an exception too.
  class Holder {
   public:
    Holder() = default;
    Holder(Holder&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Holder& operator=(Holder&& other) noexcept {
      std::swap(lock_, other.lock_);
      return *this;
    }
    explicit operator bool() const { return lock_ != nullptr; }

   protected:
    friend HandoffLock;
    explicit Holder(HandoffLock* lock) : lock_(lock) {
      if (lock != nullptr) lock->note_holder();
    }
    HandoffLock* lock_ = nullptr;
  };

 public:
  /// The side, if true. end() is called where nothing is thrown; an exception gives the side back
  /// and keeps the mark, so that the next turn ends with kCheckAgain.
  class [[nodiscard]] Turn : public Holder {
   public:
    Turn(Turn&&) noexcept = default;
    Turn& operator=(Turn&&) noexcept = default;
    ~Turn() {
      if (lock_ != nullptr) [[unlikely]]
        lock_->drop();
    }
    AfterTurn end() {
      HandoffLock& lock = *std::exchange(lock_, nullptr);
      lock.forget_holder();
      const uint32_t before = lock.state_.exchange(0, std::memory_order_acq_rel);
      if (before == kTaken) [[likely]]
        return AfterTurn::kNothing;
      return lock.released(before) ? AfterTurn::kCheckAgain : AfterTurn::kNothing;
    }

   private:
    using Holder::Holder;
    friend HandoffLock;
  };

  /// The side for a control operation, which leaves no work behind: other threads wait for its end.
  class [[nodiscard]] Exclusive : public Holder {
   public:
    Exclusive(Exclusive&&) noexcept = default;
    ~Exclusive() {
      if (lock_ != nullptr) lock_->drop();
    }

   private:
    using Holder::Holder;
    friend HandoffLock;
  };

  /// Takes the side. If another thread has a turn, marks that it must look again; the result is
  /// false.
  Turn begin() {
    uint32_t seen = 0;
    for (int round = 0;; ++round) {
      if ((seen & kTaken) == 0) {
        if (change(seen, seen | kTaken)) [[likely]]
          return Turn(this);
      } else if ((seen & kExclusive) != 0) {
        seen = wait(seen, round);
      } else if (change(seen, seen | kMarked)) {
        return Turn(nullptr);
      }
    }
  }
  /// Takes the side if it is free, and leaves no mark: for a thread that comes again anyway.
  Turn try_begin() {
    uint32_t seen = 0;
    while (!change(seen, seen | kTaken))
      if ((seen & kTaken) != 0) return Turn(nullptr);
    return Turn(this);
  }
  /// Waits for the side.
  Exclusive lock_exclusive() {
    uint32_t seen = 0;
    for (int round = 0;; ++round) {
      if ((seen & kTaken) != 0)
        seen = wait(seen, round);
      else if (change(seen, seen | kTaken | kExclusive))
        return Exclusive(this);
    }
  }
  /// Some thread has the side. It may change at once.
  bool taken() const { return (state_.load(std::memory_order_acquire) & kTaken) != 0; }
#ifndef NDEBUG
  /// The calling thread has it. For assertions only.
  bool mine() const { return holder_.load(std::memory_order_relaxed) == this_thread(); }
#endif

 private:
  enum : uint32_t {
    kTaken = 1,
    kExclusive = 2,
    kMarked = 4,
    kSleeper = 8,  // a thread waits for the side, and has to be woken
  };

  bool change(uint32_t& seen, uint32_t to) {
    return state_.compare_exchange_weak(seen, to, std::memory_order_acq_rel);
  }
  /// What was there, for a holder that has cleared it. Another thread may destroy this as soon as
  /// it has the side: only its address is used then.
  [[gnu::noinline]] bool released(uint32_t before) {
    if ((before & kSleeper) != 0) state_.notify_all();
    return (before & kMarked) != 0;
  }
  void drop() {
    forget_holder();
    released(state_.fetch_and(kMarked, std::memory_order_acq_rel));
  }
  /// A round of waiting. Returns what is there now.
  [[gnu::noinline, gnu::cold]] uint32_t wait(uint32_t seen, int round) {
    if (round < Atomics::kSpins) {
      Atomics::cpu_relax();
    } else if (round < Atomics::kSpins + Atomics::kYields) {
      Atomics::yield();
    } else if ((seen & kSleeper) != 0 || change(seen, seen | kSleeper)) {
      state_.wait(seen | kSleeper, std::memory_order_acquire);
    }
    return state_.load(std::memory_order_acquire);
  }

  Atomic<uint32_t> state_{0};

#ifndef NDEBUG
  static const void* this_thread() {
    static thread_local char own;
    return &own;
  }
  void note_holder() { holder_.store(this_thread(), std::memory_order_relaxed); }
  void forget_holder() {
    assert(mine());  // the thread that has taken a side gives it back
    holder_.store(nullptr, std::memory_order_relaxed);
  }
  std::atomic<const void*> holder_{nullptr};
#else
  void note_holder() {}
  void forget_holder() {}
#endif
};

/// For assertions in the parts of a queue pair: whether the calling thread has its sides. Parts
/// that are used without a queue pair need none.
class SidesOfThread {
 public:
#ifndef NDEBUG
  void watch(const HandoffLock& transmit, const HandoffLock& receive) {
    transmit_ = &transmit;
    receive_ = &receive;
  }
  bool transmit() const { return transmit_ == nullptr || transmit_->mine(); }
  bool receive() const { return receive_ == nullptr || receive_->mine(); }

 private:
  const HandoffLock* transmit_ = nullptr;
  const HandoffLock* receive_ = nullptr;
#else
  void watch(const HandoffLock&, const HandoffLock&) {}
#endif
};

}  // namespace uwarp
