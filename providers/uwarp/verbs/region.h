// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_mr: the application's handle of a region in the engine's table. Its memory is the
// application's (also on demand), a dma-buf's, a device memory's, or none.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernel-abi/object_abi.h"
#include "memory/region_table.h"
#include "observe/stat_page.h"
#include "qp/work_request.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"

namespace uwarp {

// Whether memory may be registered: a kernel would find out by pinning it, we ask for the mapping.
// Knows nothing of regions or keys; touches no page of the memory itself.

/// Checks that all of [address, address + length) is mapped, readable, and writable if asked.
/// Returns 0, or EFAULT. Where the kernel offers no way to know (no /proc), only holes are found.
/// Length 0 is always right; the range must not wrap.
int check_memory(const void* address, size_t length, bool writable);

/// The same by one method each, for tests. ENOSYS: this system cannot answer.
int check_memory_by_query(uintptr_t begin, uintptr_t end, bool writable);
int check_memory_by_maps(uintptr_t begin, uintptr_t end, bool writable);
int check_memory_by_msync(uintptr_t begin, uintptr_t end);

// ibv_mw: the application's handle of a memory window. The window itself, and what may be done to
// it, is in the engine's region table; binding and invalidating are work requests.
struct VerbsMw : ibv_mw, Named<VerbsMw, ibv_mw> {
  VerbsMw(VerbsPd& domain, MemoryRegion& window) : ibv_mw{}, domain(domain), window(window) {}
  VerbsPd& domain;
  MemoryRegion& window;
};

/// What binding `mw` asks of the engine. The low byte of `key` is that of the key to be valid
/// afterwards, out.rkey; the rest of it is the window's, whatever `key` says there, as with mlx5
/// and rxe. Once it is posted mw.rkey is that key. Leaves wr_id and flags. EINVAL: rights that no
/// window can give, or no region to bind to.
int bind_request(const ibv_mw& mw, uint32_t key, const ibv_mw_bind_info& bind, SendRequest& out);

struct VerbsDm;

/// A mapping that goes with the region that was made of it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(other.address_), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* address() const { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/// libibverbs reads the private tail, and fills in context, pd, addr and length itself.
struct VerbsMr : object_abi::Mr, Named<VerbsMr, object_abi::Mr, ibv_mr> {
  explicit VerbsMr(VerbsPd& pd) : object_abi::Mr{}, domain(&pd) {}
  VerbsPd* domain;
  MemoryRegion* region = nullptr;
  VerbsDm* device_memory = nullptr;  // that it shows, or null
  Mapping mapping;                   // of a dma-buf
  SlotLease<RegionSlot> slot;        // what others see of it
};

/// Enters `mr` into the table and the device. `shape.domain` is set here. 0, or an errno.
int enter_region(VerbsMr& mr, RegionShape shape, uint32_t type);

/// The manual page's rules for access flags that a region may have.
int check_region_access(uint32_t access);

/// Flags that the table keeps; the others mean nothing once a region exists.
inline constexpr uint32_t kMeaningfulAccess = kAccessLocalWrite | kAccessRemoteWrite |
                                              kAccessRemoteRead | kAccessRemoteAtomic |
                                              kAccessMwBind | kAccessZeroBased | kAccessOnDemand;

/// Whether [first, first + length) runs over the end of the numbers.
constexpr bool wraps(uint64_t first, uint64_t length) { return first + length < first; }

}  // namespace uwarp
