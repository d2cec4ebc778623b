// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_ah: where a datagram would go. RoCE adapters make them, and communication libraries make one
// when they look at such an adapter; iWARP has none. No queue pair here sends datagrams.
#pragma once

#include <infiniband/verbs.h>

#include "verbs/protection_domain.h"

namespace uwarp {

struct VerbsAh : ibv_ah {
  explicit VerbsAh(VerbsPd& domain) : ibv_ah{}, domain(domain) {}
  VerbsPd& domain;

  static VerbsAh& of(ibv_ah* ah) { return *static_cast<VerbsAh*>(ah); }
};

// Operations (verbs_table.h).
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr);
int destroy_ah(ibv_ah* ah);

}  // namespace uwarp
