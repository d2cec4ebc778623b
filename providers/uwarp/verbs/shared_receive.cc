// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/shared_receive.h"

#include <cerrno>
#include <memory>

#include "base/limits.h"
#include "connect/endpoint.h"
#include "verbs/boundary.h"
#include "verbs/post.h"

namespace uwarp {

namespace {

ibv_srq* make_srq(ibv_pd* base, ibv_srq_attr& attr) {
  static std::atomic<uint32_t> last_handle{0};
  VerbsPd& pd = VerbsPd::of(base);
  if (const int error = pd.device.refusal()) return fail(error);
  if (attr.max_wr < 1 || attr.max_wr > kMaxSrqWr || attr.max_sge > kMaxSrqSge) return fail(EINVAL);
  auto srq = std::make_unique<VerbsSrq>(pd, attr);
  if (!DeviceContext::take_place(pd.device.srq_count, kMaxSrq)) return fail(ENOMEM);
  pd.user_made();
  srq->base.context = pd.context;
  srq->base.handle = srq->number = ++last_handle;
  srq->type = IBV_SRQT_BASIC;
  return &srq.release()->base;
}

}  // namespace

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  return pointer_verb([&]() -> ibv_srq* { return make_srq(pd, init->attr); });
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  return pointer_verb([&]() -> ibv_srq* {
    constexpr uint32_t kOfOthers =
        IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    constexpr uint32_t kKnown = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
    const bool typed = (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
    if ((init->comp_mask & ~(kKnown | kOfOthers)) != 0) return fail(EINVAL);
    if (typed && raw_value(init->srq_type) > IBV_SRQT_TM) return fail(EINVAL);
    // Shared queues of XRC and of tag matching.
    if ((init->comp_mask & kOfOthers) != 0 || (typed && init->srq_type != IBV_SRQT_BASIC))
      return fail(EOPNOTSUPP);
    if ((init->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || init->pd == nullptr ||
        init->pd->context != context)
      return fail(EINVAL);
    return make_srq(init->pd, init->attr);
  });
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  *number = VerbsSrq::of(srq).number;
  return 0;
}

int destroy_srq(ibv_srq* base) {
  return errno_verb([&] {
    VerbsSrq& srq = VerbsSrq::of(base);
    DeviceContext& device = srq.domain.device;
    if (!device.alive()) return 0;
    if (srq.users.load(std::memory_order_acquire) != 0) return EBUSY;
    const uint32_t delivered = device.take_back_events(&srq.base, srq.async_events);
    wait_acknowledged(srq.base, srq.base.events_completed, delivered);
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
  return errno_verb([&] {
    VerbsSrq& srq = VerbsSrq::of(base);
    attr->max_wr = srq.queue.depth();
    attr->max_sge = srq.max_sge;
    attr->srq_limit = srq.queue.limit();
    return 0;
  });
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return errno_verb([&] {
    VerbsSrq& srq = VerbsSrq::of(base);
    PromisedStreams promised;
    const int error = post_receive_list(wr, bad_wr, [&](uint64_t wr_id, std::span<const Sge> sges) {
      return srq.queue.post(wr_id, sges);
    });
    promised.resume();
    return error;
  });
}

}  // namespace uwarp
