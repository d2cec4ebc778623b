// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RDMA Writes of the peer: where their segments belong, and the empty ones that mean something
// between uwarps. Receive side. RFC 5040 5.1, RFC 5041 5, 7.1.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/region_table.h"
#include "qp/receive/completion_order.h"
#include "qp/receive/inbound_stream.h"

namespace uwarp {

class InboundWrites {
 public:
  InboundWrites(InboundStream& in, CompletionOrder& order) : in_(in), order_(order) {}

  void reset();
  /// A segment has come. Looks its place up, or fails the stream.
  void open(const TaggedHeader& header);
  /// Between the first and the last segment of a Write.
  bool message_open() const { return message_open_; }
  /// Bytes of the last Write, if it has ended and nothing on queue 0 has followed it; else 0.
  uint32_t last_length() const { return message_open_ ? 0 : static_cast<uint32_t>(bytes_); }
  void forget_length() { bytes_ = 0; }

  /// Of the segment under way.
  const RemotePlace& place() const { return place_; }
  std::byte* target() const { return place_.address + in_.segment.payload_offset; }
  bool valid() const {
    return place_ && place_.region->key.load(std::memory_order_acquire) == stag_.value;
  }
  /// The next bytes of the segment. False if the memory may not be touched any more, or is not
  /// there.
  bool store(const std::byte* from, uint32_t size);
  /// The place of [offset, offset + size) behind the begin of the segment under way, if the peer
  /// may write there and the kernel may do it for us.
  bool find_behind(uint64_t offset, uint64_t size, RemotePlace& place) const;
  /// The region has become another under the same key: the rest of the segment goes where the
  /// region is now, or fails.
  void look_up_again(const MemoryRegion& region);

 private:
  RegionFault look_up(STag stag, TaggedOffset offset, uint64_t size, RemotePlace& place) const {
    return in_.config.regions->remote(stag, offset, size, kAccessRemoteWrite,
                                      in_.stream.peer(in_.config.domain), place);
  }
  [[gnu::noinline, gnu::cold]] void take_carrier_mark(const TaggedHeader& header);
  [[gnu::noinline]] void take_empty(const TaggedHeader& header, bool alone);

  InboundStream& in_;
  CompletionOrder& order_;
  RemotePlace place_;
  bool message_open_ = false;
  STag stag_;
  uint64_t bytes_ = 0;                // of the last Write since the last message of queue 0
  std::optional<TaggedOffset> next_;  // of the Write's next byte, once one has been placed
};

}  // namespace uwarp
