// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about domains, regions, windows and device memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

using Mw = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;
using Dm = std::unique_ptr<ibv_dm, Destroyer<ibv_free_dm>>;
using Td = std::unique_ptr<ibv_td, Destroyer<ibv_dealloc_td>>;

constexpr uint64_t kNowhere = uint64_t{1} << 46;
constexpr int kFlushGlobal = 1 << 8;
constexpr int kFlushPersistent = 1 << 9;
constexpr uint64_t kLastPage = ~uint64_t{Ground::kPage - 1};

int reg_mr(Ground& g, uint64_t address, size_t length, int access = 0) {
  return outcome<ibv_dereg_mr>(
      (ibv_reg_mr)(g.pd.get(), reinterpret_cast<void*>(address), length, access));
}

int reg_access(Ground& g, int access) { return reg_mr(g, g.page_address(), 64, access); }

int reg_iova(Ground& g, uint64_t iova, size_t length = 64, int access = 0) {
  return outcome<ibv_dereg_mr>((ibv_reg_mr_iova)(g.pd.get(), g.page(), length, iova, access));
}

int reg_read_only(Ground& g, int access) {
  void* const memory = mmap(nullptr, Ground::kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int result = reg_mr(g, reinterpret_cast<uint64_t>(memory), Ground::kPage, access);
  munmap(memory, Ground::kPage);
  return result;
}

/// What ibv_rereg_mr() gives; by errno where it only says that the command failed.
int rereg(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) {
  const int result = ibv_rereg_mr(mr, flags, pd, address, length, access);
  return result == IBV_REREG_MR_ERR_CMD || result == IBV_REREG_MR_ERR_INPUT ? errno : result;
}

/// Of a region that stays as it was.
int rereg(Ground& g, int flags, ibv_pd* pd, uint64_t address, size_t length, int access) {
  const Mr mr = g.region();
  const int result = rereg(mr.get(), flags, pd, reinterpret_cast<void*>(address), length, access);
  EXPECT_EQ(mr->addr, result != 0 ? g.page() : reinterpret_cast<void*>(address));
  EXPECT_EQ(mr->pd, g.pd.get());
  return result;
}

int rereg_access(Ground& g, int access) {
  const Mr mr = g.region();
  return rereg(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access);
}

int rereg_null(Ground& g) {
  const Mr mr(ibv_alloc_null_mr(g.pd.get()));
  return rereg(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0);
}

Dm device_memory(Ground& g) {
  ibv_alloc_dm_attr attr = {};
  attr.length = 64;
  return Dm(ibv_alloc_dm(g.context, &attr));
}

int alloc_dm(Ground& g, size_t length, uint32_t alignment = 0, uint32_t mask = 0) {
  ibv_alloc_dm_attr attr = {};
  attr.length = length;
  attr.log_align_req = alignment;
  attr.comp_mask = mask;
  return outcome<ibv_free_dm>(ibv_alloc_dm(g.context, &attr));
}

int reg_dm(Ground& g, uint64_t offset, size_t length, unsigned access = IBV_ACCESS_ZERO_BASED) {
  const Dm dm = device_memory(g);
  return outcome<ibv_dereg_mr>(ibv_reg_dm_mr(g.pd.get(), dm.get(), offset, length, access));
}

int reg_foreign_dm(Ground& g) {
  ibv_alloc_dm_attr attr = {};
  attr.length = 64;
  const Dm dm(ibv_alloc_dm(g.foreign().context.get(), &attr));
  return outcome<ibv_dereg_mr>(ibv_reg_dm_mr(g.pd.get(), dm.get(), 0, 64, IBV_ACCESS_ZERO_BASED));
}

int copy_to(Ground& g, uint64_t offset, size_t length) {
  return ibv_memcpy_to_dm(device_memory(g).get(), offset, g.page(), length);
}

int copy_from(Ground& g, uint64_t offset, size_t length) {
  return ibv_memcpy_from_dm(g.page(), device_memory(g).get(), offset, length);
}

/// Of a file of one page.
int reg_dmabuf(Ground& g, uint64_t offset, size_t length, uint64_t iova, int access = 0) {
  const int fd = memfd_create("memory", 0);
  EXPECT_EQ(ftruncate(fd, Ground::kPage), 0);
  const int result =
      outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd.get(), offset, length, iova, fd, access));
  close(fd);
  return result;
}

int advise(Ground& g, unsigned advice, uint32_t flags, uint32_t count, uint64_t offset = 0,
           int access = IBV_ACCESS_ON_DEMAND) {
  const Mr mr = g.region(access);
  ibv_sge place = {g.page_address() + offset, 64, mr->lkey};
  return ibv_advise_mr(g.pd.get(), number<ibv_advise_mr_advice>(advice), flags, &place, count);
}

int advise_in_other_domain(Ground& g) {
  const Pd other(ibv_alloc_pd(g.context));
  const Mr mr(ibv_reg_mr(other.get(), g.page(), 64, IBV_ACCESS_ON_DEMAND));
  ibv_sge place = {g.page_address(), 64, mr->lkey};
  return ibv_advise_mr(g.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &place, 1);
}

int alloc_mw(Ground& g, unsigned type) {
  return outcome<ibv_dealloc_mw>(ibv_alloc_mw(g.pd.get(), number<ibv_mw_type>(type)));
}

int bind_mw(Ground& g, const std::function<void(ibv_mw_bind&)>& spoil,
            ibv_mw_type type = IBV_MW_TYPE_1) {
  const Mr mr = g.region(kAllAccess | IBV_ACCESS_MW_BIND);
  const Mw mw(ibv_alloc_mw(g.pd.get(), type));
  ibv_mw_bind bind = {};
  bind.bind_info = {mr.get(), g.page_address(), 64, IBV_ACCESS_REMOTE_READ};
  spoil(bind);
  return ibv_bind_mw(g.qp.get(), mw.get(), &bind);
}

int bind_other_domains(Ground& g) {
  const Pd other(ibv_alloc_pd(g.context));
  const Mr mr(ibv_reg_mr(other.get(), g.page(), 64, kAllAccess | IBV_ACCESS_MW_BIND));
  return bind_mw(g, [&](auto& bind) { bind.bind_info.mr = mr.get(); });
}

int parent_domain(Ground& g, const std::function<void(ibv_parent_domain_init_attr&)>& spoil) {
  ibv_parent_domain_init_attr init = {};
  init.pd = g.pd.get();
  spoil(init);
  return outcome<ibv_dealloc_pd>(ibv_alloc_parent_domain(g.context, &init));
}

int parent_with_foreign_td(Ground& g) {
  ibv_td_init_attr attr = {};
  const Td td(ibv_alloc_td(g.foreign().context.get(), &attr));
  return parent_domain(g, [&](auto& init) { init.td = td.get(); });
}

int dealloc_used_td(Ground& g) {
  ibv_td_init_attr attr = {};
  const Td td(ibv_alloc_td(g.context, &attr));
  ibv_parent_domain_init_attr init = {};
  init.pd = g.pd.get();
  init.td = td.get();
  const Pd parent(ibv_alloc_parent_domain(g.context, &init));
  return ibv_dealloc_td(td.get());
}

int alloc_td(Ground& g, uint32_t mask) {
  ibv_td_init_attr attr = {mask};
  return outcome<ibv_dealloc_td>(ibv_alloc_td(g.context, &attr));
}

}  // namespace

Rows of_memory() {
  return {
      {"ibv_dealloc_pd", "pd", "something is left on it", EBUSY, "core: ib_dealloc_pd",
       [](Ground& g) { return ibv_dealloc_pd(g.pd.get()); }},
      {"ibv_alloc_td", "comp_mask", "unknown bit", EINVAL, "mlx5",
       [](Ground& g) { return alloc_td(g, 1u << 30); }},
      {"ibv_dealloc_td", "td", "a parent domain has it", EBUSY, "mlx5", dealloc_used_td},
      {"ibv_alloc_parent_domain", "pd", "null", EINVAL, "libibverbs",
       [](Ground& g) { return parent_domain(g, [](auto& init) { init.pd = nullptr; }); }},
      {"ibv_alloc_parent_domain", "pd", "of another context", EINVAL,
       "ours: mlx5 does not look, and the first object on it fails",
       [](Ground& g) {
         return parent_domain(g, [&](auto& init) { init.pd = g.foreign().pd.get(); });
       }},
      {"ibv_alloc_parent_domain", "td", "of another context", EINVAL, "libibverbs",
       parent_with_foreign_td},
      {"ibv_alloc_parent_domain", "comp_mask", "unknown bit", EOPNOTSUPP,
       "efa, hns: an extension that is not there. mlx5: EINVAL",
       [](Ground& g) { return parent_domain(g, [](auto& init) { init.comp_mask = 1u << 30; }); }},

      {"ibv_reg_mr", "addr", "not mapped", EFAULT, "core: ib_umem_get",
       [](Ground& g) { return reg_mr(g, kNowhere, 64); }},
      {"ibv_reg_mr", "addr", "null", EFAULT, "core: ib_umem_get",
       [](Ground& g) { return reg_mr(g, 0, 64); }},
      {"ibv_reg_mr", "addr", "of the kernel's half", EFAULT, "core: ib_umem_get",
       [](Ground& g) { return reg_mr(g, uint64_t{1} << 63, 64); }},
      {"ibv_reg_mr", "addr", "read-only memory, LOCAL_WRITE", EFAULT, "core: ib_umem_get",
       [](Ground& g) { return reg_read_only(g, IBV_ACCESS_LOCAL_WRITE); }},
      {"ibv_reg_mr", "addr", "read-only memory, no rights", 0, "core: ib_umem_get",
       [](Ground& g) { return reg_read_only(g, 0); }},
      {"ibv_reg_mr", "length", "0", 0,
       "ours: a key for messages of no bytes, which mlx5 and rxe make inside a page. At the start "
       "of "
       "one, and of siw always: EINVAL",
       [](Ground& g) { return reg_mr(g, g.page_address(), 0); }},
      {"ibv_reg_mr", "length", "one page more than is mapped", EFAULT, "core: ib_umem_get",
       [](Ground& g) { return reg_mr(g, kNowhere - Ground::kPage, 2 * Ground::kPage); }},
      {"ibv_reg_mr", "length", "the largest number", EINVAL, "core: ib_umem_get, counting in pages",
       [](Ground& g) { return reg_mr(g, 0, SIZE_MAX); }},
      {"ibv_reg_mr", "addr, length", "wraps", EINVAL, "core: ib_umem_get",
       [](Ground& g) { return reg_mr(g, g.page_address(), SIZE_MAX - 64); }},
      {"ibv_reg_mr", "addr, length", "ends in the last page of all numbers", EINVAL,
       "core: ib_umem_get", [](Ground& g) { return reg_mr(g, kLastPage, 64); }},
      {"ibv_reg_mr", "addr, length", "wraps, on demand", EOVERFLOW, "core: ib_umem_odp_get",
       [](Ground& g) { return reg_mr(g, g.page_address(), SIZE_MAX - 64, IBV_ACCESS_ON_DEMAND); }},
      {"ibv_reg_mr", "addr, length", "ends in the last page, on demand", EOVERFLOW,
       "core: ib_umem_odp_get",
       [](Ground& g) { return reg_mr(g, kLastPage, 64, IBV_ACCESS_ON_DEMAND); }},
      {"ibv_reg_mr", "addr, length", "all memory on demand, but from an address on", EINVAL,
       "libibverbs",
       [](Ground& g) { return reg_mr(g, g.page_address(), SIZE_MAX, IBV_ACCESS_ON_DEMAND); }},
      {"ibv_reg_mr", "access", "REMOTE_WRITE without LOCAL_WRITE", EINVAL,
       "manual page; core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, IBV_ACCESS_REMOTE_WRITE); }},
      {"ibv_reg_mr", "access", "REMOTE_ATOMIC without LOCAL_WRITE", EINVAL,
       "manual page; core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, IBV_ACCESS_REMOTE_ATOMIC); }},
      {"ibv_reg_mr", "access", "REMOTE_READ alone", 0, "core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, IBV_ACCESS_REMOTE_READ); }},
      {"ibv_reg_mr", "access", "unknown bit", EINVAL, "core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, 1 << 19); }},
      {"ibv_reg_mr", "access", "the highest bit", EINVAL, "core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, static_cast<int>(1u << 31)); }},
      {"ibv_reg_mr", "access", "FLUSH_GLOBAL", EOPNOTSUPP, "core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, kFlushGlobal); }},
      {"ibv_reg_mr", "access", "FLUSH_PERSISTENT", EOPNOTSUPP, "core: ib_check_mr_access",
       [](Ground& g) { return reg_access(g, kFlushPersistent); }},
      {"ibv_reg_mr", "access", "unknown bits of the optional range", 0, "manual page: ignored",
       [](Ground& g) { return reg_access(g, 1 << 28); }},
      {"ibv_reg_mr_iova", "iova", "another offset in its page", EINVAL, "uverbs: reg_mr",
       [](Ground& g) { return reg_iova(g, 1); }},
      {"ibv_reg_mr_iova", "iova", "another offset in its page, zero-based", EINVAL,
       "uverbs: reg_mr", [](Ground& g) { return reg_iova(g, 64, 64, IBV_ACCESS_ZERO_BASED); }},
      {"ibv_reg_mr_iova", "iova, length", "wraps", EINVAL,
       "ours: no request could name its end; drivers do not look",
       [](Ground& g) { return reg_iova(g, kLastPage, 2 * Ground::kPage); }},

      {"ibv_rereg_mr", "flags", "0", EINVAL, "uverbs: rereg_mr",
       [](Ground& g) { return rereg(g, 0, nullptr, g.page_address(), 0, 0); }},
      {"ibv_rereg_mr", "flags", "unknown bit", EINVAL, "libibverbs",
       [](Ground& g) { return rereg(g, 8, nullptr, g.page_address(), 64, 0); }},
      {"ibv_rereg_mr", "addr", "null", EINVAL, "libibverbs",
       [](Ground& g) { return rereg(g, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, 0, 64, 0); }},
      {"ibv_rereg_mr", "addr", "not mapped", EFAULT, "core: ib_umem_get",
       [](Ground& g) {
         return rereg(g, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, kNowhere, 64, 0);
       }},
      {"ibv_rereg_mr", "length", "0", EINVAL, "libibverbs",
       [](Ground& g) {
         return rereg(g, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, g.page_address(), 0, 0);
       }},
      {"ibv_rereg_mr", "addr, length", "wraps", EINVAL, "core: ib_umem_get",
       [](Ground& g) {
         return rereg(g, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, g.page_address(), SIZE_MAX, 0);
       }},
      {"ibv_rereg_mr", "access", "given without its flag", EINVAL, "libibverbs",
       [](Ground& g) {
         return rereg(g, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, g.page_address(), 64, 1);
       }},
      {"ibv_rereg_mr", "access", "REMOTE_WRITE without LOCAL_WRITE", EINVAL,
       "core: ib_check_mr_access",
       [](Ground& g) { return rereg_access(g, IBV_ACCESS_REMOTE_WRITE); }},
      {"ibv_rereg_mr", "access", "unknown bit", EINVAL, "core: ib_check_mr_access",
       [](Ground& g) { return rereg_access(g, 1 << 19); }},
      {"ibv_rereg_mr", "access", "FLUSH_GLOBAL", EOPNOTSUPP, "core: ib_check_mr_access",
       [](Ground& g) { return rereg_access(g, kFlushGlobal); }},
      {"ibv_rereg_mr", "pd", "null", EINVAL, "ours: libibverbs dereferences it",
       [](Ground& g) { return rereg(g, IBV_REREG_MR_CHANGE_PD, nullptr, g.page_address(), 0, 0); }},
      {"ibv_rereg_mr", "pd", "of another context", EINVAL, "uverbs: rereg_mr",
       [](Ground& g) {
         return rereg(g, IBV_REREG_MR_CHANGE_PD, g.foreign().pd.get(), g.page_address(), 0, 0);
       }},
      {"ibv_rereg_mr", "mr", "a null region", EINVAL, "libibverbs", rereg_null},

      {"ibv_reg_dmabuf_mr", "fd", "-1, 0 bytes", EOPNOTSUPP, "NCCL, UCX: no memory of GPUs",
       [](Ground& g) {
         return outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd.get(), 0, 0, 0, -1, 0));
       }},
      {"ibv_reg_dmabuf_mr", "fd", "closed", EBADF, "uverbs: REG_DMABUF_MR",
       [](Ground& g) {
         return outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd.get(), 0, 64, 0, 1 << 20, 0));
       }},
      {"ibv_reg_dmabuf_mr", "length", "0", EINVAL, "core: ib_umem_dmabuf_get",
       [](Ground& g) { return reg_dmabuf(g, 0, 0, 0); }},
      {"ibv_reg_dmabuf_mr", "length", "behind the end of the file", EINVAL,
       "core: ib_umem_dmabuf_get",
       [](Ground& g) { return reg_dmabuf(g, 0, Ground::kPage + 1, 0); }},
      {"ibv_reg_dmabuf_mr", "offset, length", "wraps", EINVAL, "core: ib_umem_dmabuf_get",
       [](Ground& g) { return reg_dmabuf(g, kLastPage, 2 * Ground::kPage, 0); }},
      {"ibv_reg_dmabuf_mr", "iova", "another offset in its page", EINVAL,
       "manual page; uverbs: REG_DMABUF_MR", [](Ground& g) { return reg_dmabuf(g, 0, 64, 1); }},
      {"ibv_reg_dmabuf_mr", "access", "ON_DEMAND", EINVAL, "manual page; uverbs: REG_DMABUF_MR",
       [](Ground& g) { return reg_dmabuf(g, 0, 64, 0, IBV_ACCESS_ON_DEMAND); }},
      {"ibv_reg_dmabuf_mr", "access", "MW_BIND", EINVAL, "manual page; uverbs: REG_DMABUF_MR",
       [](Ground& g) { return reg_dmabuf(g, 0, 64, 0, IBV_ACCESS_MW_BIND); }},
      {"ibv_reg_dmabuf_mr", "access", "REMOTE_WRITE without LOCAL_WRITE", EINVAL,
       "core: ib_check_mr_access",
       [](Ground& g) { return reg_dmabuf(g, 0, 64, 0, IBV_ACCESS_REMOTE_WRITE); }},

      {"ibv_alloc_dm", "length", "0", EINVAL, "ours: memory of no bytes; drivers differ",
       [](Ground& g) { return alloc_dm(g, 0); }},
      {"ibv_alloc_dm", "length", "more than max_dm_size", ENOMEM,
       "ours: as for all that there is no more of. mlx5: EINVAL",
       [](Ground& g) { return alloc_dm(g, (size_t{64} << 20) + 1); }},
      {"ibv_alloc_dm", "length", "the largest number", ENOMEM, "ours, as above",
       [](Ground& g) { return alloc_dm(g, SIZE_MAX); }},
      {"ibv_alloc_dm", "log_align_req", "31", EINVAL, "ours: more than there is",
       [](Ground& g) { return alloc_dm(g, 64, 31); }},
      {"ibv_alloc_dm", "log_align_req", "the largest number", EINVAL, "ours: more than there is",
       [](Ground& g) { return alloc_dm(g, 64, UINT32_MAX); }},
      {"ibv_alloc_dm", "comp_mask", "unknown bit", EINVAL, "mlx5",
       [](Ground& g) { return alloc_dm(g, 64, 0, 1); }},
      {"ibv_free_dm", "dm", "a region shows it", EBUSY, "manual page; uverbs: DM_FREE",
       [](Ground& g) {
         const Dm dm = device_memory(g);
         const Mr mr(ibv_reg_dm_mr(g.pd.get(), dm.get(), 0, 64, IBV_ACCESS_ZERO_BASED));
         return ibv_free_dm(dm.get());
       }},
      {"ibv_memcpy_to_dm", "dm_offset", "behind the end", EFAULT, "mlx5",
       [](Ground& g) { return copy_to(g, 64, 4); }},
      {"ibv_memcpy_to_dm", "dm_offset", "the largest number", EFAULT, "mlx5",
       [](Ground& g) { return copy_to(g, UINT64_MAX - 3, 8); }},
      {"ibv_memcpy_to_dm", "length", "one more than there is", EFAULT, "mlx5",
       [](Ground& g) { return copy_to(g, 0, 68); }},
      {"ibv_memcpy_from_dm", "length", "3", EFAULT, "mlx5: multiples of 4",
       [](Ground& g) { return copy_from(g, 0, 3); }},
      {"ibv_memcpy_from_dm", "dm_offset, length", "wraps", EFAULT, "mlx5",
       [](Ground& g) { return copy_from(g, 4, SIZE_MAX - 3); }},
      {"ibv_reg_dm_mr", "access", "without ZERO_BASED", EINVAL, "manual page; uverbs: DM_MR_REG",
       [](Ground& g) { return reg_dm(g, 0, 64, IBV_ACCESS_LOCAL_WRITE); }},
      {"ibv_reg_dm_mr", "access", "ON_DEMAND", EINVAL, "mlx5",
       [](Ground& g) { return reg_dm(g, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND); }},
      {"ibv_reg_dm_mr", "access", "REMOTE_WRITE without LOCAL_WRITE", EINVAL,
       "core: ib_check_mr_access",
       [](Ground& g) { return reg_dm(g, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE); }},
      {"ibv_reg_dm_mr", "dm_offset", "one behind the end", EINVAL, "uverbs: DM_MR_REG",
       [](Ground& g) { return reg_dm(g, 65, 0); }},
      {"ibv_reg_dm_mr", "length", "one more than there is", EINVAL, "uverbs: DM_MR_REG",
       [](Ground& g) { return reg_dm(g, 0, 65); }},
      {"ibv_reg_dm_mr", "dm_offset, length", "wraps", EINVAL, "uverbs: DM_MR_REG",
       [](Ground& g) { return reg_dm(g, 8, SIZE_MAX); }},
      {"ibv_reg_dm_mr", "dm", "of another context", EINVAL,
       "ours: uverbs takes what the number names in this context, or ENOENT", reg_foreign_dm},

      {"ibv_advise_mr", "advice", "unknown", EOPNOTSUPP, "manual page; mlx5",
       [](Ground& g) { return advise(g, 77, 0, 1); }},
      {"ibv_advise_mr", "flags", "unknown bit", EINVAL, "uverbs: ADVISE_MR",
       [](Ground& g) { return advise(g, 0, 2, 1); }},
      {"ibv_advise_mr", "num_sge", "0", EINVAL, "uverbs: ADVISE_MR",
       [](Ground& g) { return advise(g, 0, 0, 0); }},
      {"ibv_advise_mr", "sg_list", "null", EINVAL, "uverbs: ADVISE_MR",
       [](Ground& g) {
         return ibv_advise_mr(g.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, nullptr, 1);
       }},
      {"ibv_advise_mr", "lkey", "unknown", EFAULT, "manual page",
       [](Ground& g) {
         ibv_sge place = {g.page_address(), 64, 0xdeadbeef};
         return ibv_advise_mr(g.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &place, 1);
       }},
      {"ibv_advise_mr", "lkey", "of a region that is not on demand", EINVAL, "manual page",
       [](Ground& g) { return advise(g, 0, 0, 1, 0, IBV_ACCESS_LOCAL_WRITE); }},
      {"ibv_advise_mr", "lkey", "of another domain", EPERM, "manual page", advise_in_other_domain},
      {"ibv_advise_mr", "lkey", "may not be written, advice to write", EPERM, "manual page",
       [](Ground& g) { return advise(g, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, 1); }},
      {"ibv_advise_mr", "addr", "outside of the region", EFAULT, "manual page",
       [](Ground& g) { return advise(g, 0, 0, 1, Ground::kPage - 63); }},

      {"ibv_alloc_mw", "type", "0", EINVAL, "uverbs: alloc_mw",
       [](Ground& g) { return alloc_mw(g, 0); }},
      {"ibv_alloc_mw", "type", "3", EINVAL, "uverbs: alloc_mw",
       [](Ground& g) { return alloc_mw(g, 3); }},
      {"ibv_alloc_mw", "type", "the largest number", EINVAL, "uverbs: alloc_mw",
       [](Ground& g) { return alloc_mw(g, UINT32_MAX); }},
      {"ibv_bind_mw", "mw", "of type 2", EINVAL, "mlx5",
       [](Ground& g) {
         return bind_mw(
             g, [](auto&) {}, IBV_MW_TYPE_2);
       }},
      {"ibv_bind_mw", "mr", "null, with a length", EINVAL, "mlx5",
       [](Ground& g) { return bind_mw(g, [](auto& bind) { bind.bind_info.mr = nullptr; }); }},
      {"ibv_bind_mw", "mr", "of another domain", EPERM, "mlx5", bind_other_domains},
      {"ibv_bind_mw", "mw_access_flags", "unknown bit", EINVAL, "rxe",
       [](Ground& g) {
         return bind_mw(g, [](auto& bind) { bind.bind_info.mw_access_flags = 1u << 20; });
       }},
      {"ibv_bind_mw", "send_flags", "unknown bit", EINVAL, "ours: drivers ignore it",
       [](Ground& g) { return bind_mw(g, [](auto& bind) { bind.send_flags = 1u << 20; }); }},
      {"ibv_bind_mw", "qp", "in INIT", EINVAL, "mlx5, rxe: posting a request in INIT",
       [](Ground& g) { return bind_mw(g, [](auto&) {}); }},
  };
}

}  // namespace wrong_arguments
