// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The completion of a Send comes before the receive completion of the peer's answer to it. The
// thread that sent may not have stored the former yet when another thread has received the latter.
#pragma once

#include "qp/transmit/send_completer.h"
#include "qp/turn_gate.h"

namespace uwarp {

/// Receive side.
class CompletionOrder {
 public:
  CompletionOrder(TurnGate& transmit_gate, const SendQueue& sends, SendCompleter& completer)
      : gate_(transmit_gate), sends_(sends), completer_(completer) {}

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
  /// at most for its send call. True: that side is wanted by another thread, and the caller sees to
  /// it after its turn.
  [[nodiscard]] bool complete_sent() {
    if (complete_) return false;
    const bool wanted = sends_.in_flight() && wait();
    complete_ = true;
    acknowledged_ = false;
    return wanted;
  }

 private:
  bool wait();

  TurnGate& gate_;
  const SendQueue& sends_;
  SendCompleter& completer_;
  bool complete_ = false;
  bool acknowledged_ = false;
};

}  // namespace uwarp
