// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reading and writing memory at addresses that the application has put into a command: a wrong
// address must give EFAULT, as from a kernel, and not a SIGSEGV in our code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uwarp {

/// 0 or EFAULT.
int copy_from_user(void* to, const void* from, size_t length);
int copy_to_user(uint64_t to, const void* from, size_t length);

}  // namespace uwarp
