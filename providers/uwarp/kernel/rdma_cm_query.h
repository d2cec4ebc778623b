// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Answers to the QUERY commands, made of an id's addresses. Pure.
#pragma once

#include <rdma/ib_user_sa.h>
#include <rdma/rdma_user_cm.h>

#include <cstddef>

#include "kernel/cm_id.h"

namespace uwarp {

rdma_ucm_query_route_resp route_response(const CmId::Addresses& addresses);
rdma_ucm_query_addr_resp address_response(const CmId::Addresses& addresses);
/// rdma_ucm_query_path_resp with room for its one path.
struct PathResponse {
  struct {
    uint32_t num_paths;
    uint32_t reserved;
  } head;
  ib_path_rec_data path;
};
static_assert(offsetof(PathResponse, path) == offsetof(rdma_ucm_query_path_resp, path_data));
/// An iWARP connection has no path records.
PathResponse path_response(const CmId::Addresses& addresses);
/// addresses that hold GIDs.
rdma_ucm_query_addr_resp gid_response(const CmId::Addresses& addresses);

}  // namespace uwarp
