// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The counters of a client or a server; all its threads count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/chunk_lists.h"
#include "rpcrdma/rpcrdma.h"

namespace rpcrdma::verbs {

class Statistics {
 public:
  using Counter = uint64_t rpcrdma_statistics::*;

  void add(Counter counter, uint64_t count = 1) {
    std::atomic_ref(counters_.*counter).fetch_add(count, std::memory_order_relaxed);
  }
  /// The chunks of a call.
  void add_chunks(const core::ChunkLists& chunks) {
    const bool is_long = !chunks.reads.empty() && chunks.reads.front().position == 0;
    add(&rpcrdma_statistics::long_calls, is_long);
    add(&rpcrdma_statistics::read_chunks, chunks.read_chunk_count());
    add(&rpcrdma_statistics::write_chunks, chunks.writes.size());
    add(&rpcrdma_statistics::reply_chunks, chunks.reply.has_value());
    add(&rpcrdma_statistics::segments, chunks.segment_count());
  }
  /// The Write chunks of a reply that have something in them.
  void add_used(const std::vector<core::Chunk>& writes) {
    for (const core::Chunk& chunk : writes)
      if (core::length_of(chunk) != 0) add(&rpcrdma_statistics::write_chunks_used);
  }
  rpcrdma_statistics snapshot() {
    rpcrdma_statistics copy;
    // All members are counters, so the structure is an array of them.
    static_assert(sizeof copy % sizeof(uint64_t) == 0);
    auto* from = reinterpret_cast<uint64_t*>(&counters_);
    auto* to = reinterpret_cast<uint64_t*>(&copy);
    for (size_t i = 0; i < sizeof copy / sizeof(uint64_t); ++i)
      to[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
    return copy;
  }

 private:
  rpcrdma_statistics counters_{};
};

}  // namespace rpcrdma::verbs
