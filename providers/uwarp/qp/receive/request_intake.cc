// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/request_intake.h"

#include <cstring>

#include "rdmap/responder_rules.h"

namespace uwarp {

void RequestIntake::take(const ReadRequestHeader& header, Msn delivered) {
  InboundRequest request;
  request.header = header;
  RemotePlace source;
  request.error = check_read_request(header, 0, *in_.config.regions,
                                     in_.stream.peer(in_.config.domain), source);
  queue(request, delivered);
}

void RequestIntake::take(const AtomicRequestHeader& header, Msn delivered) {
  InboundRequest request;
  request.header = header;
  RemotePlace cell;
  request.error =
      check_atomic_request(header, *in_.config.regions, in_.stream.peer(in_.config.domain), cell);
  queue(request, delivered);
}

// Reads and atomics share the depth that was negotiated.
void RequestIntake::queue(InboundRequest& request, Msn delivered) {
  if (in_.stream.inbound.full())
    return in_.fail(TerminateCode::kDdpUntaggedNoBuffer, QpEvent::kFatal, true);
  sequence_.skip();
  std::memcpy(request.ddp_header, in_.segment.header, sizeof request.ddp_header);
  // Nothing behind a bad request is looked at any more.
  if (request.error) in_.close();
  request.delivered = delivered;
  in_.stream.inbound.push(request);
  in_.outcome |= kRxTransmitWanted;
}

}  // namespace uwarp
