// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The completion of a Send comes before the receive completion of the peer's answer to it. The
// thread that sent may not have stored the former yet when another thread has received the latter.
#pragma once

#include "qp/handoff_lock.h"
#include "qp/transmit/send_completer.h"

namespace uwarp {

/// Receive side. `Sender` has in_flight(), retire_wish(), and retire(), which completes what has
/// gone.
template <class Sender, class Atomics = StdAtomics>
class BasicCompletionOrder {
 public:
  BasicCompletionOrder(BasicHandoffLock<Atomics>& transmit_side, Sender& sender)
      : side_(transmit_side), sender_(sender) {}

  /// Bytes have been taken from the socket: the messages among them may answer all that had been
  /// sent before, and nothing that is sent later.
  void begin() { complete_ = false; }
  void restart() { complete_ = acknowledged_ = false; }
  /// Requests that waited for the peer may be complete, too.
  void note_acknowledged() {
    acknowledged_ = true;
    complete_ = false;
  }
  /// Before the completion of an answer is stored. On return the requests whose bytes the kernel
  /// had been given before begin() are complete. Waits for the thread that has the transmit side,
  /// at most for its send call. kLookAgain: another thread wants that side; the caller transmits
  /// after its turn.
  AfterTurn complete_sent() {
    if (complete_) return AfterTurn::kNothing;
    // A thread notes what it sent before it leaves the transmit side.
    const bool waits = sender_.in_flight() && (acknowledged_ || side_.taken());
    const AfterTurn after = waits ? wait_for_sender() : AfterTurn::kNothing;
    complete_ = true;
    acknowledged_ = false;
    return after;
  }

 private:
  [[gnu::noinline]] AfterTurn wait_for_sender() {
    const uint32_t wish = sender_.retire_wish().ask();
    for (int round = 0; !sender_.retire_wish().granted(wish); ++round) {
      if (auto turn = side_.try_begin()) {
        sender_.retire();
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
  bool complete_ = false;
  bool acknowledged_ = false;
};

using CompletionOrder = BasicCompletionOrder<SendCompleter>;

}  // namespace uwarp
