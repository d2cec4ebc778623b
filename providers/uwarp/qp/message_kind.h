// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which counter an RDMAP opcode belongs to.
#pragma once

#include <array>

#include "counters/page_layout.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

namespace message_kind_detail {
using K = MessageKind;
// In the order of RdmapOpcode; reserved opcodes are never counted.
inline constexpr std::array<MessageKind, 16> kKinds = {
    K::kWrite,     K::kReadRequest, K::kReadResponse,  K::kSend,
    K::kSend,      K::kSend,        K::kSend,          K::kTerminate,
    K::kImmediate, K::kImmediate,   K::kAtomicRequest, K::kAtomicResponse,
    K::kSend,      K::kSend,        K::kSend,          K::kSend};
}  // namespace message_kind_detail

/// `opcode` is one of four bits.
constexpr MessageKind message_kind(RdmapOpcode opcode) {
  return message_kind_detail::kKinds[static_cast<size_t>(opcode)];
}
static_assert(message_kind(RdmapOpcode::kAtomicResponse) == MessageKind::kAtomicResponse);
static_assert(message_kind(RdmapOpcode::kImmediateSolicited) == MessageKind::kImmediate);
static_assert(message_kind(RdmapOpcode::kSendImmediate) == MessageKind::kSend);

}  // namespace uwarp
