// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The three lists of a transport header: where the peer may read from and write to. Sans-IO.
// RFC 8166 3.4 and 4.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "core/xdr.h"
#include "rpcrdma/rpcrdma.h"

namespace rpcrdma::core {

/// A list of a peer with more segments than this is refused.
inline constexpr size_t kSegmentsMax = RPCRDMA_SEGMENTS_MAX;

/// Memory of the requester.
struct Segment {
  static constexpr size_t kWireSize = 16;

  uint32_t handle = 0;  ///< STag or rkey
  uint32_t length = 0;
  uint64_t offset = 0;

  bool operator==(const Segment&) const = default;
};

/// Segments with the same position, one after the other, are one Read chunk. Position 0 is the
/// call message itself; another is the offset of a data item in the message as it would be without
/// chunks.
struct ReadSegment {
  static constexpr size_t kWireSize = 4 + Segment::kWireSize;

  uint32_t position = 0;
  Segment target;

  bool operator==(const ReadSegment&) const = default;
};

/// A Write chunk, or the Reply chunk.
using Chunk = std::vector<Segment>;

inline uint64_t length_of(const Chunk& chunk) {
  return std::accumulate(chunk.begin(), chunk.end(), uint64_t{0},
                         [](uint64_t sum, const Segment& one) { return sum + one.length; });
}

struct ChunkLists {
  std::vector<ReadSegment> reads;
  std::vector<Chunk> writes;
  std::optional<Chunk> reply;

  bool operator==(const ChunkLists&) const = default;

  /// Bytes of the encoded form.
  size_t wire_size() const;
  /// Bytes of the form with so many Read segments, Write chunks with so many segments in all, and
  /// so many segments in the Reply chunk, if any.
  static size_t wire_size(size_t reads, size_t writes, size_t write_segments,
                          std::optional<size_t> reply);

  void encode(XdrWriter& writer) const;
  /// False: the bytes end too early, hold a wrong bool, or have more than kSegmentsMax segments or
  /// chunks in a list.
  [[nodiscard]] bool decode(XdrReader& reader);

  /// A handle of the requester's memory, which a reply may invalidate; nothing if there is none.
  std::optional<uint32_t> any_handle() const;
  size_t segment_count() const;
  /// Read chunks that are not at position zero.
  size_t read_chunk_count() const;
};

}  // namespace rpcrdma::core
