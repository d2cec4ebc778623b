// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/rdmap/responder_rules.h"

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
                                                const RemoteAccessor& peer, RemotePlace& source) {
  const uint64_t left = request.size - offset;
  if (left == 0) return std::nullopt;
  const RegionFault fault = regions.remote(request.source_stag, request.source_to + offset, left,
                                           kAccessRemoteRead, peer, source);
  return fault == RegionFault::kNone ? std::nullopt : std::optional(request_fault_code(fault));
}

std::optional<TerminateCode> check_atomic_request(const AtomicRequestHeader& request,
                                                  const RegionTable& regions,
                                                  const RemoteAccessor& peer, RemotePlace& cell,
                                                  bool alignment_first) {
  if (request.opcode != AtomicOpcode::kFetchAdd && request.opcode != AtomicOpcode::kCmpSwap)
    return TerminateCode::kRdmapUnexpectedOpcode;
  const RegionFault fault = regions.remote(request.remote_stag, request.remote_to, sizeof(uint64_t),
                                           kAccessRemoteAtomic, peer, cell);
  if (fault != RegionFault::kNone) {
    // Without a place the offset is all there is.
    const bool misaligned = request.remote_to % sizeof(uint64_t) != 0;
    return alignment_first && misaligned ? TerminateCode::kRdmapStreamCatastrophic
                                         : request_fault_code(fault);
  }
  // The address counts, not the offset: a zero-based region may start anywhere (rule A27).
  if (reinterpret_cast<uintptr_t>(cell.address) % sizeof(uint64_t) != 0)
    return TerminateCode::kRdmapStreamCatastrophic;
  return std::nullopt;
}

}  // namespace uwarp
