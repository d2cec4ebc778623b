// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_ah: where a datagram goes. RoCE adapters have them, iWARP has none.
#pragma once

#include <infiniband/verbs.h>

#include "datagram/datagram_endpoint.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"

namespace uwarp {

// Queue pairs of datagrams in multicast groups.

// Operations (verbs_table.h).
int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);

struct VerbsAh : ibv_ah, Named<VerbsAh, ibv_ah> {
  VerbsAh(VerbsPd& domain, const IpAddress& own, const IpAddress& peer)
      : ibv_ah{}, domain(domain), destination(own, peer) {}
  VerbsPd& domain;
  Destination destination;
};

// Operations (verbs_table.h).
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr);
int destroy_ah(ibv_ah* ah);

}  // namespace uwarp
