// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which threads are present to serve the sockets: threads that poll, the driver, the helper thread,
// and those that sleep on epoll. One word, so that each change and what follows from it are one
// step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomics.h"
#include "base/cache_line.h"

namespace uwarp {

/// Thread-safe. Where a call says that the helper thread must be woken, the caller does it.
class Presence {
 public:
  /// The driver is a thread of the application that serves while it waits in drive(). An eager one
  /// takes the place of a patient one.
  enum Role : uint8_t { kNobody, kPatient, kEager };

  // ---- Pollers. They are counted apart, so that a poll costs no locked instruction, and each in a
  // cache line of its own thread, so that threads with nothing in common share none. Where there
  // are more threads than lines, concurrent counts may be lost, which does no harm.

  static constexpr size_t kPollCounts = Atomics::kStripes;

  /// `thread`: the number of the calling one. Returns the running count of its line.
  uint32_t note_polls(uint32_t polls, size_t thread = 0) {
    Atomic<uint32_t>& own = polls_[thread % kPollCounts].count;
    const uint32_t count = own.load(std::memory_order_relaxed) + polls;
    own.store(count, std::memory_order_relaxed);
    return count;
  }
  /// Of all threads.
  uint32_t polls() const {
    uint32_t sum = 0;
    for (const PollCount& each : polls_) sum += each.count.load(std::memory_order_relaxed);
    return sum;
  }
  /// ... since the last note_sleep().
  uint32_t polls_that_count() const { return polls() - polls_at_sleep_.load(); }
  /// A thread is going to sleep until an event comes. True: wake the helper thread.
  [[nodiscard]] bool note_sleep() {
    polls_at_sleep_.store(polls());
    const Who who = who_.load();
    return !who.armed && !who.drive_expected;
  }

  // ---- Sleepers on epoll: the armed helper thread, the driver, and threads that nap.

  bool anybody_sleeps() const { return who_.load().sleepers != 0; }
  void begin_nap() {
    change([](Who& who) { ++who.sleepers; });
  }
  void end_nap() {
    change([](Who& who) { --who.sleepers; });
  }

  // ---- The helper thread.

  bool armed() const { return who_.load(std::memory_order_relaxed).armed; }
  /// `on`: it will sleep on epoll. Otherwise beside it, because other threads progress. True if it
  /// has become a sleeper.
  bool arm(bool on) {
    const Who now = who_.load();
    if (now.armed == on && !(on && now.drive_expected)) return false;
    change([&](Who& who) {
      if (now.armed != on) who.sleepers += on ? 1 : -1;
      who.armed = on;
      if (on) who.drive_expected = false;
    });
    return on && !now.armed;
  }
  /// Disarmed, it may sleep without end because the driver sleeps: the end of the drive wakes it.
  [[nodiscard]] bool park() {
    return change([](Who& who) { who.parked = who.driver_sleeps; }).parked;
  }
  void unpark() {
    if (who_.load().parked) change([](Who& who) { who.parked = false; });
  }
  /// A thread drives, or has since `drives` was brought up to date. But while threads wait for the
  /// helper thread, a drive that has ended does not count.
  bool driven_since(uint32_t& drives) const {
    const Who who = who_.load();
    const bool changed = who.drives != drives && who.waiters == 0;
    drives = who.drives;
    return changed || who.driver != kNobody;
  }

  // ---- Threads that sleep until another one has served what they wait for.

  /// True: wake the helper thread.
  [[nodiscard]] bool begin_wait() {
    return !change([](Who& who) { ++who.waiters; }).armed;
  }
  void end_wait() {
    change([](Who& who) { --who.waiters; });
  }

  // ---- The driver.

  /// The caller is a sleeper as long as it drives. 0: not now, as other threads drive, wait, or
  /// poll (`least_polls` and more that count). Otherwise the number of its turn.
  uint32_t begin_drive(Role role, uint32_t least_polls) {
    Who seen = who_.load(), next;
    do {
      const bool polled = !seen.armed && !seen.drive_expected && polls_that_count() >= least_polls;
      if (seen.waiters != 0 || seen.driver >= role || polled) return 0;
      next = seen;
      next.driver = role;
      next.driver_sleeps = false;
      next.drive_expected = true;
      next.next_turn();
      ++next.sleepers;
    } while (!who_.compare_exchange_weak(seen, next));
    return next.drives;
  }
  /// False once another thread has taken the place.
  bool drives(uint32_t turn) const { return who_.load().driven_by(turn); }
  bool driver_sleeps() const { return who_.load().driver_sleeps; }
  /// The driver is about to sleep, or has slept. False, and nothing done, if it does not drive any
  /// more.
  bool driver_sleeps(uint32_t turn, bool asleep) {
    return change([=](Who& who) {
             if (who.driven_by(turn)) who.driver_sleeps = asleep;
           })
        .driven_by(turn);
  }
  /// True: wake the helper thread.
  [[nodiscard]] bool end_drive(uint32_t turn) {
    bool wake = false;
    change([&](Who& who) {
      --who.sleepers;
      wake = who.driven_by(turn) && (who.parked || who.waiters != 0);
      if (!who.driven_by(turn)) return;
      who.driver = kNobody;
      who.driver_sleeps = false;
      who.next_turn();
    });
    return wake;
  }

 private:
  struct Who {
    uint64_t driver : 2 = kNobody;
    uint64_t driver_sleeps : 1 = false;
    uint64_t armed : 1 = false;
    uint64_t parked : 1 = false;          // the helper thread sleeps without end
    uint64_t drive_expected : 1 = false;  // threads that arm a queue come to drive, as before
    uint64_t waiters : 20 = 0;
    uint64_t sleepers : 20 = 0;
    uint64_t drives : 18 = 0;  // begun or ended; names the driver's turn. 0 is none

    bool driven_by(uint64_t turn) const { return driver != kNobody && drives == turn; }
    void next_turn() {
      if (++drives == 0) ++drives;  // NOLINT(bugprone-narrowing-conversions): it wraps
    }
  };

  template <class Change>
  Who change(Change change) {
    Who seen = who_.load(), next;
    do {
      next = seen;
      change(next);
    } while (!who_.compare_exchange_weak(seen, next));
    return next;
  }

  struct alignas(kCacheLineBytes) PollCount {
    Atomic<uint32_t> count{0};
  };

  PollCount polls_[kPollCounts];
  alignas(kCacheLineBytes) Atomic<Who> who_{};
  Atomic<uint32_t> polls_at_sleep_{0};
};

}  // namespace uwarp
