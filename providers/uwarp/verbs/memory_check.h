// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether memory may be registered: a kernel would find out by pinning it, we ask for the mapping.
// Knows nothing of regions or keys; touches no page of the memory itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace uwarp {

/// Checks that all of [address, address + length) is mapped, readable, and writable if asked.
/// Returns 0, or EFAULT. Where the kernel offers no way to know (no /proc), only holes are found.
/// Length 0 is always right; the range must not wrap.
int check_memory(const void* address, size_t length, bool writable);

/// The same by one method each, for tests. ENOSYS: this system cannot answer.
int check_memory_by_query(uintptr_t begin, uintptr_t end, bool writable);
int check_memory_by_maps(uintptr_t begin, uintptr_t end, bool writable);
int check_memory_by_msync(uintptr_t begin, uintptr_t end);

}  // namespace uwarp
