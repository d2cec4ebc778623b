// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What applications post and what they get back, in the engine's own terms. The numeric values are
// those of the public verbs ABI, so that verbs/ converts by copying; verbs/ asserts the equality.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace uwarp {

/// Scatter/gather element; the layout of ibv_sge.
struct Sge {
  uint64_t address;
  uint32_t length_bytes;
  uint32_t lkey;
};

/// A scatter/gather list, and how long the message is that it describes.
struct SgeList : std::span<const Sge> {
  SgeList() = default;
  SgeList(const Sge* first, size_t count) : SgeList(std::span(first, count)) {}
  /// Of all that is a list of Sge; lives as long.
  template <typename List>
  // NOLINTNEXTLINE(google-explicit-constructor): as a span
  requires std::convertible_to<List, std::span<const Sge>> SgeList(const List& list)
      : std::span<const Sge>(list) {
    for (const Sge& sge : *this) bytes += sge.length_bytes;
  }

  uint64_t bytes = 0;
};

/// Values of ibv_wr_opcode; from kFirstInternal on our own, which no application can post by the
/// standard calls.
enum class SendOpcode : uint8_t {
  kWrite = 0,
  kWriteWithImm = 1,
  kSend = 2,
  kSendWithImm = 3,
  kRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInvalidate = 7,
  kBindWindow = 8,
  kSendWithInvalidate = 9,
  kFirstInternal = 64,
  kMaskedCompareSwap = kFirstInternal,
  kMaskedFetchAdd = 65,
};

constexpr bool is_write(SendOpcode opcode) {
  return opcode == SendOpcode::kWrite || opcode == SendOpcode::kWriteWithImm;
}
/// Requests that put nothing on the wire.
constexpr bool is_local(SendOpcode opcode) {
  return opcode == SendOpcode::kLocalInvalidate || opcode == SendOpcode::kBindWindow;
}
/// The peer completes a receive for it.
constexpr bool takes_receive(SendOpcode opcode) {
  return opcode == SendOpcode::kSend || opcode == SendOpcode::kSendWithInvalidate ||
         opcode == SendOpcode::kSendWithImm || opcode == SendOpcode::kWriteWithImm;
}
/// Requests that complete by an answer of the peer and count against ORD.
constexpr bool awaits_answer(SendOpcode opcode) {
  return (opcode >= SendOpcode::kRead && opcode <= SendOpcode::kFetchAdd) ||
         opcode >= SendOpcode::kFirstInternal;
}
constexpr bool is_atomic(SendOpcode opcode) {
  return awaits_answer(opcode) && opcode != SendOpcode::kRead;
}

/// Values of ibv_send_flags.
enum SendFlag : uint8_t {
  kSendFence = 1u << 0,
  kSendSignaled = 1u << 1,
  kSendSolicited = 1u << 2,
  kSendInline = 1u << 3,
};

/// One send work request. The spans are read during the call only.
///
/// kBindWindow: rkey is the key to be valid afterwards (its upper 24 bits name the window),
/// bind_lkey names the region, remote_address and bind_length_bytes the part of it to show (in the
/// region's own numbering), bind_access the rights (Access). kLocalInvalidate: imm_or_invalidate.
struct SendRequest {
  uint64_t wr_id = 0;
  SendOpcode opcode = SendOpcode::kSend;
  uint8_t flags = 0;
  SgeList sges;
  uint64_t remote_address = 0;     // Write, Read, atomics
  uint32_t rkey = 0;               // Write, Read, atomics
  uint32_t imm_or_invalidate = 0;  // imm_data as given (network order), or the rkey to invalidate
  uint64_t compare_add = 0;        // FetchAdd: what to add. CmpSwap: what to compare with
  uint64_t swap = 0;
  uint64_t compare_mask = 0;      // kMaskedCompareSwap: bits that are compared
  uint64_t add_or_swap_mask = 0;  // ... bits that are swapped; kMaskedFetchAdd: top bits of fields
  uint64_t bind_length_bytes = 0;
  uint32_t bind_lkey = 0;
  uint32_t bind_access = 0;
  uint32_t receive_queue = 0;  // XRC: number of the peer's shared receive queue

  /// What goes out with it: none where the answer brings the payload.
  uint64_t outgoing_bytes() const { return awaits_answer(opcode) ? 0 : sges.bytes; }
};

/// Values of ibv_wc_status.
enum class WcStatus : uint32_t {
  kSuccess = 0,
  kLocLenErr = 1,
  kLocQpOpErr = 2,
  kLocProtErr = 4,
  kWrFlushErr = 5,
  kMwBindErr = 6,
  kBadRespErr = 7,
  kLocAccessErr = 8,
  kRemInvReqErr = 9,
  kRemAccessErr = 10,
  kRemOpErr = 11,
  kRetryExcErr = 12,
  kRnrRetryExcErr = 13,
  kFatalErr = 19,
};

/// Values of ibv_wc_opcode.
enum class WcOpcode : uint32_t {
  kSend = 0,
  kWrite = 1,
  kRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindWindow = 5,
  kLocalInvalidate = 6,
  kRecv = 128,
  kRecvWriteWithImm = 129,
};

/// Values of ibv_wc_flags.
enum WcFlag : uint32_t { kWcGrh = 1u << 0, kWcWithImm = 1u << 1, kWcWithInvalidate = 1u << 3 };

/// One completion; the layout of ibv_wc (48 bytes).
struct WorkCompletion {
  uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  uint32_t vendor_err;
  uint32_t byte_len;
  uint32_t imm_or_invalidated;
  uint32_t qp_num;
  uint32_t src_qp;
  uint32_t wc_flags;
  uint16_t pkey_index;
  uint16_t slid;
  uint8_t sl;
  uint8_t dlid_path_bits;
};
static_assert(sizeof(WorkCompletion) == 48);

}  // namespace uwarp
