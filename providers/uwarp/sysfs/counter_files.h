// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Open files of counters. As the kernel's, a file that is read from its beginning shows the present
// value, also if it has been open for long.
#pragma once

#include <string_view>

namespace uwarp {

/// `path` below the tree's root. -1 and errno: ENOENT for what is no counter of ours.
int open_counter_file(std::string_view path, int flags);

}  // namespace uwarp
