// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/rdmap/atomic_operation.h"

#include <atomic>

#include "memory/fault_safe_copy.h"

namespace uwarp {
namespace {

/// What the cell holds afterwards.
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
                                                 std::mutex& one_at_a_time) {
  const std::lock_guard lock(one_at_a_time);
  uint64_t old;
  if (!fault_safe_read(reinterpret_cast<std::byte*>(&old), cell, sizeof old)) return std::nullopt;
  const uint64_t next = number_after(old, request);
  if (next != old &&
      !fault_safe_write(cell, reinterpret_cast<const std::byte*>(&next), sizeof next))
    return std::nullopt;
  return old;
}

}  // namespace uwarp
