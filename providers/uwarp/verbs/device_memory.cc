// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/device_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/limits.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "verbs/boundary.h"

namespace uwarp {
namespace {

// The copy calls take multiples of this only, as on adapters that have such memory.
constexpr size_t kCopyUnit = 4;
constexpr uint32_t kLargestLogAlignment = 30;

/// What regions of device memory may be: always zero-based, never bound to windows on demand.
constexpr uint32_t kKnownAccess = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                  kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased |
                                  uint32_t{IBV_ACCESS_OPTIONAL_RANGE};

int check_copy(const VerbsDm& dm, uint64_t offset, size_t length) {
  return !dm.contains(offset, length) || offset % kCopyUnit != 0 || length % kCopyUnit != 0 ? EFAULT
                                                                                            : 0;
}

int copy_to(ibv_dm* base, uint64_t offset, const void* from, size_t length) {
  VerbsDm& dm = VerbsDm::unchecked(base);
  if (int error = check_copy(dm, offset, length)) return error;
  std::memcpy(dm.start + offset, from, length);
  return 0;
}

int copy_from(void* to, ibv_dm* base, uint64_t offset, size_t length) {
  VerbsDm& dm = VerbsDm::unchecked(base);
  if (int error = check_copy(dm, offset, length)) return error;
  std::memcpy(to, dm.start + offset, length);
  return 0;
}

/// Takes `bytes` of what the device has. False: there is not as much left.
bool take_bytes(DeviceContext& device, uint64_t bytes) {
  uint64_t taken = device.dm_bytes.load(std::memory_order_relaxed);
  do {
    if (bytes > settings().adapter.max_dm_size - taken) return false;
  } while (!device.dm_bytes.compare_exchange_weak(taken, taken + bytes));
  return true;
}

}  // namespace

// Memory of the process and nothing else, so that it serves a forked child as well.
ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) {
  static constinit SerialNumbers<uint32_t> handles;
  DeviceContext& device = DeviceContext::of(context);
  if (attr->comp_mask != 0 || attr->length == 0 || attr->log_align_req > kLargestLogAlignment)
    return fail(EINVAL);
  if (attr->length > settings().adapter.max_dm_size) return fail(ENOMEM);
  const size_t alignment = size_t{1} << attr->log_align_req;
  const size_t bytes = attr->length + alignment;  // enough for an aligned start
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return fail(errno);
  Mapping mapping(address, bytes);
  std::byte* const start =
      mapping.address() + (-reinterpret_cast<uintptr_t>(address) & (alignment - 1));
  auto dm = std::make_unique<VerbsDm>(device, std::move(mapping), start, attr->length);
  if (!take_bytes(device, attr->length)) return fail(ENOMEM);
  dm->give_handle(context, handles.next());
  dm->memcpy_to_dm = copy_to;
  dm->memcpy_from_dm = copy_from;
  return dm.release();
}

int free_dm(ibv_dm* base) {
  VerbsDm& dm = VerbsDm::of(base);
  if (dm.device.alive() && dm.users.load(std::memory_order_acquire) != 0) return EBUSY;
  dm.device.dm_bytes.fetch_sub(dm.length_bytes, std::memory_order_relaxed);
  delete &dm;
  return 0;
}

ibv_mr* reg_dm_mr(ibv_pd* base, ibv_dm* base_dm, uint64_t offset, size_t length, unsigned access) {
  VerbsPd& pd = VerbsPd::of(base);
  VerbsDm& dm = VerbsDm::of(base_dm);
  if (const int error = pd.device.refusal()) return fail(error);
  if ((access & ~kKnownAccess) != 0 || (access & kAccessZeroBased) == 0) return fail(EINVAL);
  if (int error = check_region_access(access)) return fail(error);
  if (dm.context != pd.context || !dm.contains(offset, length)) return fail(EINVAL);
  auto mr = std::make_unique<VerbsMr>(pd);
  RegionShape shape;
  shape.address = dm.start + offset;
  shape.length_bytes = length;
  shape.access = access & kMeaningfulAccess;
  mr->device_memory = &dm;
  mr->access = access;
  if (int error = enter_region(*mr, shape, object_abi::kMrTypeRegular)) return fail(error);
  dm.users.fetch_add(1, std::memory_order_relaxed);
  mr->base.addr = nullptr;  // it is not the application's
  return &mr.release()->base;
}

}  // namespace uwarp
