// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/inbound_writes.h"

#include <cstring>

#include "memory/place_last.h"
#include "protocol/wire/carrier_mark.h"
#include "protocol/wire/delivered_mark.h"

namespace uwarp {
namespace {

// RFC 5041 7.1; a Write without the right to write has no code of its own and counts as an invalid
// STag (rule A6).
TerminateCode write_fault_code(RegionFault fault) {
  switch (fault) {
    case RegionFault::kBounds:
      return TerminateCode::kDdpTaggedBounds;
    case RegionFault::kWrap:
      return TerminateCode::kDdpTaggedToWrap;
    case RegionFault::kWrongDomain:
      return TerminateCode::kDdpTaggedSTagNotOfStream;
    default:
      return TerminateCode::kDdpTaggedInvalidSTag;
  }
}

}  // namespace

void InboundWrites::reset() {
  place_ = RemotePlace{};
  message_open_ = false;
  bytes_ = 0;
}

void InboundWrites::open(const TaggedHeader& header) {
  place_ = RemotePlace{};
  InboundSegment& segment = in_.segment;
  // One Write goes to one buffer (RFC 5040 5.1).
  if (message_open_ && header.stag != stag_)
    return in_.fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
  const bool first = !message_open_;
  message_open_ = !segment.last;
  stag_ = header.stag;
  segment.payload_offset = 0;
  if (first) {
    bytes_ = 0;
    next_.reset();
  }
  bytes_ += segment.payload_left;
  if (segment.payload_left == 0) return take_empty(header, first && segment.last);
  // What is skipped or written twice would count for the length that Immediate Data reports.
  if (next_ && header.to != *next_)
    return in_.fail(TerminateCode::kDdpTaggedBounds, QpEvent::kAccessError, true);
  next_ = header.to + segment.payload_left;
  const RegionFault fault = look_up(header.stag, header.to, segment.payload_left, place_);
  if (fault != RegionFault::kNone) in_.fail(write_fault_code(fault), QpEvent::kAccessError, true);
}

void InboundWrites::take_empty(const TaggedHeader& header, bool alone) {
  const StreamConfig& config = in_.stream.config;
  if (alone && config.magic_stag.value != 0 && header.stag == config.magic_stag &&
      header.to == config.magic_offset && !in_.stream.peer_is_uwarp.exchange(true)) {
    in_.outcome |= kRxMagic;
    if (config.answer_magic) in_.stream.answer_due.store(true, std::memory_order_release);
    // A Send with Immediate may have waited for it.
    if (config.answer_magic || in_.config.acknowledged) in_.outcome |= kRxTransmitWanted;
  }
  if (config.may_leave_tcp && alone && in_.stream.peer_is_uwarp.load(std::memory_order_relaxed))
    take_carrier_mark(header);
  if (!in_.stream.marks_deliveries(in_.config)) [[likely]]
    return;
  if (const auto mark = DeliveredMark::decode(header)) {
    in_.stream.peer_delivered.store(
        mark->msn.value | (mark->next_waits ? StreamState::kNextWaits : 0),
        std::memory_order_release);
    order_.note_acknowledged();
    in_.outcome |= kRxTransmitWanted;
  }
}

void InboundWrites::take_carrier_mark(const TaggedHeader& header) {
  const auto mark = CarrierMark::decode(header);
  if (!mark) return;
  switch (mark->kind) {
    case CarrierMark::Kind::kMailbox:
      in_.stream.peer_mailbox = mark->value;
      break;
    case CarrierMark::Kind::kNumber:
      in_.stream.peer_letter_number = mark->value;
      in_.outcome |= kRxOffer;
      break;
    case CarrierMark::Kind::kSwitch:
      in_.when_whole = kRxSwitch;  // the trailer still comes by the old carrier
      break;
  }
}

bool InboundWrites::store(const std::byte* from, uint32_t size) {
  if (!place_) return false;
  const PlaceGuard guard(place_, stag_);
  if (!guard) return false;
  if (place_.memory != MemoryKind::kPlain) [[unlikely]]
    return place_last_on_demand(target(), from, size);
  if (in_.segment.last && size == in_.segment.payload_left)
    place_last(target(), from, size);
  else
    std::memcpy(target(), from, size);
  return true;
}

bool InboundWrites::find_behind(uint64_t offset, uint64_t size, RemotePlace& place) const {
  const TaggedHeader header = TaggedHeader::decode(in_.segment.header);
  return look_up(header.stag, header.to + offset, size, place) == RegionFault::kNone &&
         place.memory == MemoryKind::kPlain && !place.through_window();
}

void InboundWrites::look_up_again(const MemoryRegion& region) {
  if (place_.region != &region) return;
  (void)look_up(stag_, TaggedHeader::decode(in_.segment.header).to,
                in_.segment.ulpdu_length - TaggedHeader::kWireSize, place_);
}

}  // namespace uwarp
