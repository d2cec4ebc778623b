// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once

#include <string>
#include <vector>

namespace uwarp {

/// Where a sysfs tree may be made, in the order in which folders are tried (docs/containers.md has
/// it). The preload, which has to name one before there is an engine, knows the first three.
std::vector<std::string> tree_folders();

}  // namespace uwarp
