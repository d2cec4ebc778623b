// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/rdmap/segment_rules.h"

namespace uwarp {
namespace {

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

// Each opcode that is enabled has a queue that exists.
bool queue_fits(QueueNumber queue, QueueNumber of_opcode, RdmapFeatures features) {
  if (features.shared_queues && of_opcode == QueueNumber::kSend) [[unlikely]]
    return static_cast<uint32_t>(queue) >= kFirstSharedQueue;
  return queue == of_opcode;
}

}  // namespace

std::optional<TerminateCode> check_segment(const std::byte* header, RdmapFeatures features) {
  const DdpControl ddp{static_cast<uint8_t>(header[0])};
  const RdmapControl rdmap{static_cast<uint8_t>(header[1])};
  if (ddp.version() != DdpControl::kVersion)
    return ddp.tagged() ? TerminateCode::kDdpTaggedInvalidVersion
                        : TerminateCode::kDdpUntaggedInvalidVersion;
  if (rdmap.version() != RdmapControl::kVersion) return TerminateCode::kRdmapInvalidVersion;
  const RdmapOpcodeTraits& opcode = traits(rdmap.opcode());
  if (!enabled(rdmap.opcode(), features) || opcode.tagged != ddp.tagged())
    return TerminateCode::kRdmapUnexpectedOpcode;
  if (!ddp.tagged()) {
    if (!queue_fits(UntaggedHeader::decode(header).qn, opcode.queue, features))
      return TerminateCode::kDdpUntaggedInvalidQn;
  }
  return std::nullopt;
}

std::optional<TerminateCode> check_header_size(RdmapOpcode opcode, size_t size) {
  const size_t expected = traits(opcode).header_size;
  if (opcode == RdmapOpcode::kTerminate) {
    // Trailing zeros of unused fields are legal (A13); only a cut control word is not.
    return size < expected ? std::optional(TerminateCode::kRdmapOperationUnspecified)
                           : std::nullopt;
  }
  if (size < expected) return TerminateCode::kRdmapOperationUnspecified;
  if (size > expected)
    return opcode == RdmapOpcode::kReadRequest ? TerminateCode::kDdpUntaggedTooLong
                                               : TerminateCode::kRdmapOperationUnspecified;
  return std::nullopt;
}

}  // namespace uwarp
