// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a client sends inside a Send and what it lets the server fetch or place, given the
// thresholds of the connection. Sans-IO. RFC 8166 3.4, 3.5.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/message.h"
#include "core/private_data.h"

namespace rpcrdma::core {

/// What the caller wants.
struct CallWishes {
  size_t reply_max = 0;   ///< longest reply without the results that have buffers
  size_t reply_size = 0;  ///< room for a reply, results included where they come inline
  std::span<const rpcrdma_result> results;
  bool always_chunks = false;  ///< DDP-eligible items never go inline
};

struct CallPlan {
  bool items_by_chunk = false;    ///< the call's data items are Read chunks
  bool is_long = false;           ///< the call is a Read chunk at position zero
  bool results_by_chunk = false;  ///< Write chunks are offered
  bool reply_chunk = false;       ///< a Reply chunk is offered

  bool operator==(const CallPlan&) const = default;
};

/// Nothing: no way to put it fits the thresholds.
std::optional<CallPlan> plan_call(const Message& message, const CallWishes& wishes,
                                  const Agreement& agreement);

/// Number of results, of which each may have several buffers.
size_t result_count(std::span<const rpcrdma_result> results);

}  // namespace rpcrdma::core
