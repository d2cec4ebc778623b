// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Socket addresses of commands.
#include "rdma_cm/cm_address.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/mtu_code.h"
#include "base/settings.h"
#include "carrier/tcp_socket.h"
#include "connect/qp_attributes.h"

namespace uwarp {

size_t size_of_address(const sockaddr_storage& address) {
  return address.ss_family == kAfIb ? sizeof(SockaddrIb) : address_length(address);
}

bool read_address(const void* bytes, size_t length, sockaddr_storage& out) {
  out = {};
  if (length > sizeof out) return false;
  std::memcpy(&out, bytes, length);
  const size_t size = size_of_address(out);
  return size != 0 && length >= size;
}

void copy_gid(uint8_t (&gid)[16], const sockaddr_storage& address) {
  if (address.ss_family == AF_INET || address.ss_family == AF_INET6)
    std::memcpy(gid, ip_of(address).bytes().data(), sizeof gid);
}

sockaddr_storage unmapped(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6 || !ip_of(address).is_v4()) return address;
  sockaddr_storage out;
  ip_of(address).to_sockaddr(out, port_of(address));
  return out;
}

std::optional<sockaddr_storage> with_port_moved(sockaddr_storage address, int offset) {
  if (offset == 0 || port_of(address) == 0) return address;
  const int port = port_of(address) + offset;
  if (port < 1 || port > 65535) return std::nullopt;
  set_port(address, static_cast<uint16_t>(port));
  return address;
}

std::optional<sockaddr_storage> to_tcp(const sockaddr_storage& address) {
  return with_port_moved(address, settings().port_offset);
}

std::optional<sockaddr_storage> from_tcp(const sockaddr_storage& address) {
  return with_port_moved(address, -settings().port_offset);
}

namespace {

constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kExactly = 2;  // selector of MTU, rate and life time
constexpr uint8_t kRate100Gbps = 16;
// 4.096 us * 2^17 is half a second; a queue pair's timeout is twice the life time.
constexpr uint8_t kPacketLifeTime = kDefaultAckTimeout - 1;

/// IB_PATH_GMP, IB_PATH_PRIMARY and IB_PATH_BIDIRECTIONAL.
constexpr uint32_t kPathFlags = 1u | 2u | 16u;

constexpr uint32_t kRemoteAccess = 1u << 1 | 1u << 2 | 1u << 3;  // write, read, atomic

/// The packed path record of the InfiniBand specification (15.2.5.16).
struct PackedPath {
  uint64_t service_id;
  uint8_t dgid[16];
  uint8_t sgid[16];
  uint16_t dlid;
  uint16_t slid;
  uint32_t flow_label_hop_limit;
  uint8_t traffic_class;
  uint8_t reversible_count;
  uint16_t pkey;
  uint16_t qos_class_sl;
  uint8_t mtu;
  uint8_t rate;
  uint8_t packet_life_time;
  uint8_t preference;
  uint8_t reserved[6];
};
static_assert(sizeof(PackedPath) == sizeof ib_path_rec_data{}.path_rec);

uint8_t path_mtu(const NetDevice& device) {
  return std::min(mtu_code(device.mtu_bytes), settings().adapter.max_mtu);
}

uint8_t source_index(const CmId::Addresses& addresses) {
  const auto& gids = addresses.device->gids;
  const auto at = std::find(gids.begin(), gids.end(), ip_of(addresses.local));
  return at == gids.end() ? 0 : static_cast<uint8_t>(at - gids.begin());
}

}  // namespace

ib_user_path_rec path_record(const CmId::Addresses& addresses) {
  ib_user_path_rec path{};
  copy_gid(path.dgid, addresses.remote);
  copy_gid(path.sgid, addresses.local);
  path.reversible = 1;
  path.mtu = path_mtu(*addresses.device);
  path.pkey = htons(kDefaultPkey);
  path.hop_limit = kHopLimit;
  path.traffic_class = addresses.traffic_class;
  path.numb_path = 1;
  path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
  path.rate = kRate100Gbps;
  path.packet_life_time = kPacketLifeTime;
  return path;
}

ib_path_rec_data packed_path(const CmId::Addresses& addresses) {
  PackedPath path{};
  copy_gid(path.dgid, addresses.remote);
  copy_gid(path.sgid, addresses.local);
  path.flow_label_hop_limit = htonl(kHopLimit);
  path.traffic_class = addresses.traffic_class;
  path.reversible_count = 1u << 7 | 1;
  path.pkey = htons(kDefaultPkey);
  path.mtu = static_cast<uint8_t>(kExactly << 6 | path_mtu(*addresses.device));
  path.rate = kExactly << 6 | kRate100Gbps;
  path.packet_life_time = kExactly << 6 | kPacketLifeTime;
  ib_path_rec_data out{};
  out.flags = kPathFlags;
  std::memcpy(out.path_rec, &path, sizeof path);
  return out;
}

ib_uverbs_ah_attr path_address(const CmId::Addresses& addresses) {
  ib_uverbs_ah_attr to{};
  copy_gid(to.grh.dgid, addresses.remote);
  to.grh.sgid_index = source_index(addresses);
  to.grh.hop_limit = kHopLimit;
  to.grh.traffic_class = addresses.traffic_class;
  to.is_global = 1;
  to.port_num = 1;
  return to;
}

ib_uverbs_ah_attr group_address(const CmId::Addresses& addresses, const IpAddress& group) {
  ib_uverbs_ah_attr to = path_address(addresses);
  std::memcpy(to.grh.dgid, group.bytes().data(), sizeof to.grh.dgid);
  return to;
}

void datagram_attributes(uint32_t qp_state, uint32_t qkey, ib_uverbs_qp_attr& out) {
  out = {};
  out.qp_state = qp_state;
  out.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
  out.port_num = 1;
  out.qkey = qkey;
}

// The masks are those that the kernel's InfiniBand connection manager hands out: the table of
// ibv_modify_qp wants every one of these bits.
int infiniband_attributes(const CmId::Addresses& addresses, uint32_t qp_state,
                          const RetryAttributes& retries, const CmDepths& depths,
                          ib_uverbs_qp_attr& out) {
  out = {};
  out.qp_state = qp_state;
  out.port_num = 1;
  switch (qp_state) {
    case IBV_QPS_INIT:
      out.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
      out.qp_access_flags = kRemoteAccess;
      return 0;
    case IBV_QPS_RTR:
      if (addresses.remote.ss_family == AF_UNSPEC) return EINVAL;
      out.qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      out.ah_attr = path_address(addresses);
      out.path_mtu = path_mtu(*addresses.device);
      out.dest_qp_num = kCmPeerQpn;
      out.max_dest_rd_atomic = depths.responder_resources;
      return 0;
    case IBV_QPS_RTS:
      out.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
      out.timeout = retries.timeout.value_or(kDefaultAckTimeout);
      out.retry_cnt = retries.retry_count.value_or(kMostRetries);
      out.rnr_retry = retries.rnr_retry.value_or(kMostRetries);
      out.max_rd_atomic = depths.initiator_depth;
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace uwarp
