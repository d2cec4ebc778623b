// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads and atomics that the peer asks for: checked on arrival, then queued for the transmit side,
// which executes them in order. Receive side. RFC 5040 5.2, RFC 7306 5.2.
#pragma once

#include "ddp/segment.h"
#include "qp/receive/inbound_stream.h"

namespace uwarp {

class RequestIntake {
 public:
  explicit RequestIntake(InboundStream& in) : in_(in) {}

  void restart() { sequence_ = UntaggedSequence(in_.stream.config.first_msn); }
  /// Queue 1. Only its number moves.
  const UntaggedSequence& sequence() const { return sequence_; }

  /// `delivered`: the last message that the peer sent before it on queue 0.
  void take(const ReadRequestHeader& header, Msn delivered);
  void take(const AtomicRequestHeader& header, Msn delivered);

 private:
  void queue(InboundRequest& request, Msn delivered);

  InboundStream& in_;
  UntaggedSequence sequence_;
};

}  // namespace uwarp
