// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/shared_receive.h"

#include <algorithm>
#include <cerrno>

#include "base/limits.h"
#include "verbs/boundary.h"
#include "verbs/post.h"

namespace uwarp {

void VerbsSrq::attach(std::shared_ptr<Endpoint> endpoint) {
  const std::lock_guard guard(mutex_);
  endpoints_.push_back(std::move(endpoint));
}

void VerbsSrq::detach(const Endpoint* endpoint) {
  const std::lock_guard guard(mutex_);
  std::erase_if(endpoints_, [&](const auto& attached) { return attached.get() == endpoint; });
}

bool VerbsSrq::in_use() {
  const std::lock_guard guard(mutex_);
  return !endpoints_.empty();
}

void VerbsSrq::wake() {
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  {
    const std::lock_guard guard(mutex_);
    endpoints = endpoints_;
  }
  for (const auto& endpoint : endpoints) endpoint->resume();
}

ibv_srq* create_srq(ibv_pd* base, ibv_srq_init_attr* init) {
  return pointer_verb([&]() -> ibv_srq* {
    static std::atomic<uint32_t> last_handle{0};
    VerbsPd& pd = VerbsPd::of(base);
    if (!pd.device.alive()) return fail(ENODEV);
    if (init->attr.max_wr < 1 || init->attr.max_wr > kMaxSrqWr || init->attr.max_sge > kMaxSrqSge)
      return fail(EINVAL);
    auto srq = std::make_unique<VerbsSrq>(pd, init->attr);
    if (!DeviceContext::take_place(pd.device.srq_count, kMaxSrq)) return fail(ENOMEM);
    pd.user_made();
    srq->base.context = pd.context;
    srq->base.handle = srq->number = ++last_handle;
    srq->type = IBV_SRQT_BASIC;
    return &srq.release()->base;
  });
}

int destroy_srq(ibv_srq* base) {
  return errno_verb([&] {
    VerbsSrq& srq = VerbsSrq::of(base);
    DeviceContext& device = srq.domain.device;
    if (!device.alive()) return 0;
    if (srq.in_use()) return EBUSY;
    device.take_back_events(&srq.base);
    wait_acknowledged(srq.base, srq.base.events_completed, srq.async_events);
    srq.domain.user_gone();
    --device.srq_count;
    delete &srq;
    return 0;
  });
}

int modify_srq(ibv_srq* base, ibv_srq_attr* attr, int mask) {
  return errno_verb([&] {
    if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
    SharedReceiveQueue& queue = VerbsSrq::of(base).queue;
    if ((mask & IBV_SRQ_MAX_WR) != 0) {
      if (attr->max_wr < 1 || attr->max_wr > kMaxSrqWr) return EINVAL;
      if (int error = queue.resize(attr->max_wr)) return error;
    }
    return (mask & IBV_SRQ_LIMIT) != 0 ? queue.arm_limit(attr->srq_limit) : 0;
  });
}

int query_srq(ibv_srq* base, ibv_srq_attr* attr) {
  VerbsSrq& srq = VerbsSrq::of(base);
  attr->max_wr = srq.queue.depth();
  attr->max_sge = srq.max_sge;
  attr->srq_limit = srq.queue.limit();
  return 0;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return errno_verb([&] {
    VerbsSrq& srq = VerbsSrq::of(base);
    const int error = post_receive_list(wr, bad_wr, [&](uint64_t wr_id, std::span<const Sge> sges) {
      return srq.queue.post(wr_id, sges);
    });
    if (srq.queue.claim_wakeup()) srq.wake();
    return error;
  });
}

}  // namespace uwarp
