// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The uverbs device node. Its fd is one of /dev/full: a character device whose ioctl() refuses as
// libibverbs needs it, and whose write() fails if the preload does not intercept it. One command is
// left.
#pragma once

#include <sys/types.h>

namespace uwarp {

/// Opens the node of a device; flags as for open(). ENODEV when no device has this number.
int open_uverbs_node(int number, int flags);
bool is_uverbs_node(int number);

/// A command written to the node. Returns what write() returns.
ssize_t write_uverbs_command(const void* bytes, size_t length);

}  // namespace uwarp
