// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// From the SGEs of a request to the memory that they name.
#pragma once

#include "memory/region_table.h"
#include "protocol/ddp/buffer_list.h"
#include "qp/work_request.h"

namespace uwarp {

/// Adds what `sge` names to `list`. False when it may not be used: key unknown, foreign domain, out
/// of range, or without the right `needed`.
inline bool append_local(BufferList& list, const Sge& sge, const RegionTable& regions,
                         const ProtectionDomain& domain, uint32_t needed) {
  if (sge.length_bytes == 0) return true;
  RegionFault fault;
  const LocalPlace place =
      regions.local(sge.lkey, sge.address, sge.length_bytes, needed, domain, fault);
  if (!place) return false;
  list.append(place.address, sge.length_bytes, place.region, place.memory);
  return true;
}

}  // namespace uwarp
