// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/rdmap/atomic_operation.h"

#include <atomic>

namespace uwarp {
namespace {

uint64_t fetch_add(std::atomic_ref<uint64_t> cell, const AtomicRequestHeader& request) {
  const uint64_t mask = request.add_or_swap_mask;
  if (mask == 0) return cell.fetch_add(request.add_or_swap);
  uint64_t old = cell.load();
  while (!cell.compare_exchange_weak(old, masked_add(old, request.add_or_swap, mask))) {
  }
  return old;
}

uint64_t compare_swap(std::atomic_ref<uint64_t> cell, const AtomicRequestHeader& request) {
  uint64_t old = cell.load();
  while (masked_equal(old, request.compare, request.compare_mask) &&
         !cell.compare_exchange_weak(
             old, masked_swap(old, request.add_or_swap, request.add_or_swap_mask))) {
  }
  return old;
}

}  // namespace

uint64_t execute_atomic(std::byte* cell, const AtomicRequestHeader& request) {
  const std::atomic_ref<uint64_t> number(*reinterpret_cast<uint64_t*>(cell));
  static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);
  return request.opcode == AtomicOpcode::kFetchAdd ? fetch_add(number, request)
                                                   : compare_swap(number, request);
}

}  // namespace uwarp
