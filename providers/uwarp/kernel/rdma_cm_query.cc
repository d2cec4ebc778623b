// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Query responses. An id without a device (a wildcard) has GUID 0 and port 0: librdmacm takes that
// as "no device"; with a device the port must be at least 1, because it indexes a table.
#include "kernel/rdma_cm_query.h"

#include <arpa/inet.h>

#include <cstring>

#include "kernel/cm_address.h"
#include "kernel/infiniband_route.h"

namespace uwarp {
namespace {

/// No index: librdmacm then finds the device by its GUID.
constexpr uint32_t kNoDeviceIndex = 0xffffffff;

template <typename Response>
void fill_device(Response& response, const CmId::Addresses& addresses) {
  response.ibdev_index = kNoDeviceIndex;
  if (addresses.device == nullptr) return;
  response.node_guid = addresses.device->guid_be;
  response.port_num = 1;
}

/// Old structures have room for an IPv6 address only.
sockaddr_in6 short_address(const sockaddr_storage& address) {
  sockaddr_in6 out{};
  if (address.ss_family == kAfIb) return out;
  std::memcpy(&out, &address, sizeof out);
  return out;
}

SockaddrIb ib_address(const sockaddr_storage& address) {
  SockaddrIb out{};
  out.family = kAfIb;
  out.pkey = htons(kDefaultPkey);
  copy_gid(out.address, address);
  if (address.ss_family == kAfIb) std::memcpy(&out, &address, sizeof out);
  return out;
}

}  // namespace

rdma_ucm_query_route_resp route_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_route_resp response{};
  fill_device(response, addresses);
  response.src_addr = short_address(addresses.local);
  response.dst_addr = short_address(addresses.remote);
  // The first record is where librdmacm looks for the GIDs, also when there are no paths.
  if (addresses.has_path) {
    response.num_paths = 1;
    response.ib_route[0] = path_record(addresses);
  }
  copy_gid(response.ib_route[0].sgid, addresses.local);
  copy_gid(response.ib_route[0].dgid, addresses.remote);
  return response;
}

rdma_ucm_query_addr_resp address_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_addr_resp response{};
  fill_device(response, addresses);
  response.pkey = htons(kDefaultPkey);
  response.src_size = static_cast<uint16_t>(size_of_address(addresses.local));
  response.dst_size = static_cast<uint16_t>(size_of_address(addresses.remote));
  std::memcpy(&response.src_addr, &addresses.local, response.src_size);
  std::memcpy(&response.dst_addr, &addresses.remote, response.dst_size);
  return response;
}

PathResponse path_response(const CmId::Addresses& addresses) {
  PathResponse response{};
  if (!addresses.has_path) return response;
  response.head.num_paths = 1;
  response.path = packed_path(addresses);
  return response;
}

rdma_ucm_query_addr_resp gid_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_addr_resp response{};
  fill_device(response, addresses);
  response.pkey = htons(kDefaultPkey);
  const SockaddrIb local = ib_address(addresses.local);
  const SockaddrIb remote = ib_address(addresses.remote);
  response.src_size = sizeof local;
  response.dst_size = sizeof remote;
  std::memcpy(&response.src_addr, &local, sizeof local);
  std::memcpy(&response.dst_addr, &remote, sizeof remote);
  return response;
}

}  // namespace uwarp
