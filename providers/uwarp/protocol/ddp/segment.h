// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Segmentation of outgoing messages and the sequence rules of incoming untagged ones. RFC 5041 5.2,
// 5.3, 7.1. Knows no opcodes and no memory.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/ids.h"
#include "base/limits.h"
#include "memory/region_table.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

// The memory of one message: an ordered list of ranges that gathers an outgoing message or takes an
// incoming one at any message offset. Keys were resolved before. RFC 5041 5.

/// Up to kMaxSge ranges seen as one run of bytes. Remembers where the last access ended, so that
/// walking a message front to back costs nothing per range already passed.
class BufferList {
 public:
  void clear() { all_ = {}; }
  /// Adds memory of our own; empty ranges are left out. The caller adds at most kMaxSge.
  void append(std::byte* address, uint32_t length) {
    append(address, length, nullptr, MemoryKind::kPlain);
  }
  /// Adds memory of a region.
  void append(std::byte* address, uint32_t length, const MemoryRegion* region, MemoryKind memory) {
    if (length == 0) return;
    assert(all_.count < kMaxSge);
    ranges_[all_.count++] = {address, region, length, memory};
    all_.length_bytes += length;
    all_.plain &= memory == MemoryKind::kPlain;
  }
  uint64_t length_bytes() const { return all_.length_bytes; }
  /// All of it may be handed to the kernel, or touched in any way. Otherwise only copy_in() and
  /// copy_out() may be used.
  bool plain() const { return all_.plain; }

  /// Describes [offset, offset + length) as up to `max` iovecs; returns their number and lowers
  /// `length` to what they hold. The range must lie inside the list.
  size_t describe(uint64_t offset, uint64_t& length, iovec* out, size_t max);
  /// Copies `size` bytes to `offset`; they must fit. False: some memory is not there (only of
  /// regions on demand).
  bool copy_in(uint64_t offset, const std::byte* from, size_t size);
  /// Copies `size` bytes out of `offset`. False: some memory is not there.
  bool copy_out(uint64_t offset, std::byte* to, size_t size);
  /// The region's memory may not be touched any more: nor, if a range is of it, that of the list.
  void revoke(const MemoryRegion& region);
  bool revoked() const { return all_.revoked; }

 private:
  struct Range {
    std::byte* address;
    const MemoryRegion* region;  // null: memory of our own
    uint32_t length;
    MemoryKind memory;
  };
  /// A range, and the message offset at which it starts.
  struct Position {
    uint32_t range = 0;
    uint64_t offset = 0;
  };
  template <typename Visit>
  bool each_piece(uint64_t offset, uint64_t size, Visit&& visit);

  struct {
    bool plain = true;
    bool revoked = false;
    uint32_t count = 0;
    Position last;  // where the last access ended
    uint64_t length_bytes = 0;
  } all_;
  Range ranges_[kMaxSge];
};

/// Payload bytes of the next segment of `left` bytes, none of which exceeds MULPDU. RFC 5041-5.2-a.
constexpr uint32_t segment_payload(uint64_t left, uint32_t mulpdu, size_t header_bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(left, mulpdu - header_bytes));
}
static_assert(segment_payload(2048, 1500, UntaggedHeader::kWireSize) == 1482);
static_assert(segment_payload(2048, 1500, TaggedHeader::kWireSize) == 1486);

/// Receive side of one untagged queue: which message is expected, and whether a segment fits it.
/// On TCP a skipped message or byte can never come, so only the expected MSN is legal (rule A10),
/// and only the MO behind what has been placed: any other one leaves a hole, which the message
/// would show as if the peer had filled it, or places bytes twice (RFC 5041 5.2, 5.3).
class UntaggedSequence {
 public:
  explicit UntaggedSequence(Msn first = Msn{1}) : expected_(first) {}
  /// True between the first and the last segment of a message.
  bool open() const { return open_; }
  Msn expected() const { return expected_; }

  /// Error unless the MSN is the expected one. RFC 5041-7.1-u5.
  std::optional<TerminateCode> check_msn(const UntaggedHeader& header) const {
    if (header.msn != expected_) return TerminateCode::kDdpUntaggedMsnRange;
    return std::nullopt;
  }
  /// Error unless MO is the next one and the segment, even if empty, fits. RFC 5041-7.1-u3/u4/u6.
  std::optional<TerminateCode> check_range(uint32_t mo, uint64_t payload, uint64_t capacity) const {
    if (mo != placed_bytes_) return TerminateCode::kDdpUntaggedInvalidMo;
    if (payload > capacity - placed_bytes_) return TerminateCode::kDdpUntaggedTooLong;
    return std::nullopt;
  }
  /// A message of one segment that is consumed at once.
  void skip() { expected_ = expected_.next(); }
  void begin() {
    open_ = true;
    placed_bytes_ = 0;
  }
  void placed(uint64_t bytes) { placed_bytes_ += bytes; }
  uint64_t placed_bytes() const { return placed_bytes_; }
  /// The last segment has been placed.
  void finish() {
    open_ = false;
    expected_ = expected_.next();
  }

 private:
  Msn expected_;
  bool open_ = false;
  uint64_t placed_bytes_ = 0;
};

}  // namespace uwarp
