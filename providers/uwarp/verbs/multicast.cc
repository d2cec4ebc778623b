// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/multicast.h"

#include <cerrno>

#include "base/settings.h"
#include "verbs/boundary.h"
#include "verbs/queue_pair.h"

namespace uwarp {
namespace {

/// `change(groups, endpoint, group)`, unless there is a reason not to.
template <typename Change>
int change_group(ibv_qp* base, const ibv_gid& gid, Change change) {
  return errno_verb([&]() -> int {
    VerbsQp& qp = VerbsQp::of(base);
    if (const int error = qp.device.refusal()) return error;
    if (settings().persona != Persona::kRoce) return EOPNOTSUPP;
    const IpAddress group = IpAddress::from_gid(gid.raw);
    if (qp.datagrams == nullptr || !is_multicast(group)) return EINVAL;
    return change(qp.device.engine().trunks().groups(), qp.datagrams, group);
  });
}

}  // namespace

// On Ethernet the LID says nothing.
int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  return change_group(qp, *gid,
                      [](MulticastGroups& groups, const auto& endpoint, const auto& group) {
                        return groups.attach(endpoint, group);
                      });
}

int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  return change_group(qp, *gid,
                      [](MulticastGroups& groups, const auto& endpoint, const auto& group) {
                        return groups.detach(*endpoint, group);
                      });
}

}  // namespace uwarp
