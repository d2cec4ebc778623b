// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Whether regions survive fork(). Those of uwarp are ordinary memory, which fork() copies, so there
// is nothing to do: IBV_FORK_UNNEEDED, as libibverbs says where the kernel copies pinned pages
// (Linux 5.12). Left to itself, libibverbs would mark the pages of each region by madvise(): some
// 32,000 small ones then take all mappings that a process may have (vm.max_map_count). It asks the
// kernel by netlink, which knows nothing of us, and older releases mark in any case.
//
// Its own answer counts where real adapters may be, or the user has asked for marks.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int()> real_ibv_fork_init("ibv_fork_init");
constinit Real<int()> real_ibv_is_fork_initialized("ibv_is_fork_initialized");
constexpr int kForkUnneeded = 2;  // enum ibv_fork_status

bool only_ours() {
  return getenv("RDMAV_USE_MADVISE") == nullptr &&
         syscall(SYS_faccessat, AT_FDCWD, "/sys/class/infiniband", F_OK) != 0;
}

}  // namespace

extern "C" {

int ibv_fork_init() { return only_ours() ? 0 : real_ibv_fork_init(); }

int ibv_is_fork_initialized() {
  return only_ours() ? kForkUnneeded : real_ibv_is_fork_initialized();
}

}  // extern "C"
