// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/region.h"

#include <cerrno>
#include <memory>

#include "verbs/boundary.h"
#include "verbs/memory_check.h"
#include "verbs/protection_domain.h"

namespace uwarp {
namespace {

/// Flags without a meaning here that do no harm: page size and ordering are the kernel's business.
constexpr uint32_t kIgnored = uint32_t{IBV_ACCESS_HUGETLB} | uint32_t{IBV_ACCESS_OPTIONAL_RANGE};
constexpr uint32_t kMeaningful = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                 kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased;

/// The manual page's rules. EINVAL; EOPNOTSUPP for what is known but not offered.
int check_access(uint32_t access) {
  if (access & kAccessOnDemand) return EOPNOTSUPP;
  if (access & ~(kMeaningful | kIgnored)) return EINVAL;
  if ((access & (kAccessRemoteWrite | kAccessRemoteAtomic)) && !(access & kAccessLocalWrite))
    return EINVAL;
  return 0;
}

bool wraps(uint64_t first, uint64_t length) { return first + length < first; }

}  // namespace

ibv_mr* reg_mr(ibv_pd* base, void* address, size_t length, uint64_t iova, int flags) {
  return pointer_verb([&]() -> ibv_mr* {
    VerbsPd& pd = VerbsPd::of(base);
    if (!pd.device.alive()) return fail(ENODEV);
    const uint32_t access = static_cast<uint32_t>(flags);
    const uint64_t first = (access & kAccessZeroBased) ? 0 : iova;
    if (int error = check_access(access)) return fail(error);
    if (wraps(reinterpret_cast<uintptr_t>(address), length) || wraps(first, length))
      return fail(EINVAL);
    if (int error = check_memory(address, length, (access & kAccessLocalWrite) != 0))
      return fail(error);
    auto mr = std::make_unique<VerbsMr>();
    auto region =
        pd.device.engine().regions().add(pd.domain, address, length, first, access & kMeaningful);
    if (!region) return fail(region.error());
    mr->region = *region;
    mr->base.context = pd.context;
    mr->base.pd = &pd;
    mr->base.addr = address;
    mr->base.length = length;
    mr->base.lkey = mr->region->lkey.load(std::memory_order_relaxed);
    mr->base.rkey = mr->region->rkey.load(std::memory_order_relaxed);
    mr->base.handle = mr->region->slot;
    mr->type = object_abi::kMrTypeRegular;
    mr->access = access;
    pd.device.add(mr.get());
    return &mr.release()->base;
  });
}

int dereg_mr(ibv_mr* base) {
  return errno_verb([&] {
    VerbsMr& mr = VerbsMr::of(base);
    VerbsPd& pd = VerbsPd::of(mr.base.pd);
    DeviceContext& device = pd.device;
    if (!device.alive()) return 0;
    if (int error = device.engine().remove_region(*mr.region)) return error;
    device.remove(&mr);
    delete &mr;
    region_left(pd);
    return 0;
  });
}

}  // namespace uwarp
