// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/payload_placer.h"

#include <cstring>

#include "qp/receive/staging_buffer.h"

namespace uwarp {

bool PayloadPlacer::direct() const {
  if (!is_write()) return list().plain() && !list().revoked();
  const RemotePlace& place = writes_.place();
  return place.memory == MemoryKind::kPlain && !place.through_window() && writes_.valid();
}

size_t PayloadPlacer::describe(iovec* out, size_t& size) {
  uint64_t wanted = in_.segment.payload_left - kTailBytes;
  size_t count = 1;
  if (is_write())
    out[0] = {writes_.target(), static_cast<size_t>(wanted)};
  else
    count = list().describe(in_.segment.payload_offset, wanted, out, kMaxSge);
  size = wanted;
  return count;
}

// The segments of the run begin at `offset` of the message; `place` is theirs if it is a Write.
bool PayloadPlacer::find_behind(uint64_t offset, uint64_t size, RemotePlace& place) const {
  return is_write() ? writes_.find_behind(offset, size, place)
                    : offset + size <= list().length_bytes();
}

size_t PayloadPlacer::describe_run(SegmentRun& run, uint32_t trailer, std::byte* staged,
                                   iovec* iovecs, size_t count) {
  const size_t header = in_.segment.header_size();
  const uint64_t payload = in_.segment.ulpdu_length - header;
  const uint64_t offset = in_.segment.payload_offset + in_.segment.payload_left;
  RemotePlace place;
  if (!find_behind(offset, run.wanted() * payload, place)) return count;
  const uint64_t direct = payload - kTailBytes;
  const size_t staged_size = kTailBytes + trailer + kFpduLengthSize + header;
  uint32_t segments = 0;
  for (; segments < run.wanted() && count + 3 <= StagingBuffer::kIovecs; ++segments) {
    iovec* const out = iovecs + count;
    const uint64_t skipped = segments * payload;
    size_t used = 1;
    uint64_t size = direct;
    if (is_write())
      out[1] = {place.address + skipped, direct};
    else
      used = list().describe(offset + skipped, size, out + 1, StagingBuffer::kIovecs - count - 2);
    if (size != direct) break;
    out[0] = {staged + segments * staged_size, staged_size};
    count += 1 + used;
  }
  run.open(segments, direct, staged_size);
  return count;
}

bool PayloadPlacer::place(const std::byte* from, uint32_t size) {
  const bool placed =
      is_write() ? writes_.store(from, size)
                 : !list().revoked() && list().copy_in(in_.segment.payload_offset, from, size);
  if (!placed) [[unlikely]]
    fail();
  return placed;
}

void PayloadPlacer::fail() {
  if (is_write()) {
    in_.fail(TerminateCode::kDdpTaggedInvalidSTag, QpEvent::kAccessError, true);
    messages_.fail_immediate();
  } else if (is_answer()) {
    answers_.fail_place();
  } else {
    messages_.fail_receive();
  }
}

bool PayloadPlacer::take_back(std::byte* to, size_t size) {
  if (!is_write()) return list().copy_out(in_.segment.payload_offset, to, size);
  std::memcpy(to, writes_.target(), size);
  return true;
}

}  // namespace uwarp
