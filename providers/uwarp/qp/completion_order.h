// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The completion of a Send comes before the receive completion of the peer's answer to it. The
// thread that sent may not have stored the former yet when another thread has received the latter.
#pragma once

#include <cstdint>

#include "qp/handoff_lock.h"

namespace uwarp {

class Transmitter;

/// The receive side asks the transmit side to complete what has gone.
template <class Atomics = StdAtomics>
class BasicRetireWish {
 public:
  uint32_t ask() { return asked_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  bool granted(uint32_t wish) const {
    return static_cast<int32_t>(granted_.load(std::memory_order_acquire) - wish) >= 0;
  }
  /// Transmit side: what has been asked, before it looks at what has gone, ...
  uint32_t asked() const { return asked_.load(std::memory_order_acquire); }
  /// ... and once it has completed that.
  void grant(uint32_t asked) {
    if (asked != granted_.load(std::memory_order_relaxed)) [[unlikely]]
      granted_.store(asked, std::memory_order_release);
  }

 private:
  typename Atomics::template atomic<uint32_t> asked_{0};
  typename Atomics::template atomic<uint32_t> granted_{0};
};

/// `Sender` has retire_wish(), and settle(), which completes what has gone.
template <class Sender, class Atomics = StdAtomics>
class BasicCompletionOrder {
 public:
  BasicCompletionOrder(BasicHandoffLock<Atomics>& transmit_side, Sender& sender)
      : side_(transmit_side), sender_(sender) {}

  /// Receive side, after the bytes of an answer have been taken from the socket and before its
  /// completion is stored. On return the requests whose bytes the kernel had been given before are
  /// complete. `acknowledged`: requests that waited for the peer may be complete, too. Waits for
  /// the thread that has the transmit side, at most for its send call. kLookAgain: that side is
  /// wanted by another thread, and the caller sees to it after its turn.
  AfterTurn complete_sent(bool acknowledged) {
    // Whoever leaves the transmit side has noted what it sent.
    if (!acknowledged && !side_.taken()) [[likely]]
      return AfterTurn::kNothing;
    return wait_for_sender();
  }

 private:
  [[gnu::noinline]] AfterTurn wait_for_sender() {
    const uint32_t wish = sender_.retire_wish().ask();
    for (int round = 0; !sender_.retire_wish().granted(wish); ++round) {
      if (auto turn = side_.try_begin()) {
        sender_.settle(false, false);
        return turn.end();
      }
      wait_a_little(round);
    }
    return AfterTurn::kNothing;
  }
  // A send call takes some 2 to 50 us. A holder that has lost its core gets it by the yields.
  static void wait_a_little(int round) {
    if (round < 2 * Atomics::kSpins)
      Atomics::cpu_relax();
    else if (round < 2 * (Atomics::kSpins + Atomics::kYields))
      Atomics::yield();
    else
      Atomics::nap();
  }

  BasicHandoffLock<Atomics>& side_;
  Sender& sender_;
};

using RetireWish = BasicRetireWish<>;
using CompletionOrder = BasicCompletionOrder<Transmitter>;

}  // namespace uwarp
