// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads a directory into a tree in memory, once. Symbolic links stay links and are not followed;
// devices, sockets and pipes are left out.
#pragma once

#include <string>

#include "nfs/memory_tree.h"

namespace uwarp::nfs {

/// Throws std::system_error, or NfsError when it does not fit.
void load_initial_content(const std::string& directory, MemoryTree& tree);

}  // namespace uwarp::nfs
