// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_pd: a name for what may meet. Everything else is in the engine's ProtectionDomain.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

#include "mr/region_table.h"
#include "verbs/device_context.h"

namespace uwarp {

struct VerbsPd : ibv_pd {
  explicit VerbsPd(DeviceContext& device) : ibv_pd{}, device(device) {}
  DeviceContext& device;
  ProtectionDomain domain;
  /// Deallocated with regions left: freed with the last of them.
  std::atomic<bool> abandoned{false};

  static VerbsPd& of(ibv_pd* pd) { return *static_cast<VerbsPd*>(pd); }
};

// Operations (verbs_table.h).
ibv_pd* alloc_pd(ibv_context* context);
int dealloc_pd(ibv_pd* pd);
/// A region of `pd` has been deregistered.
void region_left(VerbsPd& pd);

}  // namespace uwarp
