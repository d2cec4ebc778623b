// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A snapshot as JSON; uwarp-stat(1) describes it.
#pragma once

#include <string>

#include "rates.h"
#include "snapshot.h"

namespace stat_view {

/// One line.
std::string to_json(const Snapshot& snapshot, const RateTable& rates);

}  // namespace stat_view
