// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which send request a failure is about. The header that a peer's Terminate shows is peer input.
// RFC 5040 4.8.
#pragma once

#include <cstdint>

#include "qp/send_queue.h"
#include "qp/stream_state.h"

namespace uwarp {

/// Position of the request that completes with the failure's own status, among those that have been
/// started and not retired; StreamFailure::kNoRequest if it is none of them. `acknowledged`:
/// requests wait for acknowledgements, so that one has failed even if a Terminate names none.
/// With the transmit side held.
uint64_t failed_request(const StreamFailure& failure, const OutboundRequests& outbound,
                        SendQueue& queue, bool acknowledged);

}  // namespace uwarp
