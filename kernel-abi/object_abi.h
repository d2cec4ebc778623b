// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Private tails of verbs objects that libibverbs reads although a provider allocates them.
// Layouts from the debug information of rdma-core v34 to v64 (LP64); see provider_abi.h. They are
// those of amd64; whatever follows a mutex lies kMutexGrowth further on arm64.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>

namespace uwarp::object_abi {

/// glibc's mutex has 40 bytes on amd64 and 48 on arm64.
inline constexpr size_t kMutexGrowth = sizeof(pthread_mutex_t) - 40;
static_assert(kMutexGrowth == 0 || kMutexGrowth == 8);

/// verbs_mr: read by the library in dereg_mr and rereg_mr. Same from v34 to v64.
struct Mr {
  ibv_mr base;
  uint32_t type;  // kMrType...
  uint32_t access;
};
inline constexpr uint32_t kMrTypeRegular = 0;
inline constexpr uint32_t kMrTypeNull = 1;
inline constexpr uint32_t kMrTypeDmabuf = 3;
static_assert(sizeof(Mr) == 56 && offsetof(Mr, type) == 48 && sizeof(ibv_mr) == 48);

/// verbs_cq is a union of ibv_cq and ibv_cq_ex. Same from v34 to v64.
struct Cq {
  union {
    ibv_cq base;
    ibv_cq_ex extended;
  };
};
static_assert(sizeof(ibv_cq) == 128 + kMutexGrowth && sizeof(ibv_cq_ex) == 288 + kMutexGrowth);
static_assert(offsetof(ibv_cq, cqe) == 28);
static_assert(offsetof(ibv_cq, comp_events_completed) == 120 + kMutexGrowth);

/// verbs_xrcd. Same from v34 to v64.
struct Xrcd {
  ibv_xrcd base;
  uint32_t comp_mask;
  uint32_t handle;
};
static_assert(sizeof(Xrcd) == 16 && offsetof(Xrcd, handle) == 12);

/// verbs_srq. Same from v34 to v64.
struct Srq {
  ibv_srq base;
  uint32_t type;  // ibv_srq_type
  ibv_xrcd* xrcd;
  ibv_cq* cq;
  uint32_t number;
};
static_assert(sizeof(ibv_srq) == 128 + kMutexGrowth && offsetof(Srq, type) == sizeof(ibv_srq));
static_assert(sizeof(Srq) == 160 + kMutexGrowth);

/// verbs_qp: a union of ibv_qp and ibv_qp_ex, then a comp_mask whose offset depends on the release:
/// 344 up to v43, 352 in v44, 360 from v45 on. Everything behind ibv_qp is the library's up to 376,
/// on arm64 up to 384; what is ours starts at kQpReserved.
inline constexpr size_t kQpReserved = 384;
inline constexpr size_t kQpCompMaskOffsets[] = {344 + kMutexGrowth, 352 + kMutexGrowth,
                                                360 + kMutexGrowth};
/// Bit of comp_mask: the object is an ibv_qp_ex.
inline constexpr uint32_t kQpCompMaskExtended = 2;
struct Qp {
  union {
    ibv_qp base;
    ibv_qp_ex extended;
    std::byte reserved[kQpReserved];
  };
};
static_assert(sizeof(ibv_qp) == 160 + kMutexGrowth);
static_assert(offsetof(ibv_qp, events_completed) == 152 + kMutexGrowth);
static_assert(sizeof(ibv_qp_ex) >= 344 + kMutexGrowth && sizeof(ibv_qp_ex) <= kQpReserved);
static_assert(sizeof(Qp) == kQpReserved && sizeof(Cq) == sizeof(ibv_cq_ex));

/// ibv_port_attr has 52 bytes up to v48 and 56 from v49 on; a provider may write only this much.
inline constexpr size_t kPortAttrCommonBytes = 52;

}  // namespace uwarp::object_abi
