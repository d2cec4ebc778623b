// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The folders in which devices are found, in a fixed order: libibverbs shows devices in the order
// of readdir(), which else depends on the file system.
#pragma once

#include <dirent.h>

namespace uwarp_preload {

/// Reads the whole folder; readdir() then gives its entries sorted by number. Without memory the
/// order stays as it is.
void sort_listing(DIR* folder);

/// In a forked child: listings that the parent had open are read in the order of the file system.
void forget_listings();

}  // namespace uwarp_preload
