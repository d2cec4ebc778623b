// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The owner of a stream, as the stream knows it: the connection, which handles rare events.
#pragma once

#include <cstdint>
#include <memory>

#include "qp/qp_config.h"

namespace uwarp {

struct StreamEvents;

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  /// Keeps the owner alive. Under locks of the queue pair.
  virtual std::shared_ptr<StreamOwner> hold_owner() = 0;
  /// Without locks of the queue pair, after the turn that found them.
  virtual void on_events(const StreamEvents& events) = 0;
  /// The same, where on_events() found no memory.
  virtual void out_of_memory() = 0;
  /// Another turn is wanted soon. Under locks of the queue pair.
  virtual void request_turn() = 0;
  /// See Progress::quieten(). Under the receive side of the queue pair.
  virtual bool request_quiet() = 0;
  /// Something waits to be sent, and perhaps no thread will poll: it goes out within kPostWaitNs,
  /// or Polling::late_ns if a thread polled until then. Without locks.
  virtual void transmit_before_long() = 0;
};

/// What a turn has found for the owner to deal with, outside the stream's locks.
struct StreamEvents {
  std::shared_ptr<StreamOwner> owner;  // null: nothing
  uint32_t outcome = 0;                // ReceiveOutcome bits that the owner must handle
  bool ended = false;                  // the receive direction is over, by `end`
  StreamEnd end = StreamEnd::kFin;
  bool busy = false;           // Stream::tell_when_busy()
  bool began_to_send = false;  // the peer owes acknowledgements, and is not watched yet
};

}  // namespace uwarp
