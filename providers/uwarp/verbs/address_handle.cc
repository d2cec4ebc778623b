// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/address_handle.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/limits.h"
#include "base/mutex.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "net/net_device.h"
#include "verbs/boundary.h"
#include "verbs/queue_pair.h"

namespace uwarp {

namespace {

/// `change(qp, groups, group)` with the lock of the queue pair, unless there is a reason not to.
template <typename Change>
int change_group(ibv_qp* base, const ibv_gid& gid, Change change) NO_THREAD_SAFETY_ANALYSIS {
  VerbsQp& qp = VerbsQp::of(base, AskedBy::kWrite);
  if (const int error = qp.device.refusal()) return error;
  if (settings().persona != Persona::kRoce) return EOPNOTSUPP;
  const IpAddress group = IpAddress::from_gid(gid.raw);
  if (qp.datagrams == nullptr || !is_multicast(group)) return EINVAL;
  const Lock guard(qp.mutex);
  return change(qp, qp.device.engine().trunks().groups(), group);
}

auto find_membership(VerbsQp& qp, const ibv_gid& gid, uint16_t lid) REQUIRES(qp.mutex) {
  return std::ranges::find_if(qp.memberships, [&](const VerbsQp::Membership& one) {
    return one.lid == lid && std::memcmp(&one.group, &gid, sizeof gid) == 0;
  });
}

/// 0, or an errno. On RoCE everything is global: the GRH says where to, by GIDs. Without one there
/// is the LID that ibv_query_port tells, that of the port itself: rsockets make such a handle for
/// their own queue pair of datagrams.
int check_attributes(const NetDevice* device, const ibv_ah_attr& attr) {
  if (device == nullptr) return ENODEV;
  if (attr.port_num != kPort) return EINVAL;
  if (attr.is_global == 0) return attr.dlid == 0 && !device->gids.empty() ? 0 : EINVAL;
  if (attr.grh.sgid_index >= kGidTableEntries) return EINVAL;
  if (attr.grh.sgid_index >= device->gids.size()) return ENODATA;
  return std::ranges::all_of(attr.grh.dgid.raw, [](uint8_t b) { return b == 0; }) ? EINVAL : 0;
}

}  // namespace

int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return change_group(qp, *gid,
                      [&](VerbsQp& member, MulticastGroups& groups, const IpAddress& group)
                          REQUIRES(member.mutex) {
                            if (find_membership(member, *gid, lid) != member.memberships.end())
                              return 0;
                            member.memberships.reserve(member.memberships.size() + 1);
                            if (const int error = groups.attach(member.datagrams, group))
                              return error;
                            member.memberships.push_back({*gid, lid});
                            return 0;
                          });
}

int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return change_group(
      qp, *gid,
      [&](VerbsQp& member, MulticastGroups& groups, const IpAddress& group) REQUIRES(member.mutex) {
        const auto found = find_membership(member, *gid, lid);
        if (found == member.memberships.end()) return EINVAL;
        member.memberships.erase(found);
        const bool otherwise = std::ranges::any_of(member.memberships, [&](const auto& one) {
          return std::memcmp(&one.group, gid, sizeof *gid) == 0;
        });
        return otherwise ? 0 : groups.detach(*member.datagrams, group);
      });
}

ibv_ah* create_ah(ibv_pd* base, ibv_ah_attr* attr) {
  static constinit SerialNumbers<uint32_t> handles;
  VerbsPd& pd = VerbsPd::of(base, AskedBy::kWrite);
  DeviceContext& device = pd.device;
  if (const int error = device.refusal()) return fail(error);
  // Addresses may have come since the device was opened.
  const auto current = refresh_net_devices()->by_verbs_name(device.device().verbs_name);
  if (int error = check_attributes(current.get(), *attr)) return fail(error);
  if (settings().persona != Persona::kRoce) return fail(EOPNOTSUPP);
  const bool global = attr->is_global != 0;
  const IpAddress& own = current->gids[global ? attr->grh.sgid_index : 0];
  const auto peer = global ? IpAddress::from_gid(attr->grh.dgid.raw, own.scope_id()) : own;
  if (!is_multicast(peer) && !find_route(peer, own)) return fail(errno);
  auto ah = std::make_unique<VerbsAh>(pd, own, peer);
  if (is_multicast(peer)) {
    auto path = device.engine().trunks().groups().path_to(
        *current, {own, peer, attr->grh.hop_limit, attr->grh.traffic_class});
    if (!path) return fail(path.error());
    ah->destination.group = std::move(*path);
  }
  ah->destination.traffic_class = attr->grh.traffic_class;
  ah->destination.hop_limit = attr->grh.hop_limit;
  if (!DeviceContext::take_place(device.ah_count, settings().adapter.max_ah)) return fail(ENOMEM);
  pd.user_made();
  ah->give_handle(pd.context, handles.next());
  ah->pd = &pd;
  return ah.release();
}

int destroy_ah(ibv_ah* base) {
  VerbsAh& ah = VerbsAh::of(base);
  VerbsPd& pd = ah.domain;
  if (!pd.device.alive()) return 0;
  delete &ah;
  --pd.device.ah_count;
  pd.user_gone();
  return 0;
}

}  // namespace uwarp
