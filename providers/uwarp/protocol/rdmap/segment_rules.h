// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What every incoming segment must satisfy before its message is looked at: versions, opcode, model
// and queue, in the order in which we report faults. RFC 5040-7.2-a, 7306-8.2-a.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "memory/region_table.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/rdmap_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

// What a peer's Read or Atomic Request must satisfy before it is answered. Checked when it arrives
// and again when the answer is made, since memory may be deregistered in between.

/// A refused access of a request as layer 0 reports it.
TerminateCode request_fault_code(RegionFault fault);

/// The error of a Read of which `offset` bytes have been answered; otherwise `source` is what is
/// left of it. An empty rest names no memory and is never wrong.
std::optional<TerminateCode> check_read_request(const ReadRequestHeader& request, uint64_t offset,
                                                const RegionTable& regions,
                                                const RemoteAccessor& peer, RemoteRange& source);

/// The error of an atomic; otherwise `cell` is its target, aligned as the CPU needs it.
/// `alignment_first`: of several faults a place that is not aligned comes first, as with
/// InfiniBand.
std::optional<TerminateCode> check_atomic_request(const AtomicRequestHeader& request,
                                                  const RegionTable& regions,
                                                  const RemoteAccessor& peer, RemoteRange& cell,
                                                  bool alignment_first);

// FetchAdd and CmpSwap, masked and not, on a cell of the host's memory. RFC 7306 5.1, 5.3.

/// Sum of fields: each set bit of `mask` is the top bit of a field, and what carries out of it is
/// dropped. The top bits are added apart, so that nothing can carry out of them. RFC 7306-5.1.1-f.
constexpr uint64_t masked_add(uint64_t old, uint64_t add, uint64_t mask) {
  return ((old & ~mask) + (add & ~mask)) ^ ((old ^ add) & mask);
}

constexpr bool masked_equal(uint64_t old, uint64_t compare, uint64_t mask) {
  return ((old ^ compare) & mask) == 0;
}

constexpr uint64_t masked_swap(uint64_t old, uint64_t swap, uint64_t mask) {
  return (old & ~mask) | (swap & mask);
}

/// Executes a request on the 8-aligned `cell` and returns the number that was there before. The
/// opcode is one of the defined ones. Without a match nothing is stored. CPU instructions do the
/// work on the host's number, so it is one step to all who use such instructions: other streams,
/// other processes, the application itself. RFC 7306-5-a/b, 7306-5.1.1-g, 7306-5.3-a, 7306-5.4-2.
uint64_t execute_atomic(std::byte* cell, const AtomicRequestHeader& request);

/// The same on memory that another thread may unmap at any time; nothing if the memory is not there
/// or not writable. Atomic against other calls with the same mutex only: no system call does an
/// atomic of 64 bits, and an instruction would end the process if the page went away just before.
std::optional<uint64_t> execute_atomic_on_demand(std::byte* cell,
                                                 const AtomicRequestHeader& request,
                                                 Mutex& one_at_a_time);

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
  constexpr uint8_t kIgnored = DdpControl::ReservedField::kMask;  // not checked: RFC 5041-4.1-i
  const auto ddp = static_cast<uint8_t>((static_cast<uint8_t>(header[0]) | kAny) & ~kIgnored);
  return ddp == DdpControl::make(true, true).value &&
         static_cast<uint8_t>(header[1]) == make_rdmap_control(RdmapOpcode::kWrite);
}

/// The error of the RDMAP header of a control message (Read Request, Terminate, atomics, Immediate)
/// that is `size` bytes long, headers of DDP not counted.
std::optional<TerminateCode> check_header_size(RdmapOpcode opcode, size_t size);

}  // namespace uwarp
