// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// FetchAdd and CmpSwap, masked and not, on a cell of the host's memory. RFC 7306 5.1, 5.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

/// Sum of fields: each set bit of `mask` is the top bit of a field, and what carries out of it is
/// dropped. The top bits are added apart, so that nothing can carry out of them. RFC 7306 5.1.1.
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
/// work, so it is atomic against all who use such instructions: other streams, other processes, the
/// application itself.
uint64_t execute_atomic(std::byte* cell, const AtomicRequestHeader& request);

/// The same on memory that another thread may unmap at any time; nothing if the memory is not there
/// or not writable. Atomic against other calls with the same mutex only: no system call does an
/// atomic of 64 bits, and an instruction would end the process if the page went away just before.
std::optional<uint64_t> execute_atomic_on_demand(std::byte* cell,
                                                 const AtomicRequestHeader& request,
                                                 std::mutex& one_at_a_time);

}  // namespace uwarp
