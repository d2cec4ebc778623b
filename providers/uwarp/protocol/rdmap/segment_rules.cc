// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/rdmap/segment_rules.h"

#include <atomic>

#include "base/mutex.h"
#include "memory/fault_safe_copy.h"

namespace uwarp {

TerminateCode request_fault_code(RegionFault fault) {
  switch (fault) {
    case RegionFault::kBounds:
      return TerminateCode::kRdmapBounds;
    case RegionFault::kWrap:
      return TerminateCode::kRdmapToWrap;
    case RegionFault::kRights:
      return TerminateCode::kRdmapAccess;
    case RegionFault::kWrongDomain:
      return TerminateCode::kRdmapSTagNotOfStream;
    default:
      return TerminateCode::kRdmapInvalidSTag;
  }
}

std::optional<TerminateCode> check_read_request(const ReadRequestHeader& request, uint64_t offset,
                                                const RegionTable& regions,
                                                const RemoteAccessor& peer, RemoteRange& source) {
  const uint64_t left = request.size - offset;
  // A Read of nothing is legal, and only one of something is checked. RFC 5040-5.2.1-l/m/n.
  if (left == 0) return std::nullopt;
  // SrcSTag is valid, of this stream and readable for the whole range. RFC 5040-7.2-f/g/h/i/j/k.
  const RegionFault fault = regions.remote(request.source_stag, request.source_to + offset, left,
                                           kAccessRemoteRead, peer, source);
  return fault == RegionFault::kNone ? std::nullopt : std::optional(request_fault_code(fault));
}

std::optional<TerminateCode> check_atomic_request(const AtomicRequestHeader& request,
                                                  const RegionTable& regions,
                                                  const RemoteAccessor& peer, RemoteRange& cell,
                                                  bool alignment_first) {
  // Operations that are not assigned end the stream. RFC 7306-5.2.1-b/k, 7306-10-a.
  if (request.opcode != AtomicOpcode::kFetchAdd && request.opcode != AtomicOpcode::kCmpSwap)
    return TerminateCode::kRdmapUnexpectedOpcode;
  // The target is checked as for any other remote access. RFC 7306-8.2-f, 7306-9-a.
  const RegionFault fault = regions.remote(request.remote_stag, request.remote_to, sizeof(uint64_t),
                                           kAccessRemoteAtomic, peer, cell);
  if (fault != RegionFault::kNone) {
    // Without a place the offset is all there is.
    const bool misaligned = request.remote_to % sizeof(uint64_t) != 0;
    return alignment_first && misaligned ? TerminateCode::kRdmapStreamCatastrophic
                                         : request_fault_code(fault);
  }
  // The address counts, not the offset: a zero-based region may start anywhere (rule A27). Nothing
  // changes, and this stream alone ends. RFC 7306-5.1.1-a/c, 7306-5.2.1-d/e, 7306-8.2-d/e.
  if (reinterpret_cast<uintptr_t>(cell.address) % sizeof(uint64_t) != 0)
    return TerminateCode::kRdmapStreamCatastrophic;
  return std::nullopt;
}

namespace {

/// What the cell holds afterwards. RFC 7306-1.1-d, 7306-5.1.1-e, 7306-5.1.2-a/b/c.
uint64_t number_after(uint64_t old, const AtomicRequestHeader& request) {
  if (request.opcode == AtomicOpcode::kFetchAdd)
    return masked_add(old, request.add_or_swap, request.add_or_swap_mask);
  return masked_equal(old, request.compare, request.compare_mask)
             ? masked_swap(old, request.add_or_swap, request.add_or_swap_mask)
             : old;
}

}  // namespace

uint64_t execute_atomic(std::byte* cell, const AtomicRequestHeader& request) {
  const std::atomic_ref<uint64_t> number(*reinterpret_cast<uint64_t*>(cell));
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);
  if (request.opcode == AtomicOpcode::kFetchAdd && request.add_or_swap_mask == 0)
    return number.fetch_add(request.add_or_swap);
  uint64_t old = number.load();
  for (;;) {
    const uint64_t next = number_after(old, request);
    if (next == old || number.compare_exchange_weak(old, next)) return old;
  }
}

// Two calls of the kernel instead of one instruction, so only the lock makes them one step.
std::optional<uint64_t> execute_atomic_on_demand(std::byte* cell,
                                                 const AtomicRequestHeader& request,
                                                 Mutex& one_at_a_time) {
  const Lock lock(one_at_a_time);
  uint64_t old;
  if (!fault_safe_read(reinterpret_cast<std::byte*>(&old), cell, sizeof old)) return std::nullopt;
  const uint64_t next = number_after(old, request);
  if (next != old &&
      !fault_safe_write(cell, reinterpret_cast<const std::byte*>(&next), sizeof next))
    return std::nullopt;
  return old;
}

namespace {

// Defined opcodes only, and extensions all or none. RFC 5040-4.2-b, 7306-1.1-a/e.
bool enabled(RdmapOpcode opcode, RdmapFeatures features) {
  switch (opcode) {
    case RdmapOpcode::kImmediate:
    case RdmapOpcode::kImmediateSolicited:
      return features.immediate;
    case RdmapOpcode::kAtomicRequest:
    case RdmapOpcode::kAtomicResponse:
      return features.atomics;
    case RdmapOpcode::kSendImmediate:
      return features.send_immediate;
    default:
      return traits(opcode).defined;
  }
}

// The queue of its opcode: each that is enabled has one. RFC 5040-4.1-n, 5041-7.1-u1.
bool queue_fits(QueueNumber queue, QueueNumber of_opcode, RdmapFeatures features) {
  if (features.shared_queues && of_opcode == QueueNumber::kSend) [[unlikely]]
    return static_cast<uint32_t>(queue) >= kFirstSharedQueue;
  return queue == of_opcode;
}

}  // namespace

std::optional<TerminateCode> check_segment(const std::byte* header, RdmapFeatures features) {
  const DdpControl ddp{static_cast<uint8_t>(header[0])};
  const RdmapControl rdmap{static_cast<uint8_t>(header[1])};
  // Each segment is of DDP version 1. RFC 5041-4.1-j/k.
  if (ddp.version() != DdpControl::kVersion)
    return ddp.tagged() ? TerminateCode::kDdpTaggedInvalidVersion
                        : TerminateCode::kDdpUntaggedInvalidVersion;
  // Messages are of RDMAP version 1. RFC 5040-4.1-h, 5040-7.2-c, 7306-8.2-c.
  if (rdmap.version() != RdmapControl::kVersion) return TerminateCode::kRdmapInvalidVersion;
  const RdmapOpcodeTraits& opcode = traits(rdmap.opcode());
  // The opcode is known, and T is as it demands. RFC 5040-4.1-m, 5040-7.2-b, 7306-8.2-b.
  if (!enabled(rdmap.opcode(), features) || opcode.tagged != ddp.tagged())
    return TerminateCode::kRdmapUnexpectedOpcode;
  if (!ddp.tagged() && !queue_fits(UntaggedHeader::decode(header).qn, opcode.queue, features))
    return TerminateCode::kDdpUntaggedInvalidQn;
  return std::nullopt;
}

std::optional<TerminateCode> check_header_size(RdmapOpcode opcode, size_t size) {
  const size_t expected = traits(opcode).header_size;
  if (opcode == RdmapOpcode::kTerminate) {
    // Trailing zeros of unused fields are legal (A13); only a cut control word is not.
    return size < expected ? std::optional(TerminateCode::kRdmapOperationUnspecified)
                           : std::nullopt;
  }
  // A control message is its header, no more, no less. RFC 5040-4.2-a, 5040-4.4-g, 7306-4.2-a.
  if (size < expected) return TerminateCode::kRdmapOperationUnspecified;
  if (size > expected)
    return opcode == RdmapOpcode::kReadRequest ? TerminateCode::kDdpUntaggedTooLong
                                               : TerminateCode::kRdmapOperationUnspecified;
  return std::nullopt;
}

}  // namespace uwarp
