// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a peer's Read or Atomic Request must satisfy before it is answered. Checked when it arrives
// and again when the answer is made, since memory may be deregistered in between. RFC 5040 7.2,
// RFC 7306 5.2.1, 8.2.
#pragma once

#include <cstdint>
#include <optional>

#include "memory/region_table.h"
#include "protocol/wire/rdmap_headers.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

/// A refused access of a request as layer 0 reports it.
TerminateCode request_fault_code(RegionFault fault);

/// The error of a Read of which `offset` bytes have been answered; otherwise `source` is what is
/// left of it. An empty rest names no memory and is never wrong.
std::optional<TerminateCode> check_read_request(const ReadRequestHeader& request, uint64_t offset,
                                                const RegionTable& regions,
                                                const RemoteAccessor& peer, RemotePlace& source);

/// The error of an atomic; otherwise `cell` is its target, aligned as the CPU needs it.
/// `alignment_first`: of several faults a place that is not aligned comes first, as with
/// InfiniBand.
std::optional<TerminateCode> check_atomic_request(const AtomicRequestHeader& request,
                                                  const RegionTable& regions,
                                                  const RemoteAccessor& peer, RemotePlace& cell,
                                                  bool alignment_first);

}  // namespace uwarp
