// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/segment_run.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "protocol/mpa/fpdu.h"

namespace uwarp {

void SegmentRun::begin(const std::byte* header, uint16_t ulpdu_length, uint8_t following) {
  following_ = following;
  ulpdu_length_ = ulpdu_length;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  const size_t payload = ulpdu_length - ddp_header_size(control);
  if (control.tagged()) {
    auto next = TaggedHeader::decode(header);
    next.to += payload;
    next.encode(next_);
  } else {
    auto next = UntaggedHeader::decode(header);
    next.mo += static_cast<uint32_t>(payload);
    next.encode(next_);
  }
}

size_t SegmentRun::take(size_t bytes, bool filled) {
  size_t staged = 0;
  uint32_t whole = 0;
  for (; whole < segments_; ++whole) {
    const size_t between = std::min(bytes, staged_);
    const size_t direct = std::min(bytes - between, direct_);
    staged += between;
    ahead_ += direct;
    bytes -= between + direct;
    if (direct < direct_) break;
  }
  width_ = filled ? std::clamp<uint32_t>(2 * width_, 1, DdpControl::kMostFollowing)
                  : std::max(whole, width_ / 2);
  segments_ = 0;
  return staged + bytes;
}

bool SegmentRun::continues(const std::byte* fpdu) const {
  const std::byte* const header = fpdu + kFpduLengthSize;
  const DdpControl control{static_cast<uint8_t>(header[0])};
  const DdpControl expected{static_cast<uint8_t>(next_[0])};
  return load_be16(fpdu) == ulpdu_length_ && control.tagged() == expected.tagged() &&
         std::memcmp(header + 1, next_ + 1, ddp_header_size(expected) - 1) == 0;
}

size_t SegmentRun::claim() {
  const size_t direct = std::min(ahead_, direct_);
  ahead_ -= direct;
  return direct;
}

}  // namespace uwarp
