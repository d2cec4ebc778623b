// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/protection_domain.h"

#include <atomic>
#include <cerrno>
#include <memory>

#include "base/limits.h"
#include "base/log.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "verbs/boundary.h"

namespace uwarp {
namespace {

constinit SerialNumbers<uint32_t> handles;

constexpr uint32_t kParentDomainMask =
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;

}  // namespace

ibv_pd* alloc_pd(ibv_context* context) {
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  auto pd = std::make_unique<VerbsPd>(device);
  if (!DeviceContext::take_place(device.pd_count, settings().adapter.max_pd)) return fail(ENOMEM);
  pd->give_handle(context, pd->domain.handle = handles.next());
  return pd.release();
}

int dealloc_pd(ibv_pd* base) {
  VerbsPd& pd = VerbsPd::of(base);
  if (!pd.device.alive()) return 0;
  if (pd.in_use()) return EBUSY;
  if (pd.thread != nullptr) pd.thread->users.fetch_sub(1, std::memory_order_release);
  if (pd.is_parent()) pd.domain.users.fetch_sub(1, std::memory_order_release);
  --pd.device.pd_count;
  pd.let_go();
  return 0;
}

// Allocators are taken and never called: the memory of our queues is ours, and no device reads it.
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init) {
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  if ((init->comp_mask & ~kParentDomainMask) != 0) return fail(EOPNOTSUPP);
  if (init->pd == nullptr) return fail(EINVAL);
  if (init->td != nullptr && init->td->context != context) return fail(EINVAL);
  // A parent of a parent is one of the same plain domain.
  VerbsPd& plain = VerbsPd::of(init->pd).root;
  if (&plain.device != &device) return fail(EINVAL);
  VerbsTd* thread = init->td != nullptr ? &VerbsTd::of(init->td) : nullptr;
  auto parent = std::make_unique<VerbsPd>(plain, thread);
  if (!DeviceContext::take_place(device.pd_count, settings().adapter.max_pd)) return fail(ENOMEM);
  plain.domain.users.fetch_add(1, std::memory_order_relaxed);
  if (thread != nullptr) thread->users.fetch_add(1, std::memory_order_relaxed);
  parent->give_handle(context, handles.next());
  return parent.release();
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* init) {
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  if (init != nullptr && init->comp_mask != 0) return fail(EINVAL);
  auto td = std::make_unique<VerbsTd>(device);
  td->context = context;
  return td.release();
}

int dealloc_td(ibv_td* base) {
  VerbsTd& td = VerbsTd::of(base);
  if (td.device.alive() && td.users.load(std::memory_order_acquire) != 0) return EBUSY;
  delete &td;
  return 0;
}

}  // namespace uwarp
