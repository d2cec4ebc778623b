// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the log says of streams that fail or end.
#include "connect/fpdu_life.h"

namespace uwarp {

const char* describe(StreamEnd end) {
  switch (end) {
    case StreamEnd::kFin:
      return "the peer has closed it";
    case StreamEnd::kReset:
      return "the peer has reset it";
    case StreamEnd::kTimeout:
      return "the peer does not answer any more";
    case StreamEnd::kLocalClose:
      break;
  }
  return "closed";
}

void log_failure(Qpn number, const StreamFailure& failure) {
  if (failure.by_peer)
    log_event("qp %#x: the peer terminates the stream: %s", number.value,
              describe(failure.terminate.code));
  else if (failure.send_terminate)
    log_event("qp %#x: stream terminated: %s", number.value, describe(failure.terminate.code));
  else
    log_event("qp %#x: stream failed", number.value);
}

}  // namespace uwarp
