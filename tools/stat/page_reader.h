// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads a page of counters that somebody else writes meanwhile, and that may be anything: each
// value is looked at once, and every offset and count is checked before it is used.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "snapshot.h"

namespace stat_view {

/// Fills in all of `process` but pid and uid. Empty, or why it cannot be read. `page` is aligned to
/// 8 octets and stays mapped.
std::string read_page(std::span<const std::byte> page, Process& process);

}  // namespace stat_view
