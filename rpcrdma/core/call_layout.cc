// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/call_layout.h"

#include <algorithm>

#include "core/rounding.h"

namespace rpcrdma::core {

namespace {

/// The message without its data items: what followed the header, or the chunk at position zero.
class PayloadStream {
 public:
  explicit PayloadStream(size_t inline_size) : remaining_(inline_size) {}
  explicit PayloadStream(std::span<const ReadSegment> chunk) : chunk_(chunk), from_chunk_(true) {
    for (const ReadSegment& segment : chunk) remaining_ += segment.target.length;
  }

  uint64_t remaining() const { return remaining_; }

  /// Moves `length` bytes, which there must be, to the end of the call.
  void move(uint64_t length, CallLayout& call) {
    remaining_ -= length;
    if (!from_chunk_) {
      if (length != 0) call.copies.push_back({from_, length, call.size});
      from_ += length;
      call.size += length;
      return;
    }
    while (length != 0) {
      const Segment& segment = chunk_.front().target;
      const auto part = static_cast<uint32_t>(std::min<uint64_t>(length, segment.length - from_));
      if (part != 0)
        call.reads.push_back({{segment.handle, part, segment.offset + from_}, call.size});
      call.size += part;
      length -= part;
      from_ += part;
      if (from_ == segment.length) {
        chunk_ = chunk_.subspan(1);
        from_ = 0;
      }
    }
  }

 private:
  uint64_t remaining_ = 0;
  uint64_t from_ = 0;  // bytes taken of the message, or of the chunk's first segment
  std::span<const ReadSegment> chunk_;
  bool from_chunk_ = false;
};

std::span<const ReadSegment> take_chunk(std::span<const ReadSegment>& reads) {
  const auto end = std::find_if(reads.begin(), reads.end(), [&reads](const ReadSegment& one) {
    return one.position != reads.front().position;
  });
  const auto chunk = reads.first(static_cast<size_t>(end - reads.begin()));
  reads = reads.subspan(chunk.size());
  return chunk;
}

uint64_t total(std::span<const ReadSegment> reads) {
  uint64_t sum = 0;
  for (const ReadSegment& read : reads) sum += read.target.length;
  return sum;
}

}  // namespace

std::optional<CallLayout> lay_out_call(const Header& header, size_t inline_size, size_t size_max) {
  std::span<const ReadSegment> reads = header.chunks.reads;
  if (inline_size + total(reads) > size_max) return std::nullopt;

  const bool is_long = header.procedure == Procedure::kNomsg;
  const bool has_call_chunk = !reads.empty() && reads.front().position == 0;
  if (is_long != has_call_chunk) return std::nullopt;
  PayloadStream payload = is_long ? PayloadStream(take_chunk(reads)) : PayloadStream(inline_size);

  CallLayout call;
  while (!reads.empty()) {
    const auto item = take_chunk(reads);
    const uint32_t position = item.front().position;
    // Positions rise, are those of XDR items, and lie within the message.
    if (position % kXdrUnit != 0 || position < call.size) return std::nullopt;
    if (position - call.size > payload.remaining()) return std::nullopt;
    payload.move(position - call.size, call);
    for (const ReadSegment& segment : item) {
      if (segment.target.length != 0) call.reads.push_back({segment.target, call.size});
      call.size += segment.target.length;
    }
    // Clients leave the padding out; some put it into the chunk, which then needs no more of it.
    const size_t padding = round_up(call.size) - call.size;
    if (padding != 0) call.paddings.push_back({call.size, padding});
    call.size += padding;
  }
  payload.move(payload.remaining(), call);
  if (call.size > size_max) return std::nullopt;
  return call;
}

}  // namespace rpcrdma::core
