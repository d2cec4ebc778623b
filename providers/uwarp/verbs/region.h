// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_mr: the application's handle of a region in the engine's table.
#pragma once

#include <infiniband/verbs.h>

#include "kernel-abi/object_abi.h"
#include "mr/region_table.h"

namespace uwarp {

/// libibverbs reads the private tail, and fills in context, pd, addr and length itself.
struct VerbsMr : object_abi::Mr {
  VerbsMr() : object_abi::Mr{} {}
  MemoryRegion* region = nullptr;

  static VerbsMr& of(ibv_mr* mr) {
    return *static_cast<VerbsMr*>(reinterpret_cast<object_abi::Mr*>(mr));
  }
};

// Operations (verbs_table.h).
ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access);
int dereg_mr(ibv_mr* mr);

}  // namespace uwarp
