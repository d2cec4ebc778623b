// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/call_plan.h"

#include <algorithm>

#include "core/header.h"
#include "core/rounding.h"

namespace rpcrdma::core {

namespace {

size_t filled(std::span<const rpcrdma_result> results) {
  return static_cast<size_t>(std::count_if(results.begin(), results.end(),
                                           [](const auto& one) { return one.length != 0; }));
}

size_t item_segments(const Message& message) {
  size_t count = 0;
  for (const Message::Item& item : message.items())
    for (const rpcrdma_piece& piece : item.pieces) count += piece.length != 0;
  return count;
}

size_t results_size(std::span<const rpcrdma_result> results) {
  size_t size = 0;
  for (const rpcrdma_result& result : results) size += round_up(result.length);
  return size;
}

void plan_reply(const CallWishes& wishes, const Agreement& agreement, CallPlan& plan) {
  const size_t whole = wishes.reply_max + results_size(wishes.results);
  const bool fits = Header::kSizeMin + whole <= agreement.server_to_client &&
                    whole <= wishes.reply_size && !wishes.always_chunks;
  plan.results_by_chunk = !wishes.results.empty() && !fits;
  if (!plan.results_by_chunk) {
    plan.reply_chunk = Header::kSizeMin + wishes.reply_max > agreement.server_to_client;
    return;
  }
  // The reply's header repeats the Write list.
  const size_t header =
      Header::kFixedSize +
      ChunkLists::wire_size(0, result_count(wishes.results), filled(wishes.results), std::nullopt);
  plan.reply_chunk = header + wishes.reply_max > agreement.server_to_client;
}

/// Bytes of the Send for such a plan.
size_t send_size(const Message& message, const CallWishes& wishes, const CallPlan& plan) {
  const size_t reads = (plan.items_by_chunk ? item_segments(message) : 0) + (plan.is_long ? 1 : 0);
  const size_t results = plan.results_by_chunk ? result_count(wishes.results) : 0;
  const size_t result_segments = plan.results_by_chunk ? filled(wishes.results) : 0;
  const size_t header =
      Header::kFixedSize +
      ChunkLists::wire_size(reads, results, result_segments,
                            plan.reply_chunk ? std::optional<size_t>(1) : std::nullopt);
  if (plan.is_long) return header;
  return header + message.size(plan.items_by_chunk ? message.items().size() : 0);
}

}  // namespace

size_t result_count(std::span<const rpcrdma_result> results) {
  return static_cast<size_t>(std::count_if(results.begin(), results.end(), [](const auto& one) {
    return (one.flags & RPCRDMA_PIECE_CONTINUED) == 0;
  }));
}

std::optional<CallPlan> plan_call(const Message& message, const CallWishes& wishes,
                                  const Agreement& agreement) {
  CallPlan plan;
  plan_reply(wishes, agreement, plan);
  // From the cheapest to the one that needs least room in the Send.
  const bool has_items = item_segments(message) != 0;
  const bool chunks_only = has_items && wishes.always_chunks;
  for (const auto& [by_chunk, is_long] : {std::pair(false, false), std::pair(true, false),
                                          std::pair(true, true), std::pair(false, true)}) {
    if ((by_chunk && !has_items) || (chunks_only && !by_chunk)) continue;
    plan.items_by_chunk = by_chunk;
    plan.is_long = is_long;
    if (send_size(message, wishes, plan) <= agreement.client_to_server) return plan;
  }
  return std::nullopt;
}

}  // namespace rpcrdma::core
