// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_ah: where a datagram goes. RoCE adapters have them, iWARP has none.
#pragma once

#include <infiniband/verbs.h>

#include "datagram/datagram_endpoint.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"

namespace uwarp {

struct VerbsAh : ibv_ah, Named<VerbsAh, ibv_ah> {
  VerbsAh(VerbsPd& domain, const IpAddress& own, const IpAddress& peer)
      : ibv_ah{}, domain(domain), destination(own, peer) {}
  VerbsPd& domain;
  Destination destination;
};

}  // namespace uwarp
