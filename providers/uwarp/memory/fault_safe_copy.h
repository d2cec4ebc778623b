// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Touching memory that may not be mapped, or not writable, at this moment: the kernel does it on
// our behalf, and an answer takes the place of a signal. Knows nothing of regions.
#pragma once

#include <cstddef>

namespace uwarp {

/// False where a sandbox forbids the system calls that the others are made of. Found out once.
bool fault_safe_copy_works();

/// Copies out of memory that may not be there. False if it is not; part may have been copied.
[[gnu::noinline]] bool fault_safe_read(std::byte* to, const std::byte* from, size_t size);
/// Copies into memory that may not be there. False if it is not; part may have been written.
[[gnu::noinline]] bool fault_safe_write(std::byte* to, const std::byte* from, size_t size);
/// Whether the aligned word of 32 bits at `word` can be written. Brings its page in, changes
/// nothing. Another thread may unmap it before the caller touches it.
bool fault_safe_probe(std::byte* word);

}  // namespace uwarp
