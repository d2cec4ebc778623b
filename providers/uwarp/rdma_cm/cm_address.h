// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Socket addresses as rdma_cm commands carry them. rdma_cm ports are TCP ports, moved by
// UWARP_PORT_OFFSET.
#pragma once

#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "net/ip_address.h"
#include "rdma_cm/cm_id.h"

namespace uwarp {

/// AF_IB of the kernel; libc has no name for it.
inline constexpr sa_family_t kAfIb = 27;

/// The only partition that there is, as a member of everything.
inline constexpr uint16_t kDefaultPkey = 0xffff;

/// As in the kernel's <rdma/ib.h>, which is not for user space.
struct SockaddrIb {
  uint16_t family;
  uint16_t pkey;  // network order, as all that follow
  uint32_t flow_info;
  uint8_t address[16];
  uint64_t service_id;
  uint64_t service_id_mask;
  uint64_t scope_id;
};
static_assert(sizeof(SockaddrIb) == 48);

/// Bytes of an address of its family; 0 for families that rdma_cm does not know.
size_t size_of_address(const sockaddr_storage& address);
/// An address of `length` bytes from a command; false when that is not an address of its family.
bool read_address(const void* bytes, size_t length, sockaddr_storage& out);

/// An IPv4 address that a socket of AF_INET6 tells in mapped form, as AF_INET; others as they are.
sockaddr_storage unmapped(const sockaddr_storage& address);

/// The GID of an IP address; `gid` stays as it is if it is none.
void copy_gid(uint8_t (&gid)[16], const sockaddr_storage& address);

/// Nullopt when the port would leave 1 to 65535; port 0 stays 0.
std::optional<sockaddr_storage> with_port_moved(sockaddr_storage address, int offset);

/// rdma_cm port -> TCP port and back; nullopt when there is none.
std::optional<sockaddr_storage> to_tcp(const sockaddr_storage& address);
std::optional<sockaddr_storage> from_tcp(const sockaddr_storage& address);

// What librdmacm asks of a device with InfiniBand transport and an iWARP one never has: the route
// as a path record, and all attributes of the queue pair's way to RTS. Pure; roce persona only.

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
