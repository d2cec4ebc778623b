// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// ibv_fork_init() as newer releases of libibverbs have it: where fork() copies regions there is
// nothing to do. Older ones know that (ibv_is_fork_initialized(), see rdma_netlink.h), and mark
// each region by madvise() all the same: some 32,000 small regions then take all mappings that a
// process may have (vm.max_map_count).
#include <stdlib.h>

#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int()> real_ibv_fork_init("ibv_fork_init");
constinit Real<int()> real_ibv_is_fork_initialized("ibv_is_fork_initialized");
constexpr int kForkUnneeded = 2;  // enum ibv_fork_status

}  // namespace

extern "C" int ibv_fork_init() {
  const bool wanted = getenv("RDMAV_USE_MADVISE") != nullptr;  // by the user: see libibverbs
  if (!wanted && real_ibv_is_fork_initialized() == kForkUnneeded) return 0;
  return real_ibv_fork_init();
}
