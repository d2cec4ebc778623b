// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/chunk_lists.h"

#include <algorithm>

namespace rpcrdma::core {

namespace {

constexpr size_t kWord = 4;  // a bool in front of each entry and behind each list, a count

void put(XdrWriter& writer, const Segment& segment) {
  writer.u32(segment.handle);
  writer.u32(segment.length);
  writer.u64(segment.offset);
}

void put(XdrWriter& writer, const Chunk& chunk) {
  writer.u32(static_cast<uint32_t>(chunk.size()));
  for (const Segment& segment : chunk) put(writer, segment);
}

bool take(XdrReader& reader, Segment& segment) {
  return reader.u32(segment.handle) && reader.u32(segment.length) && reader.u64(segment.offset);
}

bool take(XdrReader& reader, Chunk& chunk) {
  uint32_t count = 0;
  // A count is checked before anything is made of it.
  if (!reader.u32(count) || count > kSegmentsMax) return false;
  if (reader.remaining() < count * Segment::kWireSize) return false;
  chunk.resize(count);
  return std::all_of(chunk.begin(), chunk.end(),
                     [&reader](Segment& segment) { return take(reader, segment); });
}

bool take_reads(XdrReader& reader, std::vector<ReadSegment>& reads) {
  for (bool more = false; reader.flag(more);) {
    if (!more) return true;
    if (reads.size() == kSegmentsMax) return false;
    ReadSegment& next = reads.emplace_back();
    if (!reader.u32(next.position) || !take(reader, next.target)) return false;
  }
  return false;
}

bool take_writes(XdrReader& reader, std::vector<Chunk>& writes) {
  size_t segments = 0;
  for (bool more = false; reader.flag(more);) {
    if (!more) return true;
    if (writes.size() == kSegmentsMax || !take(reader, writes.emplace_back())) return false;
    segments += writes.back().size();
    if (segments > kSegmentsMax) return false;
  }
  return false;
}

size_t write_segments_of(const std::vector<Chunk>& writes) {
  size_t count = 0;
  for (const Chunk& chunk : writes) count += chunk.size();
  return count;
}

}  // namespace

size_t ChunkLists::wire_size(size_t reads, size_t writes, size_t write_segments,
                             std::optional<size_t> reply) {
  return reads * (kWord + ReadSegment::kWireSize) + kWord +                  //
         writes * 2 * kWord + write_segments * Segment::kWireSize + kWord +  //
         (reply ? 2 * kWord + *reply * Segment::kWireSize : kWord);
}

size_t ChunkLists::wire_size() const {
  return wire_size(reads.size(), writes.size(), write_segments_of(writes),
                   reply ? std::optional(reply->size()) : std::nullopt);
}

void ChunkLists::encode(XdrWriter& writer) const {
  for (const ReadSegment& read : reads) {
    writer.flag(true);
    writer.u32(read.position);
    put(writer, read.target);
  }
  writer.flag(false);
  for (const Chunk& chunk : writes) {
    writer.flag(true);
    put(writer, chunk);
  }
  writer.flag(false);
  writer.flag(reply.has_value());
  if (reply) put(writer, *reply);
}

bool ChunkLists::decode(XdrReader& reader) {
  bool has_reply = false;
  if (!take_reads(reader, reads) || !take_writes(reader, writes) || !reader.flag(has_reply))
    return false;
  return !has_reply || take(reader, reply.emplace());
}

std::optional<uint32_t> ChunkLists::any_handle() const {
  for (const Chunk& chunk : writes)
    if (!chunk.empty()) return chunk.front().handle;
  if (reply && !reply->empty()) return reply->front().handle;
  if (!reads.empty()) return reads.front().target.handle;
  return std::nullopt;
}

size_t ChunkLists::segment_count() const {
  return reads.size() + write_segments_of(writes) + (reply ? reply->size() : 0);
}

size_t ChunkLists::read_chunk_count() const {
  size_t count = 0;
  uint32_t last = 0;  // position zero does not count
  for (const ReadSegment& read : reads) {
    if (read.position != last) ++count;
    last = read.position;
  }
  return count;
}

}  // namespace rpcrdma::core
