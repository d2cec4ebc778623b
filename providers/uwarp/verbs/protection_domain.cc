// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/protection_domain.h"

#include <atomic>
#include <cerrno>
#include <memory>

#include "base/limits.h"
#include "base/log.h"
#include "verbs/boundary.h"

namespace uwarp {

ibv_pd* alloc_pd(ibv_context* context) {
  return pointer_verb([&]() -> ibv_pd* {
    static std::atomic<uint32_t> last_handle{0};
    DeviceContext& device = DeviceContext::of(context);
    if (!device.alive()) return fail(ENODEV);
    auto pd = std::make_unique<VerbsPd>(device);
    if (!DeviceContext::take_place(device.pd_count, kMaxPd)) return fail(ENOMEM);
    pd->context = context;
    pd->handle = pd->domain.handle = ++last_handle;
    return pd.release();
  });
}

int dealloc_pd(ibv_pd* base) {
  VerbsPd& pd = VerbsPd::of(base);
  if (!pd.device.alive()) return 0;
  if (pd.domain.users.load(std::memory_order_acquire) != 0) return EBUSY;
  --pd.device.pd_count;
  // Without queue pairs nobody can reach a region any more, so one that was forgotten is no reason
  // to refuse: ib_send_bw leaves its credit region behind on iWARP and would report a failure.
  const bool empty = pd.domain.regions.load(std::memory_order_acquire) == 0;
  if (!empty) log_event("%s: protection domain deallocated with regions left",
                        pd.context->device->name);
  pd.abandoned.store(true, std::memory_order_release);
  if (empty) delete &pd;
  return 0;
}

void region_left(VerbsPd& pd) {
  if (pd.abandoned.load(std::memory_order_acquire) &&
      pd.domain.regions.load(std::memory_order_acquire) == 0)
    delete &pd;
}

}  // namespace uwarp
