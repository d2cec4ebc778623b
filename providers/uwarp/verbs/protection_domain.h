// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_pd: a name for what may meet, plain or as a parent domain that stands for a plain one, and
// ibv_td, which a parent domain may carry. Everything else is in the engine's ProtectionDomain.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

#include "memory/region_table.h"
#include "verbs/device_context.h"
#include "verbs/named.h"

namespace uwarp {

struct VerbsTd : ibv_td {
  explicit VerbsTd(DeviceContext& device) : ibv_td{}, device(device) {}
  DeviceContext& device;
  std::atomic<uint32_t> users{0};  // parent domains

  static VerbsTd& of(ibv_td* td) { return *static_cast<VerbsTd*>(td); }
};

struct VerbsPd : ibv_pd, Named<VerbsPd, ibv_pd> {
  explicit VerbsPd(DeviceContext& device)
      : ibv_pd{}, device(device), root(*this), domain(own_domain) {}
  /// A parent domain: what is made on it belongs to the domain of `plain`.
  VerbsPd(VerbsPd& plain, VerbsTd* thread)
      : ibv_pd{}, device(plain.device), root(plain), domain(plain.domain), thread(thread) {}

 private:
  ProtectionDomain own_domain;

 public:
  DeviceContext& device;
  VerbsPd& root;  // the plain domain: itself, or what it is the parent of
  ProtectionDomain& domain;
  /// All calls on what is made here come from one thread at a time; null if not promised.
  VerbsTd* const thread = nullptr;

  /// A queue pair of it was connected without rdma_cm in the iwarp persona, which no other iWARP
  /// adapter can do. ib_send_bw then leaves a region behind, and EBUSY would make it fail.
  std::atomic<bool> may_leave_regions{false};

  bool is_parent() const { return &root != this; }
  bool one_thread() const { return thread != nullptr; }
  /// What was made on this very domain. A plain one also counts in ProtectionDomain::users what
  /// was made on its parent domains, and those themselves.
  void object_made() { objects_.fetch_add(1, std::memory_order_relaxed); }
  void object_gone() { objects_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const {
    const bool objects = objects_.load(std::memory_order_acquire) != 0;
    if (is_parent()) return objects;
    return domain.users.load(std::memory_order_acquire) != 0 || (objects && !may_leave_regions);
  }
  /// A queue pair or shared queue, which keeps both domains.
  void user_made() {
    domain.users.fetch_add(1, std::memory_order_relaxed);
    object_made();
  }
  void user_gone() {
    object_gone();
    domain.users.fetch_sub(1, std::memory_order_release);
  }

  /// A plain domain may be deallocated with regions left (may_leave_regions). The last that keeps
  /// it frees it: the application or a region.
  void keep() { keepers_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() {
    if (keepers_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<uint32_t> objects_{0};
  std::atomic<uint32_t> keepers_{1};
};

}  // namespace uwarp
