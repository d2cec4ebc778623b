// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Answers to the QUERY commands, made of an id's addresses. Pure.
#pragma once

#include <rdma/rdma_user_cm.h>

#include "host/cm_id.h"

namespace uwarp {

rdma_ucm_query_route_resp route_response(const CmId::Addresses& addresses);
rdma_ucm_query_addr_resp address_response(const CmId::Addresses& addresses);
/// The same with AF_IB addresses that hold GIDs.
rdma_ucm_query_addr_resp gid_response(const CmId::Addresses& addresses);

}  // namespace uwarp
