// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_mw: the application's handle of a memory window. The window itself, and what may be done to
// it, is in the engine's region table; binding and invalidating are work requests.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "memory/region_table.h"
#include "qp/work_request.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"

namespace uwarp {

struct VerbsMw : ibv_mw, Named<VerbsMw, ibv_mw> {
  VerbsMw(VerbsPd& domain, MemoryRegion& window) : ibv_mw{}, domain(domain), window(window) {}
  VerbsPd& domain;
  MemoryRegion& window;
};

/// What binding `mw` asks of the engine. The low byte of `key` is that of the key to be valid
/// afterwards, out.rkey; the rest of it is the window's, whatever `key` says there, as with mlx5
/// and rxe. Once it is posted mw.rkey is that key. Leaves wr_id and flags. EINVAL: rights that no
/// window can give, or no region to bind to.
int bind_request(const ibv_mw& mw, uint32_t key, const ibv_mw_bind_info& bind, SendRequest& out);

// Operations (verbs_table.h).
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int dealloc_mw(ibv_mw* mw);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);

}  // namespace uwarp
