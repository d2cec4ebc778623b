// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads a page of counters while its process writes it. The page may hold anything, so each value
// is read once, and every offset and count is checked before it is used.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "snapshot.h"

namespace stat_view {

/// Fills in all of `process` but pid and uid. Returns why the page cannot be read, or an empty
/// text. `page` is aligned to 8 bytes and stays mapped. `slots_left`: how many slots may still be
/// read; the page costs as many as it says it uses, whatever is in them.
std::string read_page(std::span<const std::byte> page, Process& process, size_t& slots_left);

}  // namespace stat_view
