// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_advise_mr: brings pages of regions on demand in before they are used.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "memory/fault_safe_copy.h"
#include "verbs/boundary.h"
#include "verbs/region.h"

namespace uwarp {
namespace {

// Of Linux 5.14, for systems with older headers.
constexpr int kMadvisePopulateRead = 22;
constexpr int kMadvisePopulateWrite = 23;

/// One page after the other, where the kernel cannot do all at once or does not say what is wrong.
int touch_pages(uintptr_t begin, uintptr_t end, uintptr_t page, bool writable) {
  for (uintptr_t at = begin & ~(page - 1); at < end; at += page) {
    auto* address = reinterpret_cast<std::byte*>(at);
    std::byte byte;
    if (!fault_safe_read(&byte, address, 1) || (writable && !fault_safe_probe(address)))
      return EFAULT;
  }
  return 0;
}

int bring_in(std::byte* address, uint64_t length, bool writable) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address), end = begin + length;
  const uintptr_t first = begin & ~(page - 1);
  const int advice = writable ? kMadvisePopulateWrite : kMadvisePopulateRead;
  if (madvise(reinterpret_cast<void*>(first), end - first, advice) == 0) return 0;
  return errno == ENOMEM ? EFAULT : touch_pages(begin, end, page, writable);
}

/// The place that an element names, with the manual page's errno for each thing it must be.
int find_place(const VerbsPd& pd, const ibv_sge& sge, bool writable, LocalPlace& place) {
  const RegionTable& table = pd.device.engine().regions();
  RegionFault fault;
  place = table.local(sge.lkey, sge.addr, sge.length, writable ? uint32_t{kAccessLocalWrite} : 0,
                      pd.domain, fault);
  if (place) return place.memory == MemoryKind::kOnDemand ? 0 : EINVAL;
  return fault == RegionFault::kRights || fault == RegionFault::kWrongDomain ? EPERM : EFAULT;
}

}  // namespace

int advise_mr(ibv_pd* base, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* list,
              uint32_t count) {
  return errno_verb([&] {
    const VerbsPd& pd = VerbsPd::of(base);
    if (const int error = pd.device.refusal()) return error;
    const unsigned number = raw_value(advice);
    if (number > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return ENOTSUP;
    if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0 || count == 0 || list == nullptr)
      return EINVAL;
    const bool writable = number == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    for (uint32_t i = 0; i < count; ++i) {
      LocalPlace place;
      if (int error = find_place(pd, list[i], writable, place)) return error;
      // Pages that are there already need nothing: the device is the CPU.
      if (number == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || list[i].length == 0) continue;
      if (int error = bring_in(place.address, list[i].length, writable)) return error;
    }
    return 0;
  });
}

}  // namespace uwarp
