// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// CmId: multicast groups. librdmacm attaches the id's queue pair itself when it gets the event of
// the join.
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>

#include "connect/qp_attributes.h"
#include "kernel/cm_id.h"
#include "kernel/cm_id_table.h"
#include "kernel/infiniband_route.h"

namespace uwarp {

int CmId::join_group(const IpAddress& group, uint64_t uid, uint16_t flags, uint32_t& number) {
  CmEventRoom room(1);
  auto reported = std::make_shared<uint32_t>(0);
  if (flags >= RDMA_MC_JOIN_FLAG_RESERVED) return EINVAL;
  std::unique_lock guard(lock_);
  if (device_ == nullptr || !service_.datagram) return EINVAL;
  if (state_ != CmIdState::kBound && state_ != CmIdState::kAddressResolved) return EINVAL;
  if (!is_roce()) return ENOSYS;
  if (group.is_any()) return EINVAL;
  // Quick, and calls nothing back: the lock may stay.
  const int error = transport_.check_group(*device_, ip_of(local_), group);
  number = table_.name_group();
  groups_.push_back({number, reported});
  if (qkey_ == 0) qkey_ = kCmQkey;
  auto event =
      event_locked(error == 0 ? CmEventType::kMulticastJoin : CmEventType::kMulticastError, -error);
  event.uid = uid;
  event.id = number;
  if (error == 0) {
    event.param.ud.ah_attr = group_address(addresses_locked(), group);
    event.param.ud.qp_num = kCmPeerQpn;  // which is also the number of all members of a group
    event.param.ud.qkey = qkey_;
  }
  guard.unlock();
  CmEventQueue::push(events_, CmEvent{event, nullptr, std::move(reported)}, std::move(room));
  return 0;
}

std::optional<uint32_t> CmId::leave_group(uint32_t number) {
  std::shared_ptr<uint32_t> reported;
  {
    const std::lock_guard guard(lock_);
    const auto found = std::ranges::find(groups_, number, &Group::number);
    if (found == groups_.end()) return std::nullopt;
    reported = std::move(found->reported);
    groups_.erase(found);
  }
  return CmEventQueue::forget_group(*events_, reported);
}

}  // namespace uwarp
