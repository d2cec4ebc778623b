// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/protection_domain.h"

#include <atomic>
#include <cerrno>
#include <memory>

#include "base/limits.h"
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
  delete &pd;
  return 0;
}

}  // namespace uwarp
