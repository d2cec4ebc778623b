// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pairs of datagrams in multicast groups.
#pragma once

#include <infiniband/verbs.h>

namespace uwarp {

// Operations (verbs_table.h).
int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);

}  // namespace uwarp
