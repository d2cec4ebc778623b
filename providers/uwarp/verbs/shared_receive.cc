// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/shared_receive.h"

#include <cerrno>
#include <memory>

#include "base/limits.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "connect/endpoint.h"
#include "verbs/boundary.h"
#include "verbs/post.h"

namespace uwarp {

void VerbsSrq::enter_domain(VerbsXrcd& xrc, VerbsCq& completions) {
  entry = {number, &queue, &completions.queue, &domain.domain};
  xrc.domain->enter(entry);
  opened = &xrc;
  type = IBV_SRQT_XRC;
  xrcd = &xrc.base;
  cq = &completions.base;
  completions.users.fetch_add(1, std::memory_order_relaxed);
  xrc.users.fetch_add(1, std::memory_order_relaxed);
}

void VerbsSrq::leave_domain() {
  if (opened == nullptr || !domain.device.alive()) return;
  domain.device.engine().remove_xrc_queue(*opened->domain, entry);
  VerbsCq::unchecked(cq).users.fetch_sub(1, std::memory_order_release);
  opened->users.fetch_sub(1, std::memory_order_release);
  opened = nullptr;
}

namespace {

/// `xrcd` and `cq` are null for a shared queue of the basic type.
ibv_srq* make_srq(ibv_pd* base, ibv_srq_attr& attr, ibv_xrcd* xrcd = nullptr,
                  ibv_cq* cq = nullptr) {
  static constinit SerialNumbers<uint32_t> handles(kFirstSharedQueue);
  VerbsPd& pd = VerbsPd::of(base);
  if (const int error = pd.device.refusal()) return fail(error);
  const AdapterProfile& most = settings().adapter;
  if (most.max_srq == 0) return fail(EOPNOTSUPP);
  if (attr.max_wr < 1 || attr.max_wr > most.max_srq_wr || attr.max_sge > most.max_srq_sge)
    return fail(EINVAL);
  auto srq = std::make_unique<VerbsSrq>(pd, attr);
  srq->give_handle(pd.context, srq->number = handles.next());
  srq->base.pd = base;
  srq->type = IBV_SRQT_BASIC;
  if (xrcd != nullptr) srq->enter_domain(VerbsXrcd::of(xrcd), VerbsCq::of(cq));
  if (!DeviceContext::take_place(pd.device.srq_count, most.max_srq)) return fail(ENOMEM);
  pd.user_made();
  return &srq.release()->base;
}

/// 0; EOPNOTSUPP: unknown extensions, tag matching, or XRC in a persona without it. EINVAL: no such
/// type, or what it needs is missing or of another device. Parts of XRC are not looked at for the
/// basic type.
int check_init(const ibv_context* context, const ibv_srq_init_attr_ex& init, ibv_srq_type type) {
  constexpr uint32_t kKnown = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE |
                              IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  const auto given = [&](uint32_t bit, const auto* part) {
    return (init.comp_mask & bit) != 0 && part != nullptr && part->context == context;
  };
  if ((init.comp_mask & ~kKnown) != 0) return EOPNOTSUPP;
  if (raw_value(type) > IBV_SRQT_TM) return EINVAL;
  if (type == IBV_SRQT_TM || (init.comp_mask & IBV_SRQ_INIT_ATTR_TM) != 0) return EOPNOTSUPP;
  if (!given(IBV_SRQ_INIT_ATTR_PD, init.pd)) return EINVAL;
  if (type != IBV_SRQT_XRC) return 0;
  if (const int error = check_xrc(*context)) return error;
  const bool whole =
      given(IBV_SRQ_INIT_ATTR_XRCD, init.xrcd) && given(IBV_SRQ_INIT_ATTR_CQ, init.cq);
  return whole ? 0 : EINVAL;
}

}  // namespace

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) { return make_srq(pd, init->attr); }

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  const bool typed = (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
  const ibv_srq_type type = typed ? init->srq_type : IBV_SRQT_BASIC;
  if (const int error = check_init(context, *init, type)) return fail(error);
  const bool xrc = type == IBV_SRQT_XRC;
  ibv_srq* srq = make_srq(init->pd, init->attr, xrc ? init->xrcd : nullptr, init->cq);
  if (srq != nullptr) srq->srq_context = init->srq_context;
  return srq;
}

int get_srq_num(ibv_srq* srq, uint32_t* number) {
  *number = VerbsSrq::unchecked(srq).number;
  return 0;
}

int destroy_srq(ibv_srq* base) {
  VerbsSrq& srq = VerbsSrq::of(base);
  DeviceContext& device = srq.domain.device;
  if (!device.alive()) return 0;
  if (srq.users.load(std::memory_order_acquire) != 0) return EBUSY;
  srq.leave_domain();
  const uint32_t delivered = device.take_back_events(&srq.base, srq.async_events);
  wait_acknowledged(srq.base, srq.base.events_completed, delivered);
  srq.domain.user_gone();
  --device.srq_count;
  delete &srq;
  return 0;
}

int modify_srq(ibv_srq* base, ibv_srq_attr* attr, int mask) {
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
  SharedReceiveQueue& queue = VerbsSrq::of(base, AskedBy::kWrite).queue;
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    if (attr->max_wr < 1 || attr->max_wr > settings().adapter.max_srq_wr) return EINVAL;
    // All is changed, or nothing.
    if ((mask & IBV_SRQ_LIMIT) != 0 && attr->srq_limit > attr->max_wr) return EINVAL;
    if (int error = queue.resize(attr->max_wr)) return error;
  }
  return (mask & IBV_SRQ_LIMIT) != 0 ? queue.arm_limit(attr->srq_limit) : 0;
}

int query_srq(ibv_srq* base, ibv_srq_attr* attr) {
  VerbsSrq& srq = VerbsSrq::of(base, AskedBy::kWrite);
  attr->max_wr = srq.queue.depth();
  attr->max_sge = srq.max_sge;
  attr->srq_limit = srq.queue.limit();
  return 0;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return guarded_errno([&] {
    VerbsSrq& srq = VerbsSrq::unchecked(base);
    PromisedStreams promised;
    const int error = post_receive_list(wr, bad_wr, [&](uint64_t wr_id, std::span<const Sge> sges) {
      return srq.queue.post(wr_id, sges);
    });
    promised.resume();
    return error;
  });
}

}  // namespace uwarp
