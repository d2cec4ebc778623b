// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What every incoming segment must satisfy before its message is looked at: versions, opcode, model
// and queue, in the order in which we report faults. RFC 5040 4.1, 7.2; RFC 5041 7.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/rdmap_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

/// What is switched on beyond RFC 5040: RFC 7306, our own Send with Immediate, and queues of XRC.
struct RdmapFeatures {
  bool atomics = false;
  bool immediate = false;
  bool send_immediate = false;
  bool shared_queues = false;  // messages for queue 0 name a shared receive queue instead
};

/// The error of a segment whose DDP header (14 or 18 bytes by its T bit) starts at `header`.
std::optional<TerminateCode> check_segment(const std::byte* header, RdmapFeatures features);

/// A Write in which check_segment() finds no fault with any features. Writes are frequent: testing
/// all rules at once takes a tenth off the work on a small one.
inline bool is_sound_write(const std::byte* header) {
  constexpr uint8_t kAny = DdpControl::LastBit::kMask;
  constexpr uint8_t kIgnored = DdpControl::ReservedField::kMask;
  const auto ddp = static_cast<uint8_t>((static_cast<uint8_t>(header[0]) | kAny) & ~kIgnored);
  return ddp == DdpControl::make(true, true).value &&
         static_cast<uint8_t>(header[1]) == make_rdmap_control(RdmapOpcode::kWrite);
}

/// The error of the RDMAP header of a control message (Read Request, Terminate, atomics, Immediate)
/// that is `size` bytes long, headers of DDP not counted.
std::optional<TerminateCode> check_header_size(RdmapOpcode opcode, size_t size);

}  // namespace uwarp
