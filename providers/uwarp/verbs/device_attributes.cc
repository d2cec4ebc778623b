// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a device says of itself: ibv_query_device(_ex) and ibv_query_port.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/mtu_code.h"
#include "base/settings.h"
#include "datagram/multicast.h"
#include "memory/fault_safe_copy.h"
#include "os/clock.h"
#include "verbs/boundary.h"
#include "verbs/device_context.h"

namespace uwarp {
namespace {

// Registration is a table entry at byte granularity; any page size will do.
constexpr uint64_t kPageSizes = 0xfffff000;

constexpr uint8_t kPhysicalLinkUp = 5;
constexpr uint8_t kPhysicalDisabled = 3;

// cur_qp_state in modify_qp, sys_image_guid, and what comes with invalidating by work request.
constexpr unsigned kCapabilities =
    IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_MEM_MGT_EXTENSIONS;
// Windows of type 2 belong to a queue pair (2B).
constexpr unsigned kWindowCapabilities = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;

constexpr uint32_t kOnDemandOperations = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                         IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
                                         IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
/// ... and what of it unreliable connections have.
constexpr uint32_t kOnDemandUnanswered =
    kOnDemandOperations & ~uint32_t{IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC};
constexpr uint32_t kOnDemandDatagrams =
    IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;

/// UCX tests for HCA. CPU instructions on host memory are atomic with all others (GLOB): RFC
/// 7306-1.1-b; but RoCE adapters are atomic among themselves.
ibv_atomic_cap atomic_cap(const AdapterProfile& profile) {
  switch (profile.atomic_cap) {
    case AtomicCap::kNone:
      return IBV_ATOMIC_NONE;
    case AtomicCap::kHca:
      return IBV_ATOMIC_HCA;
    case AtomicCap::kGlob:
      return IBV_ATOMIC_GLOB;
    default:
      return settings().persona == Persona::kRoce ? IBV_ATOMIC_HCA : IBV_ATOMIC_GLOB;
  }
}

unsigned capabilities(const AdapterProfile& profile) {
  return kCapabilities | (profile.max_mw != 0 ? kWindowCapabilities : 0u) |
         (profile.max_srq != 0 ? unsigned{IBV_DEVICE_SRQ_RESIZE} : 0u);
}

/// `all`, without what the profile lacks.
uint32_t on_demand(uint32_t all, const AdapterProfile& profile) {
  if (!profile.has_atomics()) all &= ~uint32_t{IBV_ODP_SUPPORT_ATOMIC};
  return profile.max_srq != 0 ? all : all & ~uint32_t{IBV_ODP_SUPPORT_SRQ_RECV};
}

ibv_device_attr basic_attributes(const NetDevice& device, const AdapterProfile& profile) {
  ibv_device_attr attr = {};
  std::strncpy(attr.fw_ver, profile.firmware().c_str(), sizeof attr.fw_ver - 1);
  attr.node_guid = device.guid_be;
  attr.sys_image_guid = device.guid_be;
  attr.max_mr_size = profile.max_mr_size;
  attr.page_size_cap = kPageSizes;
  attr.vendor_id = profile.vendor_id;
  attr.vendor_part_id = profile.vendor_part_id;
  attr.hw_ver = profile.hw_ver;
  attr.max_qp = static_cast<int>(profile.max_qp);
  attr.max_qp_wr = static_cast<int>(profile.max_qp_wr);
  attr.max_sge = static_cast<int>(profile.max_sge);
  attr.max_sge_rd = static_cast<int>(profile.max_sge_rd);
  attr.max_cq = static_cast<int>(profile.max_cq);
  attr.max_cqe = static_cast<int>(profile.max_cqe);
  attr.max_mr = static_cast<int>(profile.max_mr);
  attr.max_pd = static_cast<int>(profile.max_pd);
  attr.device_cap_flags = capabilities(profile);
  if (settings().persona == Persona::kRoce) {
    if (profile.max_srq != 0) attr.device_cap_flags |= IBV_DEVICE_XRC;
    attr.max_ah = static_cast<int>(profile.max_ah);
    attr.max_mcast_grp = MulticastGroups::kMostGroups;
    attr.max_mcast_qp_attach = MulticastGroups::kMostAttached;
    attr.max_total_mcast_qp_attach = MulticastGroups::kMostGroups * MulticastGroups::kMostAttached;
  }
  attr.max_qp_rd_atom = static_cast<int>(profile.max_qp_rd_atom);
  attr.max_res_rd_atom = static_cast<int>(profile.max_qp_rd_atom * profile.max_qp);
  attr.max_qp_init_rd_atom = static_cast<int>(profile.max_qp_init_rd_atom);
  attr.max_mw = static_cast<int>(profile.max_mw);
  attr.atomic_cap = atomic_cap(profile);
  attr.max_srq = static_cast<int>(profile.max_srq);
  attr.max_srq_wr = profile.max_srq != 0 ? static_cast<int>(profile.max_srq_wr) : 0;
  attr.max_srq_sge = profile.max_srq != 0 ? static_cast<int>(profile.max_srq_sge) : 0;
  attr.max_pkeys = 1;
  attr.phys_port_cnt = 1;
  return attr;
}

}  // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t attr_bytes) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (attr_bytes < sizeof attr->orig_attr) return EINVAL;
  if (DeviceContext::of(context).removed()) return EIO;
  ibv_device_attr_ex filled = {};
  const AdapterProfile& profile = settings().adapter;
  filled.orig_attr = basic_attributes(DeviceContext::of(context).device(), profile);
  filled.completion_timestamp_mask = ~uint64_t{0};
  filled.hca_core_clock = 1'000'000;  // kHz: the raw clock counts nanoseconds
  filled.cq_mod_caps = {UINT16_MAX, UINT16_MAX};
  filled.device_cap_flags_ex = filled.orig_attr.device_cap_flags;
  filled.phys_port_cnt_ex = 1;
  filled.max_dm_size = profile.max_dm_size;
  if (fault_safe_copy_works()) {
    filled.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    filled.odp_caps.per_transport_caps.rc_odp_caps = on_demand(kOnDemandOperations, profile);
    if (settings().persona == Persona::kRoce) {
      filled.odp_caps.per_transport_caps.uc_odp_caps = on_demand(kOnDemandUnanswered, profile);
      filled.odp_caps.per_transport_caps.ud_odp_caps = on_demand(kOnDemandDatagrams, profile);
      filled.xrc_odp_caps = on_demand(kOnDemandOperations, profile);
    }
  }
  // The caller's struct may be of an older or a newer release than ours.
  std::memset(static_cast<void*>(attr), 0, attr_bytes);
  std::memcpy(static_cast<void*>(attr), &filled, std::min(attr_bytes, sizeof filled));
  return 0;
}

// The clock is a count of nanoseconds: tv_sec stays 0, as with adapters whose clock counts cycles.
int query_rt_values(ibv_context*, ibv_values_ex* values) {
  if ((values->comp_mask & ~uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return EINVAL;
  if (values->comp_mask != 0) values->raw_clock = {0, static_cast<long>(now_ns())};
  return 0;
}

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr) {
  if (port != kPort) return EINVAL;
  if (DeviceContext::of(context).removed()) return EIO;
  const NetDevice& opened = DeviceContext::of(context).device();
  // The link may have changed, or the netdev may have lost its addresses.
  const auto current = refresh_net_devices()->by_verbs_name(opened.verbs_name);
  const DeviceFaults* faults = DeviceContext::of(context).faults();
  const bool running =
      current != nullptr && current->running && (faults == nullptr || !faults->port_down());
  // Single assignments: the caller's struct ends earlier or later than the one we know.
  attr->state = running ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  const AdapterProfile& profile = settings().adapter;
  attr->max_mtu = static_cast<ibv_mtu>(profile.max_mtu);
  // A datagram may be as long as this, and TCP carries the largest over any link.
  const uint32_t mtu_bytes = current != nullptr ? current->mtu_bytes : opened.mtu_bytes;
  attr->active_mtu = settings().persona == Persona::kRoce
                         ? attr->max_mtu
                         : static_cast<ibv_mtu>(std::min(profile.max_mtu, mtu_code(mtu_bytes)));
  attr->gid_tbl_len = kGidTableEntries;
  attr->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  attr->max_msg_sz = profile.max_msg_sz;
  attr->bad_pkey_cntr = 0;
  attr->qkey_viol_cntr = 0;
  attr->pkey_tbl_len = 1;
  attr->lid = 0;
  attr->sm_lid = 0;
  attr->lmc = 0;
  attr->max_vl_num = 1;
  attr->sm_sl = 0;
  attr->subnet_timeout = 0;
  attr->init_type_reply = 0;
  attr->active_width = profile.active_width;
  attr->active_speed = profile.active_speed;
  attr->phys_state = running ? kPhysicalLinkUp : kPhysicalDisabled;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  attr->flags = 0;
  attr->port_cap_flags2 = 0;
  return 0;
}

}  // namespace uwarp
