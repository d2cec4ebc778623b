// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What librdmacm asks of a device with InfiniBand transport and an iWARP one never has: the route
// as a path record, and all attributes of the queue pair's way to RTS. Pure; roce persona only.
#pragma once

#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "kernel/cm_id.h"

namespace uwarp {

/// Code of a queue pair's timeout when the application has set none: about a second.
inline constexpr uint8_t kDefaultAckTimeout = 18;
/// Largest count of repetitions; of a missing receive: without end.
inline constexpr uint8_t kMostRetries = 7;

/// The one path between an id's addresses, as QUERY_ROUTE hands it out.
ib_user_path_rec path_record(const CmId::Addresses& addresses);
/// The same in the packed form of QUERY with RDMA_USER_CM_QUERY_PATH.
ib_path_rec_data packed_path(const CmId::Addresses& addresses);

/// Attributes for INIT, RTR and RTS. 0 or EINVAL.
int infiniband_attributes(const CmId::Addresses& addresses, uint32_t qp_state,
                          const RetryAttributes& retries, const CmDepths& depths,
                          ib_uverbs_qp_attr& out);

/// The same for a queue pair of datagrams: in any state those of INIT, as the kernel has it.
void datagram_attributes(uint32_t qp_state, uint32_t qkey, ib_uverbs_qp_attr& out);
/// Where datagrams to a multicast group go: its address is its GID.
ib_uverbs_ah_attr group_address(const CmId::Addresses& addresses, const IpAddress& group);
/// Where datagrams to the other end of the path go.
ib_uverbs_ah_attr path_address(const CmId::Addresses& addresses);

}  // namespace uwarp
