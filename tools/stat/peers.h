// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The addresses at the other ends of all connected queue pairs.
#pragma once

#include <string>
#include <vector>

#include "rates.h"
#include "snapshot.h"

namespace stat_view {

struct Peer {
  std::string address;
  uint32_t queue_pairs = 0;
  uint32_t processes = 0;  // of ours
  Traffic traffic;         // of these queue pairs
  Rates rates;
};

/// By address.
std::vector<Peer> peers_of(const Snapshot& snapshot, const RateTable& rates);

}  // namespace stat_view
