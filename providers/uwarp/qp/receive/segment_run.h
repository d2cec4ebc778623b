// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Segments that the peer, another uwarp, has announced behind the one under way: of the same
// message and size (docs/wire.md). So one receive call may put several into place, before their
// headers have been looked at. Counts bytes only; Receiver knows the places.
//
// The window of such a call, in the order of the stream ("direct": to its place; "staged": to the
// staging buffer, where the pieces lie one behind the other):
//
//   rest of the segment under way, direct | its last bytes, trailer, next header: staged |
//   segment 1, direct | its last bytes, trailer, next header: staged | segment 2 ...
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/wire/ddp_headers.h"

namespace uwarp {

class SegmentRun {
 public:
  /// A segment has come, by this DDP header: ULPDU of `ulpdu_length` bytes, `following` of the
  /// same kind behind it.
  void begin(const std::byte* header, uint16_t ulpdu_length, uint8_t following);
  /// The segment under way has no others behind it, as far as is known.
  void end() { following_ = 0; }
  void reset() { *this = SegmentRun{}; }

  /// How many of them the next window shall hold: twice as many after a window that was filled,
  /// fewer after one that was not. They do not help a receiver that is faster than its peer.
  uint32_t wanted() const { return following_ < width_ ? following_ : width_; }
  /// The window has places for this many segments, 0 at first: `direct` and `staged` bytes of each.
  void open(uint32_t segments, size_t direct, size_t staged) {
    segments_ = segments;
    direct_ = direct;
    staged_ = staged;
  }
  /// Of the window that is open: bytes in all, and those that are staged.
  size_t bytes() const { return segments_ * (direct_ + staged_); }
  size_t staged_bytes() const { return segments_ * staged_; }
  /// `bytes` have come into the window behind the direct ones of the segment under way; `filled`:
  /// it had no room for more. Returns how many of them are staged.
  size_t take(size_t bytes, bool filled);

  /// Bytes already in place, of segments whose headers have not been checked.
  size_t ahead() const { return ahead_; }
  /// Whether the next FPDU, from its length field on, is the one that was announced. Only while
  /// ahead() is not 0: as many bytes of it are there as that one's header has.
  bool continues(const std::byte* fpdu) const;
  /// Its header has been looked at: so many bytes of it are in place.
  size_t claim();
  /// They all are of the next segment. If it is not the one that was announced they can be taken
  /// out of its place again.
  bool ahead_is_one() const { return ahead_ <= direct_; }
  void give_up() { ahead_ = 0; }

 private:
  uint32_t following_ = 0;
  uint32_t width_ = 0;     // segments that the next window may take
  uint32_t segments_ = 0;  // ... that the last one took
  size_t direct_ = 0;
  size_t staged_ = 0;
  size_t ahead_ = 0;
  uint16_t ulpdu_length_ = 0;
  std::byte next_[kDdpHeaderMax]{};  // header of the next one, but for its control byte
};

}  // namespace uwarp
