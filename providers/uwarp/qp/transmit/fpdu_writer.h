// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Puts segments into the batch as FPDUs, and counts the bytes of the stream. Transmit side. RFC
// 5041 5, 5044 4.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "protocol/ddp/buffer_list.h"
#include "protocol/ddp/segment.h"
#include "qp/message_kind.h"
#include "qp/stream_state.h"
#include "qp/transmit/transmit_batch.h"

namespace uwarp {

class FpduWriter {
 public:
  /// What became of an FPDU: kFault when its payload is not there (regions on demand).
  enum class Built : uint8_t { kNoRoom, kDone, kFault };
  struct Segment {
    uint32_t payload;   // bytes
    bool last;          // of its message
    uint8_t following;  // others of that size that come right behind it, as announced to the peer

    DdpControl control(bool tagged) const { return DdpControl::make(tagged, last, following); }
  };

  FpduWriter(const StreamState& stream, TransmitCounters& counters)
      : stream_(stream), counters_(counters) {}

  /// Begins a stream.
  void restart() {
    drop();
    sent_position_ = 0;
  }
  /// What is built and has not gone never will.
  void drop() { batch_.configure(stream_.config.crc); }

  TransmitBatch& batch() { return batch_; }
  const TransmitBatch& batch() const { return batch_; }
  /// Bytes of the stream that have gone, and those that are built.
  uint64_t sent_position() const { return sent_position_; }
  uint64_t built_position() const { return sent_position_ + batch_.pending_bytes(); }
  void sent(size_t bytes) {
    batch_.consume(bytes);
    sent_position_ += bytes;
    if (!batch_.empty()) return;
    counters_.bytes.add(batch_.bytes());
    counters_.fpdus.add(batch_.fpdus());
  }

  /// The next segment of a message of which `left` bytes remain. Another uwarp reads those that
  /// follow in one go (docs/wire.md).
  Segment next_segment(uint64_t left, size_t header_bytes) const {
    const uint32_t payload = segment_payload(left, stream_.config.mulpdu, header_bytes);
    Segment segment{payload, payload == left, 0};
    if (!segment.last && stream_.announces_runs(payload))
      segment.following = static_cast<uint8_t>(
          std::min<uint64_t>((left - payload) / payload, DdpControl::kMostFollowing));
    return segment;
  }

  /// A segment with `size` bytes of payload: those at `offset` of `payload`. `own`: they go out of
  /// memory of the batch.
  template <typename Header>
  Built append(const Header& header, BufferList* payload = nullptr, uint64_t offset = 0,
               uint32_t size = 0, bool own = false) {
    std::byte* const at = batch_.begin_fpdu(Header::kWireSize, size);
    if (at == nullptr) return Built::kNoRoom;
    header.encode(at);
    if (batch_.end_fpdu(payload, offset, own)) [[likely]]
      return Built::kDone;
    return batch_.starved() ? Built::kNoRoom : Built::kFault;
  }
  /// A message that is all header, with the next number of its queue. has_room() was checked.
  template <typename Header>
  void append_message(RdmapOpcode opcode, Msn& msn, const Header& header) {
    UntaggedHeader untagged;
    untagged.rsvd_ulp = make_rdmap_control(opcode);
    untagged.qn = traits(opcode).queue;
    untagged.msn = msn;
    msn = msn.next();
    std::byte* const at = batch_.begin_fpdu(UntaggedHeader::kWireSize + Header::kWireSize, 0);
    untagged.encode(at);
    header.encode(at + UntaggedHeader::kWireSize);
    batch_.end_fpdu(nullptr, 0);
    counters_.count(message_kind(opcode));
  }
  /// has_room() was checked.
  [[gnu::noinline]] void append_empty_write(STag stag, TaggedOffset offset) {
    append(TaggedHeader{.control = DdpControl::make(true, true),
                        .rsvd_ulp = make_rdmap_control(RdmapOpcode::kWrite),
                        .stag = stag,
                        .to = offset});
    counters_.count(MessageKind::kWrite);
  }

 private:
  const StreamState& stream_;
  TransmitCounters& counters_;
  TransmitBatch batch_;
  uint64_t sent_position_ = 0;
};

}  // namespace uwarp
