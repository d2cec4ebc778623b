// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The completion of a Send comes before the receive completion of the peer's answer to it. The
// thread that sent may not have stored the former yet when another thread has received the latter.
#pragma once

#include "qp/transmit/send_completer.h"
#include "qp/turn_gate.h"

namespace uwarp {

class CompletionOrder {
 public:
  CompletionOrder(TurnGate& transmit_gate, SendCompleter& completer)
      : gate_(transmit_gate), completer_(completer) {}

  /// Receive side, after the bytes of an answer have been taken from the socket and before its
  /// completion is stored. On return the requests whose bytes the kernel had been given before are
  /// complete. `acknowledged`: requests that waited for the peer may be complete, too. Waits for
  /// the thread that has the transmit side, at most for its send call. True: that side is wanted by
  /// another thread, and the caller sees to it after its turn.
  [[nodiscard]] bool complete_sent(bool acknowledged);

 private:
  TurnGate& gate_;
  SendCompleter& completer_;
};

}  // namespace uwarp
