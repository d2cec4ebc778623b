// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Numbers that no other process and no peer can guess.
#pragma once

#include <cstdint>

namespace uwarp {

/// 64 random bits of the kernel. Waits only where the system has just started and has no entropy
/// yet (getrandom(2)). Where a sandbox refuses that call, they come from the bits that the kernel
/// gave the process at its start. Any thread.
uint64_t random_word();

}  // namespace uwarp
