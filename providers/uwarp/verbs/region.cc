// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/region.h"

#include <sys/mman.h>

#include <cerrno>
#include <memory>

#include "memory/fault_safe_copy.h"
#include "os/clock.h"
#include "verbs/boundary.h"
#include "verbs/device_memory.h"
#include "verbs/memory_check.h"

namespace uwarp {
namespace {

/// Flags without a meaning here that do no harm: page size and ordering are the kernel's business.
constexpr uint32_t kIgnored = uint32_t{IBV_ACCESS_HUGETLB} | uint32_t{IBV_ACCESS_OPTIONAL_RANGE};

/// Memory of the application as a region of it would be. EFAULT: not all of it is there (which is
/// no matter for a region on demand).
int shape_memory(void* address, size_t length, TaggedOffset first, uint32_t access,
                 RegionShape& shape) {
  if (wraps(reinterpret_cast<uintptr_t>(address), length) || wraps(first, length)) return EINVAL;
  const bool on_demand = (access & kAccessOnDemand) != 0;
  if (!on_demand) {
    if (int error = check_memory(address, length, (access & kAccessLocalWrite) != 0)) return error;
  }
  shape.address = address;
  shape.length_bytes = length;
  shape.first = first;
  shape.access = access & kMeaningfulAccess;
  shape.memory = on_demand ? MemoryKind::kOnDemand : MemoryKind::kPlain;
  return 0;
}

/// What the region is to become; EINVAL or EFAULT if it cannot.
int shape_change(const VerbsMr& mr, int flags, void* address, size_t length, uint32_t access,
                 RegionShape& shape) {
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) == 0) access = mr.access;
  if (int error = check_region_access(access)) return error;
  const bool zero_based = (access & kAccessZeroBased) != 0;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    const TaggedOffset first = zero_based ? 0 : reinterpret_cast<uintptr_t>(address);
    return shape_memory(address, length, first, access, shape);
  }
  const RegionShape now = mr.region->shape();
  TaggedOffset first = now.first;
  if (zero_based != ((mr.access & kAccessZeroBased) != 0))
    first = zero_based ? 0 : reinterpret_cast<uintptr_t>(now.address);
  return shape_memory(now.address, now.length_bytes, first, access, shape);
}

void describe(VerbsMr& mr) {
  DeviceContext& device = mr.domain->device;
  StatPage& page = device.engine().stat_page();
  const SlotChange change(mr.slot->head);
  if (mr.slot->created_ns == 0) mr.slot->created_ns = wall_clock_ns();
  mr.slot->device = page.device(device.device().verbs_name);
  const RegionShape shape = mr.region->shape();
  mr.slot->access = shape.access;
  mr.slot->address = reinterpret_cast<uintptr_t>(shape.address);
  mr.slot->bytes = shape.length_bytes;
  mr.slot->head.live.store(1, std::memory_order_relaxed);
}

}  // namespace

Mapping::~Mapping() {
  if (bytes_ != 0) munmap(address_, bytes_);
}

int check_region_access(uint32_t access) {
  if (access & ~(kMeaningfulAccess | kIgnored)) return EINVAL;
  if ((access & (kAccessRemoteWrite | kAccessRemoteAtomic)) && !(access & kAccessLocalWrite))
    return EINVAL;
  // Some sandboxes forbid the system calls that make such memory safe to touch.
  if ((access & kAccessOnDemand) && !fault_safe_copy_works()) return EOPNOTSUPP;
  return 0;
}

int enter_region(VerbsMr& mr, RegionShape shape, uint32_t type) {
  VerbsPd& pd = *mr.domain;
  shape.domain = &pd.domain;
  mr.slot = SlotLease<RegionSlot>(pd.device.engine().stat_page());
  pd.device.add(&mr);  // may fail, as what went before; nothing fails behind the next step
  auto region = pd.device.engine().regions().add(shape);
  if (!region) {
    pd.device.remove(&mr);
    return region.error();
  }
  mr.region = *region;
  mr.give_handle(pd.context, mr.region->slot);
  mr.base.pd = &pd;
  mr.base.addr = shape.address;
  mr.base.length = shape.length_bytes;
  mr.base.lkey = mr.region->key.load(std::memory_order_relaxed);
  mr.base.rkey = mr.base.lkey;
  mr.type = type;
  describe(mr);
  pd.object_made();
  pd.root.keep();
  return 0;
}

ibv_mr* reg_mr(ibv_pd* base, void* address, size_t length, uint64_t iova, int flags) {
  return pointer_verb([&]() -> ibv_mr* {
    VerbsPd& pd = VerbsPd::of(base);
    if (const int error = pd.device.refusal()) return fail(error);
    const uint32_t access = static_cast<uint32_t>(flags);
    if (int error = check_region_access(access)) return fail(error);
    RegionShape shape;
    const TaggedOffset first = (access & kAccessZeroBased) ? 0 : iova;
    if (int error = shape_memory(address, length, first, access, shape)) return fail(error);
    auto mr = std::make_unique<VerbsMr>(pd);
    mr->access = access;
    if (int error = enter_region(*mr, shape, object_abi::kMrTypeRegular)) return fail(error);
    return &mr.release()->base;
  });
}

ibv_mr* alloc_null_mr(ibv_pd* base) {
  return pointer_verb([&]() -> ibv_mr* {
    VerbsPd& pd = VerbsPd::of(base);
    if (const int error = pd.device.refusal()) return fail(error);
    auto mr = std::make_unique<VerbsMr>(pd);
    RegionShape shape;
    shape.length_bytes = kMaxMrBytes;
    shape.access = kAccessLocalWrite;
    shape.memory = MemoryKind::kNull;
    if (int error = enter_region(*mr, shape, object_abi::kMrTypeNull)) return fail(error);
    return &mr.release()->base;
  });
}

// libibverbs has checked the flags against each other, and reports what fails here as
// IBV_REREG_MR_ERR_CMD; the region is then what it was. It sets pd, addr and length afterwards.
int rereg_mr(ibv_mr* base, int flags, ibv_pd* new_pd, void* address, size_t length, int access) {
  return errno_verb([&] {
    VerbsMr& mr = VerbsMr::of(base);
    VerbsPd& old_domain = *mr.domain;
    if (const int error = old_domain.device.refusal()) return error;
    if (mr.type != object_abi::kMrTypeRegular || mr.device_memory != nullptr) return EINVAL;
    const bool moves = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
    if (moves && new_pd == nullptr) return EINVAL;
    VerbsPd& domain = moves ? VerbsPd::of(new_pd) : old_domain;
    if (&domain.device != &old_domain.device) return EINVAL;
    const uint32_t new_access = static_cast<uint32_t>(access);
    RegionShape shape;
    if (int refused = shape_change(mr, flags, address, length, new_access, shape)) return refused;
    shape.domain = &domain.domain;
    if (int refused = domain.device.engine().change_region(*mr.region, shape)) return refused;
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) mr.access = new_access;
    describe(mr);
    if (!moves) return 0;
    mr.domain = &domain;
    domain.object_made();
    domain.root.keep();
    VerbsPd& left = old_domain.root;
    old_domain.object_gone();
    left.let_go();
    return 0;
  });
}

int dereg_mr(ibv_mr* base) {
  return errno_verb([&] {
    VerbsMr& mr = VerbsMr::of(base);
    VerbsPd& pd = *mr.domain;
    DeviceContext& device = pd.device;
    if (!device.alive()) return 0;
    if (int error = device.engine().remove_region(*mr.region)) return error;
    device.remove(&mr);
    if (mr.device_memory != nullptr) mr.device_memory->region_gone();
    delete &mr;
    VerbsPd& root = pd.root;
    pd.object_gone();  // a parent domain may be deallocated from here on
    root.let_go();
    return 0;
  });
}

}  // namespace uwarp
