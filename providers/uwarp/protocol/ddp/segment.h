// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Segmentation of outgoing messages and the sequence rules of incoming untagged ones. RFC 5041 5.2,
// 5.3, 7.1. Knows no opcodes and no memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

/// Payload bytes of the next segment of a message of which `left` bytes remain.
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

  /// Error of a segment that does not belong to the expected message.
  std::optional<TerminateCode> check_msn(const UntaggedHeader& header) const {
    if (header.msn != expected_) return TerminateCode::kDdpUntaggedMsnRange;
    return std::nullopt;
  }
  /// Error of a segment that is not the next one, or does not fit a buffer of `capacity` bytes.
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
